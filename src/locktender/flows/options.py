"""What `@step`, `with_options` and `@flow` accept, and the checked values made of it.

Pools are written `"db"`, `"api[acme]"` or `"api[{tenant}]"`.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import re
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, ParamSpec, TypeVar, cast

import msgspec

from locktender.base import names
from locktender.base.durations import microseconds
from locktender.base.errors import InvalidFlow
from locktender.base.graph import CacheScope, Executor, OnError, RetryPolicy, RunIf
from locktender.base.graph_check import MAX_BACKOFF
from locktender.base.tracebacks import public
from locktender.flows.function import annotation_text

_POOL = re.compile(r"([^\[\]{}]+)(?:\[(.+)\])?")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_HINT = "Write 'db', 'api[acme]', or 'api[{tenant}]' with an argument's name or a tag in braces."


@dataclass(frozen=True, slots=True)
class Placeholder:
    """`{name}` in a pool's key: an argument of the step, or a tag of the run."""

    name: str


@dataclass(frozen=True, slots=True)
class PoolText:
    """A pool as written, taken apart."""

    name: str
    slots: int
    key: tuple[str | Placeholder, ...] = ()


def parse_pools(pool: object, pools: object) -> tuple[PoolText, ...]:
    """The pools of `pool="db"` and `pools={"db": 2}` together; the same one twice is refused."""
    found: list[PoolText] = []
    if pool is not None:
        found.append(_parse(pool, 1, "pool"))
    if pools is not None:
        if not isinstance(pools, Mapping):
            raise InvalidFlow(
                "pools must be a mapping of names to slots.",
                field="pools",
                got=pools,
                hint='e.g. pools={"db": 2}; for one slot of one pool: pool="db".',
            )
        pairs: list[tuple[object, object]] = list(pools.items())  # pyright: ignore[reportUnknownArgumentType]
        found += [_parse(name, slots, f"pools.{name}") for name, slots in pairs]
    seen: set[tuple[str, tuple[str | Placeholder, ...]]] = set()
    for each in found:
        if (each.name, each.key) in seen:
            raise InvalidFlow(
                f"pool {each.name!r} is named twice.",
                field="pools",
                got=each.name,
                hint="Give it in pool= or in pools=, not in both.",
            )
        seen.add((each.name, each.key))
    return tuple(found)


def _parse(text: object, slots: object, field: str) -> PoolText:
    written = names.name(text, field)
    match = _POOL.fullmatch(written)
    if match is None:
        raise InvalidFlow(
            f"{written!r} is not a pool's name.", field=field, got=written, hint=_HINT
        )
    key = () if match[2] is None else _parse_key(match[2], written, field)
    return PoolText(
        name=names.name(match[1], field), slots=names.count(slots, f"{field}.slots"), key=key
    )


def _parse_key(text: str, written: str, field: str) -> tuple[str | Placeholder, ...]:
    # split() with one group alternates literal text and the names in braces.
    pieces = _PLACEHOLDER.split(text)
    parts: list[str | Placeholder] = []
    for index, piece in enumerate(pieces):
        named = index % 2 == 1
        if (named and not piece.strip()) or (not named and set(piece) & set("[]{}*")):
            raise InvalidFlow(
                f"the key of pool {written!r} cannot be read.", field=field, got=written, hint=_HINT
            )
        if named:
            parts.append(Placeholder(piece.strip()))
        elif piece:
            parts.append(piece)
    return tuple(parts)


P = ParamSpec("P")
T = TypeVar("T")
StepExecutor = Literal["auto", "async", "thread", "process"]


MAX_RETRIES = 1_000_000
_MEANT = {"retry": "retries", "attempts": "retries", "concurrency": "max_parallel"}
"""Options of other engines → ours; spelling alone would suggest another one."""

_OF_A_RUN = ("priority", "tags", "key", "deadline", "on_duplicate")
_OF_A_MAP = ("window", "on_error", "take_errors")
_NO_RETRIES = RetryPolicy()


