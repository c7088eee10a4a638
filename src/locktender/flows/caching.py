"""`cache=`, `cache_key=` and `cache_scope=` of a step: checked options, and the rule in its node."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import msgspec

from locktender.base import codec, names
from locktender.base.durations import microseconds
from locktender.base.errors import InvalidFlow, Unserialisable
from locktender.base.graph import CacheRule, CacheScope, RunIf
from locktender.base.jsonable import to_json
from locktender.flows.function import Function

SCOPES: tuple[CacheScope, ...] = ("flow", "everywhere")
_HINT = 'e.g. cache="7d", cache_key=("accession", "mirror"), or a function of the same arguments.'
_KINDS = inspect.Parameter
_sorted = msgspec.json.Encoder(enc_hook=to_json, order="sorted").encode


class CacheOptions(Protocol):
    """As `StepOptions` has them."""

    @property
    def cache_us(self) -> int | None: ...
    @property
    def cache_by(self) -> tuple[str, ...]: ...
    @property
    def cache_scope(self) -> CacheScope: ...
    @property
    def cache_computed(self) -> bool: ...


def changes(
    step: Function, base: CacheOptions, given: Mapping[str, Any], *, defines: bool
) -> dict[str, Any]:
    """What of a step's options `given` changes. `defines`: it is given to `@step`, and not to one call."""
    found: dict[str, Any] = {}
    if "cache" in given:
        value = given["cache"]
        found["cache_us"] = None if value is None else microseconds(value, "cache")
    if "cache_scope" in given:
        found["cache_scope"] = _scope(given["cache_scope"])
    if "cache_key" in given:
        key = given["cache_key"]
        found["cache_computed"] = callable(key)
        found["cache_by"] = () if key is None or callable(key) else _names(step, key)
        if callable(key):
            _check_function(step, key, defines=defines)
    alone = next((each for each in ("cache_key", "cache_scope") if given.get(each)), None)
    if alone is not None and found.get("cache_us", base.cache_us) is None:
        raise InvalidFlow(
            f"{alone} of step {step.short!r} is given without cache: nothing is cached.",
            field=alone,
            got=given[alone],
            hint='Say for how long results are kept: cache="7d".',
        )
    return found


def _scope(value: object) -> CacheScope:
    if value not in SCOPES:
        raise InvalidFlow(
            f"cache_scope must be one of {', '.join(SCOPES)}.",
            field="cache_scope",
            got=value,
            hint=names.nearest(value, SCOPES) or "flow: runs of the same flow share results.",
        )
    return value


def _names(step: Function, value: object) -> tuple[str, ...]:
    """Parameters of the step, as one name or several."""
    several = (value,) if isinstance(value, str) else value
    if not isinstance(several, tuple | list) or not several:
        raise InvalidFlow(
            "cache_key must be names of arguments or a function.",
            field="cache_key",
            got=value,
            hint=_HINT,
        )
    known = [
        each.name
        for each in step.parameters.parameters.values()
        if each.kind not in (_KINDS.VAR_POSITIONAL, _KINDS.VAR_KEYWORD)
    ]
    listed = cast("Sequence[object]", several)
    for name in listed:
        if name not in known:
            near = names.did_you_mean(name, known) if isinstance(name, str) else ""
            raise InvalidFlow(
                f"step {step.short!r} has no argument {name!r}.",
                field="cache_key",
                got=name,
                hint=near or f"Its signature is {step.spoken}.",
            )
    return tuple(sorted({str(each) for each in listed}))


def _check_function(step: Function, key: Any, *, defines: bool) -> None:
    if not defines:
        raise InvalidFlow(
            "cache_key of one call takes names of arguments.",
            field="cache_key",
            got=key,
            hint="Give a function to @step(cache_key=...): workers find it there.",
        )
    if not inspect.isfunction(key) or inspect.iscoroutinefunction(key):
        raise InvalidFlow(
            "cache_key must be a plain function, or names of arguments.",
            field="cache_key",
            got=key,
            hint="Define it with def: it is called in a thread, with the arguments of the step.",
        )
    if inspect.isgeneratorfunction(key) or inspect.isasyncgenfunction(key):
        raise InvalidFlow(
            "cache_key is a generator.",
            field="cache_key",
            got=key,
            hint="Return a value in place of yielding.",
        )
    positional = (_KINDS.POSITIONAL_ONLY, _KINDS.POSITIONAL_OR_KEYWORD)
    several = step.parameters.parameters.values()
    try:
        inspect.signature(key).bind(
            *(each.name for each in several if each.kind in positional),
            **{each.name: None for each in several if each.kind is _KINDS.KEYWORD_ONLY},
        )
    except TypeError as error:
        raise InvalidFlow(
            f"cache_key of step {step.short!r} cannot be called with its arguments: {error}.",
            field="cache_key",
            got=key,
            hint=f"It takes what the step takes: {step.spoken}.",
        ) from error


def rule_of(
    step: Function,
    options: CacheOptions,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    key: int | None,
    run_if: RunIf,
) -> CacheRule | None:
    """What the node of this call says about its result; None: it is not cached."""
    if options.cache_us is None:
        return None
    if run_if != "success":
        raise InvalidFlow(
            f"step {step.short!r} cleans up: its result cannot be cached.",
            field="cache",
            got=run_if,
            hint="Use with_options(cache=None), or another step.",
        )
    positional = (_KINDS.POSITIONAL_ONLY, _KINDS.POSITIONAL_OR_KEYWORD)
    several = step.parameters.parameters.values()
    by_place = tuple(each.name for each in several if each.kind in positional)
    given = {*by_place[: len(args)], *kwargs}
    left_out = [
        each for each in several if each.name not in given and each.default is not _KINDS.empty
    ]
    return CacheRule(
        options.cache_us,
        options.cache_scope,
        by_place,
        options.cache_by,
        {each.name: _default(each.default) for each in left_out},
        key,
    )


def _default(value: object) -> str:
    """A default that has no JSON form counts by its type."""
    try:
        return _sorted(value).decode()
    except (TypeError, ValueError, RecursionError, AttributeError):
        return _sorted(f"{type(value).__module__}.{type(value).__qualname__}").decode()


def key_function(
    step: Callable[..., Any], key: Callable[..., Any], short: str
) -> Callable[..., str]:
    """Called like the step: the hash of what its `cache_key` function returns. Only the hash is stored."""

    @functools.wraps(step)
    def compute(*args: Any, **kwargs: Any) -> str:
        value = key(*args, **kwargs)
        try:
            codec.encode(value, "cache_key")
        except Unserialisable as error:
            raise Unserialisable(
                f"cache_key of step {short!r} returned a value that has no JSON form: {error.message}",
                field="cache_key",
                got=error.got,
                hint="Return text, numbers, or lists and dicts of them.",
            ) from error
        return hashlib.sha256(_sorted(value)).hexdigest()

    compute.__annotations__ = {**step.__annotations__, "return": str}
    return compute
