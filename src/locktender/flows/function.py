"""A user's function and what is derived from it: its name, its signature hash, how its calls are read."""

from __future__ import annotations

import difflib
import hashlib
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from locktender.base import codec, names
from locktender.base.errors import ArgumentMismatch, InvalidFlow, InvalidInput
from locktender.base.jsonable import StepError, spoken
from locktender.base.secrets import MARK
from locktender.flows.annotations import canonical, model_in, wrong_field

Decode = Callable[[bytes, str], Any]
_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)
_MAX_SHAPES = 100
_PLAIN_TYPES = frozenset({str, int, bool})
"""A value of such a type, asked for by that type, is what was asked for."""


class _Text(str):
    """Text whose repr is itself, so that a signature shows annotations without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Function:
    """Shared by steps and flows. Annotations are resolved late: they may name what is defined further down."""

    kind: typing.ClassVar[str] = "function"
    elsewhere: typing.ClassVar[Mapping[str, str]] = {}
    """Options that are given to something else than a call, each with where."""

    def __init__(
        self, fn: Callable[..., Any], name: object, version: object, *, importable: bool = False
    ) -> None:
        """`importable`: another process must find it by its place in its module, and not by a name."""
        _check_function(fn, self.kind)
        inner = inspect.unwrap(fn)
        self.fn = fn
        self.module: str = fn.__module__
        self.qualname: str = fn.__qualname__
        self.file: str = inner.__code__.co_filename
        self.is_local: bool = "<" in self.qualname
        if name is None and "<lambda>" in self.qualname:
            named = "" if importable else ", or give it name=..."
            raise InvalidFlow(
                f"a lambda has no name to find it by, so it cannot be a {self.kind}.",
                field="name",
                got=self.qualname,
                hint=f"Define it with def{named or '.'}",
            )
        self.short: str = fn.__name__ if name is None else names.name(name, "name")
        self.name: str = self._default_name() if name is None else self.short
        self.version: str | None = None if version is None else names.name(str(version), "version")
        self.parameters: inspect.Signature = inspect.signature(fn)

    def _default_name(self) -> str:
        # A file run as a script is imported by its stem elsewhere: both must find the same name.
        module = Path(self.file).stem if self.module == "__main__" else self.module
        return names.name(f"{module}:{self.qualname}", "name")

    @cached_property
    def spoken(self) -> str:
        """The function as its author wrote it: `index(path: str) -> int`."""
        parameters = [
            each.replace(annotation=annotation_text(each.annotation))
            for each in self.parameters.parameters.values()
        ]
        returns = annotation_text(self.parameters.return_annotation)
        shown = self.parameters.replace(parameters=parameters, return_annotation=returns)
        return f"{self.short}{shown}"

    @cached_property
    def signature(self) -> str:
        """Changes when a call made for one version of the function might not fit another.

        It is compared between processes, also of different Python versions.
        """
        lines = [self.name, self.version or ""]
        try:
            hints = self.hints
        except InvalidFlow:  # refused when a flow calls it
            hints: dict[str, Any] = {}
        for each in self.parameters.parameters.values():
            written = hints.get(each.name, each.annotation)
            annotation = "" if written is inspect.Parameter.empty else canonical(written)
            optional = each.default is not inspect.Parameter.empty
            lines.append(f"{each.kind.name} {each.name}: {annotation} {optional}")
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

    @cached_property
    def _plain(self) -> Mapping[str, Any] | None:
        """The parameters with their defaults, where each may be given by position or by name; else None."""
        several = self.parameters.parameters.values()
        if all(each.kind is each.POSITIONAL_OR_KEYWORD for each in several):
            return {each.name: each.default for each in several}
        return None

    def fits(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raises `InvalidFlow` where the function cannot be called like this."""
        shape = (len(args), *kwargs)
        if shape not in self._fitting:
            self.bind(args, kwargs)
            if len(self._fitting) < _MAX_SHAPES:
                self._fitting.add(shape)

    @cached_property
    def _fitting(self) -> set[tuple[int | str, ...]]:
        """Calls that fit, by how many arguments stand by position and which by name: nothing else counts."""
        return set()

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        bound = self._bind_plainly(args, kwargs)
        if bound is not None:
            return inspect.BoundArguments(self.parameters, bound)
        try:
            return self.parameters.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidFlow(
                f"{self.kind} {self.short!r} cannot be called like this: {error}.",
                field=self.short,
                got=_call_text(self.short, args, kwargs),
                hint=f"{self._meant(kwargs)}Its signature is {self.spoken}.",
            ) from error

    def _meant(self, kwargs: Mapping[str, Any]) -> str:
        """The option or parameter that an unknown keyword was likely to be, with where it belongs."""
        parameters = self.parameters.parameters
        known = {**self.elsewhere, **dict.fromkeys(parameters, "")}
        for key in kwargs.keys() - parameters.keys():
            for near in difflib.get_close_matches(key, known, n=1, cutoff=0.75):
                return f"Did you mean {near!r}{known[near]}? "
        return ""

    def _bind_plainly(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What `Signature.bind` binds, ten times as fast, in the common case; else None."""
        plain = self._plain
        if plain is None or len(args) > len(plain):
            return None
        bound = dict(zip(plain, args, strict=False))
        if len(bound) == len(plain) and not kwargs:
            return bound
        used = 0
        for name, default in list(plain.items())[len(args) :]:
            if name in kwargs:
                bound[name] = kwargs[name]
                used += 1
            elif default is inspect.Parameter.empty:
                return None
        return bound if used == len(kwargs) else None

    @cached_property
    def hints(self) -> dict[str, Any]:
        try:
            return typing.get_type_hints(self.fn, include_extras=True)
        except Exception as error:  # a text is evaluated here, and may raise anything
            raise InvalidFlow(
                f"an annotation of {self.kind} {self.short!r} cannot be resolved: {error}.",
                field=self.short,
                got=self.spoken,
                hint="Values are read by annotation: import the type at module level, outside TYPE_CHECKING.",
            ) from error

    @property
    def returns(self) -> Any:
        return self.hints.get("return", Any)

    @cached_property
    def _result_decoder(self) -> Decode | None:
        """None: the return annotation asks for nothing that could be checked."""
        return _checker(self, "return")

    def check_arguments(self, fields: Mapping[str, bytes], bound: inspect.BoundArguments) -> None:
        """Raises `InvalidInput` where an argument, given as JSON, is not what its annotation asks for."""
        for name, value in bound.arguments.items():
            wanted, decode, parameter = self._argument_decoders[name]
            if decode is None or (wanted is type(value) and wanted in _PLAIN_TYPES):
                continue
            # A default is its author's own business: `n: int = None` is common.
            if value is parameter.default:
                continue
            if parameter.kind is parameter.VAR_POSITIONAL:
                parts = [(name, raw) for raw in codec.split_list(fields[name])]
            elif parameter.kind is parameter.VAR_KEYWORD:
                parts = [(key, codec.pick(fields[name], [key])) for key in bound.arguments[name]]
            else:
                parts = [(name, fields[name])]
            for shown, raw in parts:
                if MARK in raw:
                    continue  # a secret's value is read by the annotation where it is known: in the worker
                try:
                    decode(raw, shown)
                except InvalidInput as error:
                    if not codec.is_unreadable(error):
                        raise

    @cached_property
    def _argument_decoders(self) -> dict[str, tuple[Any, Decode | None, inspect.Parameter]]:
        """What each argument's annotation asks for and how to see whether it is that."""
        found: dict[str, tuple[Any, Decode | None, inspect.Parameter]] = {}
        for name, parameter in self.parameters.parameters.items():
            decode = _checker(self, name)
            wanted = None if decode is None else self.hints.get(name)
            found[name] = wanted, decode, parameter
        return found

    @cached_property
    def _positional(self) -> list[tuple[str, Decode]]:
        return [
            (each.name, codec.decoder(self.hints.get(each.name, Any)))
            for each in self.parameters.parameters.values()
            if each.kind in _POSITIONAL
        ]

    @cached_property
    def _named(self) -> dict[str, Decode]:
        return {
            each.name: codec.decoder(self.hints.get(each.name, Any))
            for each in self.parameters.parameters.values()
            if each.kind is not inspect.Parameter.VAR_POSITIONAL
            and each.kind is not inspect.Parameter.VAR_KEYWORD
        }

    @cached_property
    def _spread(self) -> dict[object, tuple[str, Decode]]:
        """Decoders of `*args` and `**kwargs`, where the function has them."""
        return {
            each.kind: (each.name, codec.decoder(self.hints.get(each.name, Any)))
            for each in self.parameters.parameters.values()
            if each.kind in {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
        }

    def prepare(self) -> None:
        """Resolves every annotation now, so that the mistake shows where the flow is written."""
        _ = self._positional, self._named, self._spread

    @cached_property
    def _whole_call(self) -> Callable[[bytes], Any] | None:
        """Reads a call that gives each parameter by its position; None: there may be others."""
        parameters = self.parameters.parameters.values()
        if not all(each.kind in _POSITIONAL and each.default is each.empty for each in parameters):
            return None
        return codec.call_decoder([self.hints.get(each.name, Any) for each in parameters])

    def decode_call(self, raw: bytes) -> tuple[Sequence[Any], dict[str, Any]]:
        """Arguments of a stored call, typed by the function's annotations."""
        if (read := self._whole_call) is not None and (found := read(raw)) is not None:
            return found, {}
        raw_args, raw_kwargs = codec.read_call(raw)
        args: list[Any] = []
        for index, value in enumerate(raw_args):
            name, decode = self._decoder_at(index)
            args.append(self._decoded(decode, value, name))
        kwargs = {
            name: self._decoded(self._decoder_of(name), value, name)
            for name, value in raw_kwargs.items()
        }
        return args, kwargs

    def _decoded(self, decode: Decode, value: bytes, name: str) -> Any:
        try:
            return decode(value, name)
        except InvalidInput as error:
            model = model_in(self.hints.get(name))
            if model is None:
                raise
            raise self._mismatch(name, model.__name__, error) from error

    def _mismatch(self, name: str, model: str, error: InvalidInput) -> ArgumentMismatch:
        place = wrong_field(error)
        field = f"field {place!r}: " if place else ""
        missing = place and "missing required field" in error.message
        mend = f"give {place!r} a default" if missing else "make the class read the stored value"
        return ArgumentMismatch(
            f"the stored argument {name!r} of {self.kind} {self.short!r} does not fit the class {model} as"
            f" this worker has it: {field}{error.message}",
            field=f"{name}.{place}" if place else name,
            hint=f"If {model} was changed after the run was submitted: {mend}, restart the workers and retry the"
            f" run (locktender runs retry RUN), or let a worker with the old code run it. If it was not: the flow"
            f" passes a value that is no {model}.",
        )

    def argument_name(self, index: int) -> str:
        """The parameter that takes positional argument `index`, for messages."""
        return self._names[index] if index < len(self._names) else f"argument {index + 1}"

    @cached_property
    def _names(self) -> list[str]:
        return [
            each.name for each in self.parameters.parameters.values() if each.kind in _POSITIONAL
        ]

    def place_of(self, index: int) -> str:
        """The same with the function's name before it."""
        places = self._places
        return places[index] if index < len(places) else f"{self.short}.argument {index + 1}"

    @cached_property
    def _places(self) -> list[str]:
        return [f"{self.short}.{name}" for name in self._names]

    def _decoder_at(self, index: int) -> tuple[str, Decode]:
        if index < len(self._positional):
            return self._positional[index]
        if found := self._spread.get(inspect.Parameter.VAR_POSITIONAL):
            return found
        return f"argument {index + 1}", codec.decoder(Any)

    def _decoder_of(self, name: str) -> Decode:
        if found := self._named.get(name):
            return found
        spread = self._spread.get(inspect.Parameter.VAR_KEYWORD)
        return spread[1] if spread else codec.decoder(Any)


def takes_errors(wanted: Any) -> bool:
    """Whether an annotation lets a collected error in."""
    if typing.get_origin(wanted) is typing.Annotated:
        wanted = typing.get_args(wanted)[0]
    if wanted in (Any, object, StepError) or isinstance(wanted, typing.TypeVar):
        return True
    return any(takes_errors(each) for each in _members(wanted))


def _members(wanted: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(wanted) in (typing.Union, types.UnionType)
    return typing.get_args(wanted) if is_union else ()


def _checker(function: Function, name: str) -> Decode | None:
    """The decoder of one annotation; None if there is no annotation, or it accepts any value."""
    try:
        wanted = function.hints.get(name, Any)
        return None if wanted is Any or wanted is object else codec.decoder(wanted)
    except InvalidInput:
        return None


def _check_function(fn: object, kind: str) -> None:
    if not inspect.isfunction(fn):
        raise InvalidFlow(
            f"a {kind} must be a function defined with def.",
            field=kind,
            got=fn,
            hint=f"Wrap it: @{kind} def name(...): ...",
        )
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise InvalidFlow(
            f"{kind} {fn.__name__!r} is a generator.",
            field=kind,
            got=fn.__qualname__,
            hint="Return a list in place of yielding.",
        )
    first = next(iter(inspect.signature(fn).parameters), "")
    owner = fn.__qualname__.rpartition(".")[0]
    if first in {"self", "cls"} and owner and not owner.endswith("<locals>"):
        raise InvalidFlow(
            f"{kind} {fn.__qualname__!r} is a method.",
            field=kind,
            got=fn.__qualname__,
            hint="Use a function at module level; hand over what it needs as arguments.",
        )


def annotation_text(annotation: Any) -> Any:
    if annotation is inspect.Parameter.empty:
        return annotation
    return _Text(annotation if isinstance(annotation, str) else spoken(annotation))


def _call_text(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    shown = [repr(each)[:40] for each in args]
    shown += [f"{key}={repr(each)[:40]}" for key, each in kwargs.items()]
    return _Text(f"{name}({', '.join(shown)})")
