"""Handles: the future results of steps inside a flow, their parts, and conditions made from them.

A handle is typed as the result it stands for, so that handing it to another
step type-checks. Parts are found by the annotation: `handle.path`, `handle[0]`.
What a result can do and a handle cannot (loops, `if`, text) raises an error
that says what to write.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Protocol, TypeVar, cast

import msgspec

from locktender.base.errors import InvalidFlow
from locktender.base.graph import (
    AllOf,
    AnyCondition,
    AnyOf,
    AnyTemplate,
    Compare,
    Not,
    Output,
    Truthy,
)


def field_of(annotation: Any, name: str) -> tuple[str | int, Any] | None:
    """Where attribute `name` of a value of this type stands in its JSON, and the attribute's own type."""
    kind: Any = typing.get_origin(annotation) or annotation
    if not isinstance(kind, type):
        return None
    key = _key(kind, name)
    return None if key is None else (key, _hints(kind).get(name, Any))


def _key(kind: Any, name: str) -> str | int | None:
    if issubclass(kind, msgspec.Struct):
        renamed = dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
        return renamed.get(name)
    if dataclasses.is_dataclass(kind):
        return name if name in kind.__dataclass_fields__ else None
    if named := cast("tuple[str, ...]", getattr(kind, "_fields", ())):  # a NamedTuple is an array
        return named.index(name) if name in named else None
    field = cast("dict[str, Any]", getattr(kind, "model_fields", {})).get(name)
    return None if field is None else field.serialization_alias or name


def element_of(annotation: Any, key: str | int) -> Any:
    """The type of `value[key]`, or Any."""
    kind: Any = typing.get_origin(annotation) or annotation
    arguments = typing.get_args(annotation)
    if typing.is_typeddict(kind):
        return _hints(kind).get(str(key), Any)
    if not isinstance(kind, type) or not arguments:
        return Any
    if kind is tuple and ... not in arguments:
        return dict(enumerate(arguments)).get(cast("int", key), Any)
    return arguments[-1] if issubclass(kind, dict) else arguments[0]


@functools.lru_cache(maxsize=1024)
def _hints(kind: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind)
    except (NameError, TypeError):
        return {}


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Recorder(Protocol):
    """The trace a handle belongs to."""

    def template(self, value: object, where: str) -> AnyTemplate: ...


class NotInResult(InvalidFlow, AttributeError):
    """An attribute a step's result does not have. Also an AttributeError, so that `hasattr` answers."""


