"""Steps and flows as the rest of the engine sees them: no type parameters, nothing to trace with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast, get_args

from locktender.base import codec, names
from locktender.base.durations import microseconds
from locktender.base.errors import InvalidFlow, InvalidInput, InvalidResult, Unserialisable
from locktender.base.graph import Executor, RunIf
from locktender.base.jsonable import StepError, spoken
from locktender.base.schedule_options import make_spec
from locktender.base.schedules import ScheduleSpec
from locktender.base.secrets import MARK
from locktender.flows import caching, options
from locktender.flows.function import Function, takes_errors
from locktender.flows.trace_cache import TraceCache

MAX_SHOWN = 100
_CACHE = ("cache", "cache_key", "cache_scope")


class StepDef(Function):
    """A step: what a worker needs to run it."""

    kind = "step"
    opens_secrets: ClassVar[bool] = True
    """Its body gets the values of secrets, not the references."""
    elsewhere: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("after", "when", "run_if", "on_failure", "pool", "pools", "retries", "retry_delay",
             "timeout", "queue_timeout", "dispatch_deadline", "executor", "needs", "affinity",
             "cache", "cache_key", "cache_scope"),
            ", given as step.with_options(...)(...)",
        ),
        **dict.fromkeys(("window", "on_error", "take_errors"), ", given to step.map(...)"),
        **dict.fromkeys(("priority", "tags", "deadline"), ", given to submit(...)"),
    }  # fmt: skip

    def __init__(self, fn: Callable[..., Any], given: Mapping[str, Any]) -> None:
        super().__init__(
            fn,
            given.get("name"),
            given.get("version"),
            importable=given.get("executor") == "process",
        )
        self.is_async: bool = inspect.iscoroutinefunction(fn)
        self.retry_on: tuple[type[Exception], ...] | None = options.retry_on(given.get("retry_on"))
        start = options.StepOptions(executor="async" if self.is_async else "thread")
        self.options: options.StepOptions = self.merge(start, given, defines=True)
        self.key: KeyDef | None = KeyDef(self, given) if self.options.cache_computed else None
        """The step that computes what its results are kept under."""

    def merge(
        self, base: options.StepOptions, given: Mapping[str, Any], *, defines: bool = False
    ) -> options.StepOptions:
        local = self.qualname if self.is_local else ""
        found = options.merged(base, given, is_async=self.is_async, local=local)
        if given.keys().isdisjoint(_CACHE):
            return found
        return replace(found, **caching.changes(self, base, given, defines=defines))

    @property
    def executor(self) -> Executor:
        return self.options.executor

    @property
    def timeout_us(self) -> int | None:
        return self.options.timeout_us

    def encode_result(self, value: object) -> bytes:
        """The step's result as JSON.

        Raises `Unserialisable` for what has no JSON form, and `InvalidResult` for what
        a reader could not take back by the step's return annotation.
        """
        try:
            raw = codec.encode(value, "result")
        except Unserialisable as error:
            raise Unserialisable(
                f"unserialisable_result: step {self.short!r} returned a value that cannot be kept:"
                f" {error.message}",
                field=error.field,
                got=error.got,
                hint=error.hint,
            ) from error
        if MARK in raw:
            raise Unserialisable(
                f"unserialisable_result: step {self.short!r} returned a secret, which is known to workers only.",
                field="result",
                hint="Give the secret to each step that needs it, as an argument of the flow or in its body.",
            )
        if self._result_decoder is not None:
            try:
                self._result_decoder(raw, "result")
            except InvalidInput as error:
                if not codec.is_unreadable(error):
                    raise self._contradiction(value, error) from error
        return raw

    def _contradiction(self, value: object, error: InvalidInput) -> InvalidResult:
        wanted = spoken(self.returns)
        return InvalidResult(
            f"step {self.short!r} is annotated to return {wanted} but returned {_shown(value)}:"
            f" {str(error.__cause__ or error.message).rstrip('.')}.",
            field="result",
            got=value,
            hint="Return that, or change the annotation.",
        )

    def __repr__(self) -> str:
        return f"<step {self.name}>"


class KeyDef(StepDef):
    """Computes, before a step whose `cache_key` is a function, what the result is kept under."""

    opens_secrets: ClassVar[bool] = False

    def __init__(self, step: StepDef, given: Mapping[str, Any]) -> None:
        fn = caching.key_function(step.fn, given["cache_key"], step.short)
        same = {name: given[name] for name in ("version", "retry_on") if name in given}
        super().__init__(fn, {**same, "name": f"{step.name}.key"})
        self.short: str = f"{step.short}.key"

    def call_for(self, call: StepCall) -> StepCall:
        """Its own call, before `call`: no slots, and on a thread."""
        own = call.options
        mine = replace(
            self.options,
            retry=own.retry,
            timeout_us=own.timeout_us,
            needs=own.needs,
            max_abandons=own.max_abandons,
        )
        return StepCall(self, mine, when=call.when)


@dataclass(frozen=True, slots=True)
class StepCall:
    """A step with what one call of it overrides."""

    step: StepDef
    options: options.StepOptions
    name: str | None = None
    after: object = None
    when: object = None
    run_if: RunIf = "success"
    on_failure: StepCall | None = None

    @property
    def is_fixed(self) -> bool:
        """Whether this call with the same templates, at the same place, always makes the same node.

        Not where a handle or a condition of this very trace is in it, nor where the key
        of a pool may take a default along, which is a value of the run.
        """
        return (
            self.after is None
            and self.when is None
            and self.on_failure is None
            and not any(
                isinstance(part, options.Placeholder)
                for pool in self.options.pools
                for part in pool.key
            )
        )

    def override(self, given: Mapping[str, Any]) -> StepCall:
        changes: dict[str, Any] = {key: given[key] for key in ("after", "when") if key in given}
        if "name" in given:
            changes["name"] = names.name(given["name"], "name")
        if "run_if" in given:
            changes["run_if"] = options.one_of(given["run_if"], options.RUN_IF, "run_if")
        if "on_failure" in given:
            changes["on_failure"] = cleanup(given["on_failure"])
        return replace(self, options=self.step.merge(self.options, given), **changes)


def cleanup(value: Any) -> StepCall | None:
    """The step behind `on_failure=`: it must be callable without arguments, or with the failure alone."""
    if value is None:
        return None
    call = getattr(value, "call", None)
    if not isinstance(call, StepCall):
        raise InvalidFlow(
            "on_failure takes a step.",
            field="on_failure",
            got=value,
            hint="Decorate the function with @step and give it without calling it.",
        )
    step = call.step
    step.bind(("failure",) if takes_failure(step) else (), {})
    wanted = first_annotation(step) if takes_failure(step) else StepError
    if not takes_errors(wanted):
        raise InvalidFlow(
            f"on_failure calls step {step.short!r} with the failure, but its first parameter is {spoken(wanted)}.",
            field="on_failure",
            got=step.spoken,
            hint="Annotate it with StepError, or give it a default: then it is called without the failure.",
        )
    return call


def takes_failure(step: StepDef) -> bool:
    """Whether `on_failure=` calls the step with the failure: its first parameter has no default."""
    first = next(iter(step.parameters.parameters.values()), None)
    return (
        first is not None
        and first.kind in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD)
        and first.default is first.empty
    )


def check_takes_errors(step: StepDef, *, cached: bool) -> None:
    """Refuses `take_errors=True` for a step whose body cannot be called with an error, or that is cached."""
    if cached:
        raise InvalidFlow(
            f"step {step.short!r} takes errors: its results cannot be cached.",
            field="take_errors",
            got=True,
            hint="Use with_options(cache=None), or leave take_errors out: errors are passed on then.",
        )
    wanted = first_annotation(step)
    if not takes_errors(wanted):
        raise InvalidFlow(
            f"take_errors=True calls step {step.short!r} with errors,"
            f" but its first parameter is {spoken(wanted)}.",
            field="take_errors",
            got=step.spoken,
            hint=f"Annotate it with {spoken(wanted)} | StepError, or leave take_errors out:"
            " errors are passed on then.",
        )


def check_takes_error(step: StepDef, name: str, source: str) -> None:
    """Refuses one item of a map that collects errors where a step cannot take one."""
    wanted = _annotation(step, name)
    if not takes_errors(wanted):
        raise InvalidFlow(
            f"step {step.short!r} takes {spoken(wanted)} as {name!r}, but an item of {source!r} may be an error:"
            " the map collects them.",
            field=name,
            got=step.spoken,
            hint=f"Annotate {name!r} with {spoken(wanted)} | StepError, or map over the items:"
            " errors are passed on then.",
        )


def first_annotation(step: StepDef) -> Any:
    return _annotation(step, next(iter(step.parameters.parameters)))


def _annotation(step: StepDef, name: str) -> Any:
    try:
        return step.hints.get(name, Any)
    except InvalidFlow:  # a name that is defined further down
        return Any


class FlowDef(Function):
    """A flow: its function and what holds for a run of it."""

    kind = "flow"
    elsewhere: ClassVar[Mapping[str, str]] = dict.fromkeys(
        (
            "tags",
            "priority",
            "key",
            "on_duplicate",
            "deadline",
            "queue_timeout",
            "dispatch_deadline",
        ),
        ", an option of submit",
    )
    max_parallel: int | None
    max_parallel_by: dict[str, int]

    def __init__(self, fn: Callable[..., Any], given: Mapping[str, Any]) -> None:
        if inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
            raise InvalidFlow(
                f"flow {fn.__name__!r} is async.",
                field="flow",
                got=fn.__qualname__,
                hint="Use plain def: a flow only wires steps together; the steps may be async.",
            )
        super().__init__(fn, given.get("name"), given.get("version"))
        self.max_parallel, self.max_parallel_by = _parallel(given.get("max_parallel"))
        self.sequential: bool = options.flag(given, "sequential")
        self.fail: Literal["continue", "fast"] = options.one_of(
            given.get("fail", "continue"), ("continue", "fast"), "fail"
        )
        self.tags: dict[str, str] = names.tags(given.get("tags"))
        self.priority: int = names.priority(given.get("priority", 0))
        self.queue_timeout_us: int | None = _span(given, "queue_timeout")
        self.dispatch_deadline_us: int | None = _span(given, "dispatch_deadline")
        self.deadline_us: int | None = _span(given, "deadline")
        self.on_failure: StepCall | None = cleanup(given.get("on_failure"))
        self.schedule: ScheduleSpec | None = _schedule(self.name, given.get("schedule"))
        """What workers declare; an operator's own setting wins."""
        self.trace_cache: TraceCache = TraceCache()

    def __repr__(self) -> str:
        return f"<flow {self.name}>"