@dataclass(frozen=True, slots=True)
class StepOptions:
    """How a step runs, checked and with every default filled in."""

    executor: Executor = "thread"
    pools: tuple[PoolText, ...] = ()
    retry: RetryPolicy = _NO_RETRIES
    timeout_us: int | None = None
    queue_timeout_us: int | None = None
    dispatch_deadline_us: int | None = None
    needs: Mapping[str, str] = field(default_factory=dict[str, str])
    affinity: str | None = None
    max_abandons: int = 3
    cache_us: int | None = None
    cache_by: tuple[str, ...] = ()
    """Arguments that tell calls apart; empty: all."""
    cache_scope: CacheScope = "flow"
    cache_computed: bool = False
    """A function of the user's tells calls apart."""


class _AsSet:
    """The default of an option that stays as the step has it."""

    def __repr__(self) -> str:
        return "..."


def keyword_options(
    what: str, apply: Callable[..., Any]
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorates a signature without a body: calls go to `apply(*args, given)`.

    The signature shows every option to `help()` and editors, and `given` holds
    only those that were written; an unknown one is refused with the nearest.
    """

    def decorate(shown: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(shown)
        accepted = [
            each.name for each in signature.parameters.values() if each.kind is each.KEYWORD_ONLY
        ]

        @public
        @functools.wraps(shown)
        def call(*args: Any, **given: Any) -> Any:
            refuse_unknown(given, accepted, what)
            return apply(*args, given)

        call.__signature__ = readable(signature)  # type: ignore[attr-defined]
        return cast("Callable[P, T]", call)

    return decorate


def show_options(function: Any) -> list[str]:
    """Gives a decorator the signature of its last overload, which has the options; returns their names."""
    signature = inspect.signature(typing.get_overloads(function)[-1])
    options = list(signature.parameters.values())
    first = inspect.Parameter("fn", inspect.Parameter.POSITIONAL_ONLY, default=None)
    function.__signature__ = readable(signature.replace(parameters=[first, *options]))
    return [each.name for each in options]


def readable(signature: inspect.Signature) -> inspect.Signature:
    """Annotations without quotes, and `...` as it is written."""
    return signature.replace(
        parameters=[
            each.replace(
                annotation=annotation_text(each.annotation),
                default=_AsSet() if each.default is ... else each.default,
            )
            for each in signature.parameters.values()
        ],
        return_annotation=annotation_text(signature.return_annotation),
    )


def refuse_unknown(given: Mapping[str, Any], accepted: Collection[str], what: str) -> None:
    """An unknown option is refused with the nearest known one."""
    for key in given:
        if key not in accepted:
            meant = _MEANT.get(key)
            raise InvalidFlow(
                f"{what} has no option {key!r}.",
                field=key,
                got=given[key],
                hint=f"Did you mean {meant!r}?"
                if meant in accepted
                else _elsewhere(key, accepted) or names.did_you_mean(key, accepted),
            )


def _elsewhere(key: str, accepted: Collection[str]) -> str:
    """Where an option belongs that is not one of these."""
    known = (*accepted, *_OF_A_RUN, *_OF_A_MAP)
    near = next(iter(difflib.get_close_matches(key, known, n=1, cutoff=0.75)), "")
    if near in accepted or not near:
        return ""
    if near in _OF_A_MAP:
        return f"Did you mean {near!r}? It is given to a map: step.map(items, {near}=...)."
    return f"Did you mean {near!r}? It is given to a run: submit(flow, ..., {near}=...)."


def merged(
    base: StepOptions, given: Mapping[str, Any], *, is_async: bool, local: str
) -> StepOptions:
    """`base` with what was `given` put over it. `local`: why the function cannot be imported, or ''."""
    changes: dict[str, Any] = {}
    if "pool" in given or "pools" in given:
        changes["pools"] = parse_pools(given.get("pool"), given.get("pools"))
    for key in ("timeout", "queue_timeout", "dispatch_deadline"):
        if key in given:
            changes[f"{key}_us"] = None if given[key] is None else microseconds(given[key], key)
    if "executor" in given:
        changes["executor"] = choose_executor(given["executor"], is_async=is_async, local=local)
    if "needs" in given:
        changes["needs"] = names.labels(given["needs"], "needs")
    if "affinity" in given:
        wanted = given["affinity"]
        changes["affinity"] = None if wanted is None else names.name(wanted, "affinity")
    if "max_abandons" in given:
        changes["max_abandons"] = names.count(given["max_abandons"], "max_abandons")
    changes["retry"] = _retry(base.retry, given)
    return replace(base, **changes)


def _retry(base: RetryPolicy, given: Mapping[str, Any]) -> RetryPolicy:
    changes: dict[str, Any] = {}
    if "retries" in given:
        changes["retries"] = names.count(
            given["retries"], "retries", minimum=0, maximum=MAX_RETRIES
        )
    if "retry_delay" in given:
        changes["delay_us"] = microseconds(given["retry_delay"], "retry_delay", minimum=0)
    if "max_retry_delay" in given:
        changes["max_delay_us"] = microseconds(given["max_retry_delay"], "max_retry_delay")
    if "jitter" in given:
        changes["jitter"] = _flag(given["jitter"], "jitter")
    if "backoff" in given:
        changes["backoff"] = _backoff(given["backoff"])
    return msgspec.structs.replace(base, **changes) if changes else base


def _backoff(value: object) -> float:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if not 1 <= number <= MAX_BACKOFF:  # NaN compares false with everything
        raise InvalidFlow(
            f"backoff must be a number between 1 and {MAX_BACKOFF:,.0f}.",
            field="backoff",
            got=value,
            hint="1 waits the same time before each retry, 2 doubles it.",
        )
    return float(number)


def _flag(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidFlow(f"{what} must be True or False.", field=what, got=value)
    return value


def flag(given: Mapping[str, Any], what: str) -> bool:
    return _flag(given.get(what, False), what)


def choose_executor(value: object, *, is_async: bool, local: str) -> Executor:
    """The executor for a function; what cannot work is refused where it is written."""
    known = typing.get_args(StepExecutor)
    if value not in known:
        raise InvalidFlow(
            f"executor must be one of {', '.join(known)}.",
            field="executor",
            got=value,
            hint=names.nearest(value, known),
        )
    if value == "auto":
        return "async" if is_async else "thread"
    if is_async and value != "async":
        raise InvalidFlow(
            f"an async function cannot run in a {value}.",
            field="executor",
            got=value,
            hint="Define it with def, or leave executor out.",
        )
    if not is_async and value == "async":
        raise InvalidFlow(
            "a plain function would block the event loop.",
            field="executor",
            got=value,
            hint="Define it with async def, or leave executor out to run it in a thread.",
        )
    if value == "process" and local:
        raise InvalidFlow(
            f"another process cannot import {local!r}.",
            field="executor",
            got=value,
            hint="Move the function to module level, or use executor='thread'.",
        )
    return typing.cast("Executor", value)


def one_of(value: object, known: tuple[str, ...], what: str) -> Any:
    if value not in known:
        raise InvalidFlow(
            f"{what} must be one of {', '.join(known)}.",
            field=what,
            got=value,
            hint=names.nearest(value, known),
        )
    return value


RUN_IF: tuple[str, ...] = typing.get_args(RunIf)
ON_ERROR: tuple[str, ...] = typing.get_args(OnError)


def retry_on(value: object) -> tuple[type[Exception], ...] | None:
    """Exception classes, checked; None means every exception."""
    if value is None:
        return None
    several: tuple[object, ...] = tuple(value) if isinstance(value, tuple | list) else (value,)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    checked = [each for each in several if isinstance(each, type) and issubclass(each, Exception)]
    if len(checked) < len(several):
        raise InvalidFlow(
            "retry_on takes exception classes.",
            field="retry_on",
            got=repr(several),
            hint="e.g. retry_on=(TimeoutError, ConnectionError).",
        )
    return tuple(checked)