class Handle(Generic[T_co]):
    """The future result of a step."""

    __slots__ = ("_annotation", "_label", "_output", "_recorder")

    def __init__(self, recorder: Recorder, output: Output, label: str, annotation: Any) -> None:
        self._recorder = recorder
        self._output = output
        self._label = label
        self._annotation = annotation

    def __repr__(self) -> str:
        return f"<handle of {self._label}{''.join(f'[{key!r}]' for key in self._output.path)}>"

    def __getitem__(self, key: str | int) -> Handle[Any]:
        if isinstance(key, bool) or not isinstance(key, str | int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise self._untraceable(
                f"cannot be cut with {key!r}", 'Pick one part: handle["key"] or handle[0].'
            )
        return self._part(key, element_of(self._annotation, key))

    def __getattr__(self, name: str) -> Handle[Any]:
        found = None if name.startswith("_") else field_of(self._annotation, name)
        if found is None:
            raise NotInResult(
                f"the result of {self._label!r} has no field {name!r} that is known here.",
                field=self._label,
                got=name,
                hint=f'A flow\'s body sees no results: use handle["{name}"] for a key of a dict,'
                " or do the work in a step.",
            )
        return self._part(*found)

    def _part(self, key: str | int, annotation: Any) -> Handle[Any]:
        output = Output(self._output.node, (*self._output.path, key))
        return Handle(self._recorder, output, self._label, annotation)

    # Conditions ---------------------------------------------------------------------------------

    def _compare(self, op: Literal["==", "!=", "<", "<=", ">", ">=", "in"], other: object) -> Test:
        right = self._recorder.template(other, f"{self._label} {op}")
        return Test(self._recorder, Compare(op, self._output, right))

    def __eq__(self, other: object) -> Test:  # type: ignore[override]
        return self._compare("==", other)

    def __ne__(self, other: object) -> Test:  # type: ignore[override]
        return self._compare("!=", other)

    def __lt__(self, other: object) -> Test:
        return self._compare("<", other)

    def __le__(self, other: object) -> Test:
        return self._compare("<=", other)

    def __gt__(self, other: object) -> Test:
        return self._compare(">", other)

    def __ge__(self, other: object) -> Test:
        return self._compare(">=", other)

    def __hash__(self) -> int:
        return object.__hash__(self)

    def is_in(self, options: Iterable[object]) -> Test:
        """True if the result is one of `options` (a list, or a handle of one)."""
        if isinstance(options, Handle):
            return self._compare("in", cast("object", options))
        return self._compare("in", list(options))

    def __and__(self, other: object) -> Test:
        return self._test() & other

    def __rand__(self, other: object) -> Test:
        return self._test().__rand__(other)

    def __or__(self, other: object) -> Test:
        return self._test() | other

    def __ror__(self, other: object) -> Test:
        return self._test().__ror__(other)

    def __invert__(self) -> Test:
        return ~self._test()

    def _test(self) -> Test:
        return Test(self._recorder, Truthy(self._output))

    # What a result could do and a handle cannot ---------------------------------------------------

    def _untraceable(self, what: str, hint: str) -> InvalidFlow:
        return InvalidFlow(
            f"the result of {self._label!r} {what}: it is not known while the flow is traced.",
            field=self._label,
            got=repr(self),
            hint=hint,
        )

    def __bool__(self) -> NoReturn:
        raise self._untraceable(
            "cannot be tested with if, and, or, not",
            "Make the step conditional: step.with_options(when=handle)(...).",
        )

    def __iter__(self) -> NoReturn:
        raise self._untraceable(
            "cannot be looped over", "Use step.map(handle), or loop inside a step."
        )

    def __contains__(self, item: object) -> NoReturn:
        raise self._untraceable(
            "cannot be searched with in", "Use handle.is_in([...]), or a step that searches."
        )

    def __len__(self) -> NoReturn:
        raise self._untraceable("has no length yet", "Count in a step that takes it.")

    def __str__(self) -> NoReturn:
        raise self._untraceable(
            "cannot be put into a text", "Hand it to a step and make the text there."
        )

    def __format__(self, spec: str) -> NoReturn:
        self.__str__()

    def __call__(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise self._untraceable("cannot be called", "Call its methods inside a step.")

    def _calculate(self, *_others: object) -> NoReturn:
        raise self._untraceable("cannot be calculated with", "Calculate in a step that takes it.")

    if not TYPE_CHECKING:  # a type checker refuses what is not there
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _calculate
        __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = _calculate
        __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __neg__ = __abs__ = _calculate
        __int__ = __float__ = __index__ = __round__ = _calculate


class Test:
    """A condition for `when=`: comparisons of handles, joined by `&`, `|` and `~`."""

    __slots__ = ("_recorder", "condition")
    __test__ = False  # not a test case, whatever pytest may think of the name

    def __init__(self, recorder: Recorder, condition: AnyCondition) -> None:
        self._recorder = recorder
        self.condition: AnyCondition = condition

    def __repr__(self) -> str:
        return "<condition>"

    def __and__(self, other: object) -> Test:
        return Test(self._recorder, AllOf((self.condition, self._other(other))))

    def __rand__(self, other: object) -> Test:
        return Test(self._recorder, AllOf((self._other(other), self.condition)))

    def __or__(self, other: object) -> Test:
        return Test(self._recorder, AnyOf((self.condition, self._other(other))))

    def __ror__(self, other: object) -> Test:
        return Test(self._recorder, AnyOf((self._other(other), self.condition)))

    def __invert__(self) -> Test:
        return Test(self._recorder, Not(self.condition))

    def _other(self, value: object) -> AnyCondition:
        return condition_of(self._recorder, value)

    def __bool__(self) -> NoReturn:
        raise InvalidFlow(
            "a condition on a step's result cannot be tested while the flow is traced.",
            field="when",
            got=repr(self),
            hint="Use step.with_options(when=...)(...); join conditions with &, | and ~"
            " in place of and, or, not; test membership with handle.is_in([...]).",
        )


def output_of(recorder: Recorder, handle: Handle[Any]) -> Output:
    """The node and path behind `handle`, which must be of the same trace."""
    if handle._recorder is not recorder:  # pyright: ignore[reportPrivateUsage]
        raise _foreign(repr(handle))
    return handle._output  # pyright: ignore[reportPrivateUsage]


def annotation_of(value: object) -> Any:
    """The type of a value, or of the result that a handle stands for."""
    if isinstance(value, Handle):
        return cast("Handle[Any]", value)._annotation  # pyright: ignore[reportPrivateUsage]
    return type(value)


def _foreign(got: str) -> InvalidFlow:
    return InvalidFlow(
        f"{got} belongs to another trace.",
        field="handle",
        got=got,
        hint="Use a handle only inside the flow's body that made it; do not keep it in a global.",
    )


def condition_of(recorder: Recorder, value: object) -> AnyCondition:
    """What `when=` accepts, as a condition."""
    if isinstance(value, Test):
        if value._recorder is not recorder:  # pyright: ignore[reportPrivateUsage]
            raise _foreign(repr(value))
        return value.condition
    if isinstance(value, Handle | bool):
        return Truthy(recorder.template(cast("object", value), "when"))
    is_function = callable(value)
    raise InvalidFlow(
        f"when= cannot be {'a function' if is_function else f'a {type(value).__name__}'}.",
        field="when",
        got=value,
        hint="Make the function a step and give when= its handle."
        if is_function
        else "Give it a handle, a comparison of one (handle > 3), or True or False.",
    )


def as_handle(value: T) -> Handle[T]:
    """`value`, typed as the handle it is inside a flow: for `.is_in` under a type checker."""
    if isinstance(value, Handle):
        return cast("Handle[T]", value)
    raise InvalidFlow(
        "this is not a step's result.",
        field="handle",
        got=value,
        hint="Handles exist only inside a flow, as what calling a step returns.",
    )


def not_(condition: object) -> bool:
    """The opposite of a handle or a condition, typed as the bool it stands for (as `~` at run time)."""
    if isinstance(condition, Handle | Test):
        return cast("bool", ~cast("Test", condition))
    return not condition