def _schedule(flow: str, value: object) -> ScheduleSpec | None:
    if value is None:
        return None
    given: dict[str, Any] = {"cron": value} if isinstance(value, str) else dict(cast("Any", value))
    known = inspect.signature(make_spec).parameters.keys() - {"flow"}
    options.refuse_unknown(given, tuple(sorted(known)), "schedule")
    return make_spec(flow, **given)


def _shown(value: object) -> str:
    """`None`, `str 'x'`: what a step returned, in short."""
    if value is None:
        return "None"
    try:
        text = repr(value)
    except Exception as broken:  # noqa: BLE001 — a user's __repr__ may do anything
        text = f"(its repr fails: {type(broken).__name__})"
    return f"{type(value).__name__} {text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + '…'}"


def _span(given: Mapping[str, Any], key: str) -> int | None:
    value = given.get(key)
    return None if value is None else microseconds(value, key)


_HINT = 'Use 1 or more, {"process": 4} for one executor, or leave it out for no bound.'


def _parallel(value: object) -> tuple[int | None, dict[str, int]]:
    if value is None:
        return None, {}
    if not isinstance(value, Mapping):
        return _bound(value, "max_parallel"), {}
    pairs: list[tuple[object, object]] = list(value.items())  # pyright: ignore[reportUnknownArgumentType]
    known = tuple(each for each in get_args(options.StepExecutor) if each != "auto")
    return None, {
        options.one_of(executor, known, "max_parallel"): _bound(most, f"max_parallel.{executor}")
        for executor, most in pairs
    }


def _bound(value: object, field: str) -> int:
    try:
        return names.count(value, field)
    except InvalidInput as error:
        raise InvalidFlow(error.message, field=error.field, got=value, hint=_HINT) from error
