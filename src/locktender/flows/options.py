"""What `@step`, `with_options` and `@flow` accept, and the checked values made of it."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict

import msgspec

from locktender.base import names
from locktender.base.durations import Duration, microseconds
from locktender.base.errors import InvalidFlow
from locktender.base.graph import Executor, OnError, RetryPolicy, RunIf
from locktender.base.graph_check import MAX_BACKOFF
from locktender.flows.pools import PoolText, parse_pools

StepExecutor = Literal["auto", "async", "thread", "process"]


class SharedSettings(TypedDict, total=False):
    """What a step may set and a single call of it may override."""

    pool: str | None
    """One slot of this pool."""
    pools: Mapping[str, int] | None
    """Slots by pool; `"api[{tenant}]"` is keyed by an argument of that name, else by a tag of the run."""
    retries: int
    retry_delay: Duration
    backoff: float
    jitter: bool
    max_retry_delay: Duration
    timeout: Duration | None
    """How long one attempt may run."""
    queue_timeout: Duration | None
    """How long it may wait at its gates."""
    dispatch_deadline: Duration | None
    """How long it may wait for a worker once every other gate is open."""
    executor: StepExecutor
    needs: Mapping[str, str] | None
    """Labels a worker must have: `{"gpu": "a100"}`."""
    affinity: str | None
    """A preference for the worker that last had a task with the same text, of whatever run."""
    max_abandons: int
    """Fails with `worker_lost` after this many workers died with it."""


class StepSettings(SharedSettings, total=False):
    """What `@step(...)` accepts."""

    name: str | None
    retry_on: tuple[type[Exception], ...] | type[Exception] | None
    """Retry only after these; every other exception is final."""
    version: str | int | None
    """Pins tasks to workers that have this version of the step."""


class CallSettings(SharedSettings, total=False):
    """What `step.with_options(...)` accepts, for one call."""

    name: str
    after: object
    """A handle or several: order without passing data."""
    when: object
    """A handle, a condition on handles, or a plain bool; false skips the step."""
    run_if: RunIf
    on_failure: Any
    """A step without arguments that runs if this one fails for good."""


class FlowSettings(TypedDict, total=False):
    """What `@flow(...)` accepts."""

    name: str | None
    max_parallel: int | Mapping[str, int] | None
    """Tasks of one run in flight, in total or per executor."""
    sequential: bool
    fail: Literal["continue", "fast"]
    tags: Mapping[str, str | int | bool] | None
    priority: int
    queue_timeout: Duration | None
    dispatch_deadline: Duration | None
    deadline: Duration | None
    """The run ends *timed_out* this long after it was submitted."""
    on_failure: Any
    """A step without arguments that runs if anything fails."""
    version: str | int | None


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


def refuse_unknown(given: Mapping[str, Any], known: Any, what: str) -> None:
    """An option nobody knows is a mistake, said with the nearest one."""
    accepted = known.__optional_keys__
    for key in given:
        if key not in accepted:
            raise InvalidFlow(
                f"{what} has no option {key!r}.",
                field=key,
                got=given[key],
                hint=names.did_you_mean(key, accepted),
            )


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
        changes["retries"] = names.count(given["retries"], "retries", minimum=0, maximum=1_000_000)
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
