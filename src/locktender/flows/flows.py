"""`@flow`: a function that wires steps into a graph. It is traced; its body runs no step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar, cast, overload

from locktender.base.durations import Duration
from locktender.base.errors import InvalidFlow, LocktenderError
from locktender.base.tracebacks import public
from locktender.flows import options
from locktender.flows.definitions import FlowDef
from locktender.flows.registry import registry
from locktender.flows.steps import Step
from locktender.flows.tracer import current


class Runner(Protocol):
    def __call__(self, flow: FlowDef, args: Sequence[Any], kwargs: Mapping[str, Any], /) -> Any: ...


_runners: list[Runner] = []


def register(runner: Runner) -> None:
    """Makes `runner` what `flow.run` calls; the last one registered serves."""
    _runners[:] = [runner]


def run_embedded(flow: FlowDef, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Runs `flow` in an engine of this process and returns its result."""
    if not _runners:
        raise LocktenderError(
            f"flow {flow.name!r} cannot run: no engine is loaded.",
            hint="Import locktender (not only locktender.flows), which loads the embedded engine.",
        )
    return _runners[0](flow, args, kwargs)


P = ParamSpec("P")
T = TypeVar("T")


class Flow(Generic[P, T]):
    """A flow, made by `@flow`: submit it, run it here, or call it inside another flow.

    Called inside another flow, its steps join the graph of that flow. Tags,
    priority, deadline and `fail` are those of the outermost flow.
    """

    def __init__(self, definition: FlowDef) -> None:
        self.definition = definition
        functools.update_wrapper(self, definition.fn)

    @property
    def name(self) -> str:
        """`module:function`, or the name given to `@flow`."""
        return self.definition.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Inside a flow: adds the steps of this flow to it. Elsewhere it is refused."""
        tracer = current()
        if tracer is None:
            short = self.definition.short
            raise InvalidFlow(
                f"flow {short!r} was called outside a flow, where nothing would hold its limits.",
                field=short,
                hint=f"Submit it: client.submit({short}, ...), or outside of steps run it: {short}.run(...).",
            )
        return cast("T", tracer.inline(self.definition, args, kwargs))

    @public
    def run(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs the flow in an engine of this process and returns its result.

        Arguments are the flow's own. The engine is `embedded()` with default settings
        (`.locktender/locktender.db`), so every stored limit holds; it is closed at the end.
        Raises `RunFailed`, `RunCancelled` or `RunTimedOut`. Refused with `InvalidFlow` in the body
        of a flow (call the flow there) or of a step (submit it with `connect()`).
        """
        return cast("T", run_embedded(self.definition, args, kwargs))

    def __repr__(self) -> str:
        return repr(self.definition)


class FlowDecorator(Protocol):
    """What `@flow(...)` with options returns."""

    def __call__(self, fn: Callable[P, T], /) -> Flow[P, T]: ...


@overload
def flow(fn: Callable[P, T], /) -> Flow[P, T]: ...
@overload
def flow(
    *,
    name: str | None = None,
    max_parallel: int | Mapping[str, int] | None = None,
    sequential: bool = False,
    fail: Literal["continue", "fast"] = "continue",
    tags: Mapping[str, str | int | bool] | None = None,
    priority: int = 0,
    deadline: Duration | None = None,
    queue_timeout: Duration | None = None,
    dispatch_deadline: Duration | None = None,
    on_failure: Step[..., Any] | None = None,
    version: str | int | None = None,
    schedule: str | Mapping[str, Any] | None = None,
) -> FlowDecorator: ...
@public
def flow(fn: Any = None, /, **given: Any) -> Any:
    """Makes a function a flow: its body wires steps together and is traced once per submission.

    name               default `module:function`; workers and the command line find it by this name
    max_parallel       tasks of one run that run at once: a number, or per executor
                       (`{"process": 4}`); default None, no bound
    sequential         steps run one after another, in the order of the calls; default False
    fail               after a failed step, "continue" (default) runs every step that does not need
                       it; "fast" ends what runs and starts nothing more but clean-up steps
    tags               tags of every run, at most 64; `submit(tags=...)` adds to them
    priority           -1,000,000 to 1,000,000, higher first; default 0
    deadline           the run ends *timed_out* this long after it was submitted; default None
    queue_timeout      how long each task may wait at its limits; default: the engine's (None)
    dispatch_deadline  how long each task may wait for a worker once every limit has room for it;
                       default: the engine's ("4h")
    on_failure         a step that runs if any step failed for good; if its first parameter has no
                       default, it gets the first failure as a `StepError`
    version            change it when the steps changed so that old runs must not go on with them
    schedule           runs at set times: a cron expression, or the options of `schedules.set`
                       (`{"every": "15m", "args": {...}}`); the schedule has the flow's name

    Durations are "500ms", "90s", "1h30m", seconds, or a timedelta.

        @flow(max_parallel=8, tags={"team": "search"})
        def build(names: list[str]) -> list[int]:
            return index.map(download.map(names, window=3))
    """
    options.refuse_unknown(given, _OPTIONS, "@flow")
    if fn is None:
        return functools.partial(_define, given)
    return _define(given, fn)


_OPTIONS = options.show_options(flow)


@public
def _define(given: dict[str, Any], fn: Any) -> Flow[..., Any]:
    definition = FlowDef(fn, given)
    registry.add_flow(definition)
    return Flow(definition)
