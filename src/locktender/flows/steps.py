"""`@step`: a function a worker can run.

How it is typed. Inside a flow a step's call returns a handle, but it is typed
as the result itself: so handles go into other steps, are compared and picked
apart under a strict type checker without a cast. The price is an async step
outside a flow: it returns a coroutine there as ever, but `await step(...)` is
typed as awaiting the result; a strictly typed test awaits `step.fn(...)`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import (
    Any,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    overload,
)

from locktender.base.codec import StepError
from locktender.base.durations import Duration, microseconds
from locktender.base.errors import InvalidFlow
from locktender.base.graph import CacheScope, RunIf
from locktender.base.tracebacks import public
from locktender.flows import options
from locktender.flows.definitions import StepCall, StepDef
from locktender.flows.registry import registry
from locktender.flows.tracer import current


class Retry(Exception):
    """Try again, after `after` if given, else by the step's back-off. Counts against `retries`."""

    def __init__(self, message: str = "", after: Duration | None = None) -> None:
        super().__init__(message or "the step asked to be retried")
        self.after_us: int | None = (
            None if after is None else microseconds(after, "after", minimum=0)
        )


class Fatal(Exception):
    """Do not try again: another attempt cannot help."""


P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
Item_contra = TypeVar("Item_contra", contravariant=True)
Result_co = TypeVar("Result_co", covariant=True)


class _TakesItem(Protocol[Item_contra, Result_co]):
    """A step as `map` calls it. A type checker reads from it what the items are: mypy cannot from `P`."""

    def __call__(self, item: Item_contra, /, *args: Any, **kwargs: Any) -> Result_co: ...


def _override(step: Step[..., Any], given: Mapping[str, Any]) -> Step[..., Any]:
    return type(step)(step.call.override(given))


class Step(Generic[P, T]):
    """A step, made by `@step`: called in a flow it adds a task to the run and returns a handle.

    Called anywhere else, a test for example, it just calls the function.
    """

    fn: Callable[P, T]
    """The function itself."""

    def __init__(self, call: StepCall) -> None:
        self.call = call
        self.definition: StepDef = call.step
        functools.update_wrapper(self, call.step.fn)
        self.fn = call.step.fn

    @property
    def name(self) -> str:
        """`module:function`, or the name given to `@step`."""
        return self.definition.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """In a flow: the handle of a new task, typed as its result. Elsewhere: calls the function."""
        tracer = current()
        if tracer is None:
            return self.fn(*args, **kwargs)
        return tracer.call(self.call, args, kwargs)  # type: ignore[return-value]

    # Both fit items that are no errors: then the first one is meant, which says so.
    @overload
    def map(  # pyright: ignore[reportOverlappingOverload]
        self: _TakesItem[A, T],
        items: Iterable[A],
        /,
        *,
        window: int | None = None,
        on_error: Literal["fail"] = "fail",
        take_errors: bool = False,
        **shared: Any,
    ) -> list[T]: ...
    @overload
    def map(
        self: _TakesItem[A, T],
        items: Iterable[A | StepError],
        /,
        *,
        window: int | None = None,
        on_error: Literal["fail", "collect"] = "fail",
        take_errors: Literal[False] = False,
        **shared: Any,
    ) -> list[T | StepError]: ...
    @overload
    def map(
        self: _TakesItem[A, T],
        items: Iterable[A],
        /,
        *,
        window: int | None = None,
        on_error: Literal["collect"],
        take_errors: bool = False,
        **shared: Any,
    ) -> list[T | StepError]: ...
    def map(
        self,
        items: Any,
        /,
        *,
        window: int | None = None,
        on_error: Literal["fail", "collect"] = "fail",
        take_errors: bool = False,
        **shared: Any,
    ) -> Any:
        """One task per item; the results are a list in the order of the items.

        items       a list, a range, or a handle of a list: at most 100,000 items; the step's first
                    parameter takes the item
        window      how many items may be in flight at once, 1 or more; default None, no bound
        on_error    "fail" (default): a failed item fails the map; "collect": it arrives as a
                    `StepError` in the list
        take_errors False (default): the body is not called for an item that is a `StepError`; the
                    error is passed on as its result. True: the body is called with it
        **shared    every other argument of the step, the same for all items

            texts = download.map(names, window=3, mirror="eu")
        """
        options.one_of(on_error, options.ON_ERROR, "on_error")
        options.flag({"take_errors": take_errors}, "take_errors")
        tracer = current()
        if tracer is not None:
            return tracer.map(self.call, items, shared, window, on_error, take_errors)
        if self.definition.is_async:
            raise InvalidFlow(
                f"step {self.definition.short!r} is async: outside a flow it cannot be mapped.",
                field=self.definition.short,
                hint="Use asyncio.gather(*(step(item) for item in items)).",
            )
        function: Callable[..., Any] = self.fn
        return [
            item if isinstance(item, StepError) and not take_errors else function(item, **shared)
            for item in items
        ]

    @options.keyword_options("with_options", _override)
    def with_options(
        self,
        *,
        name: str = ...,
        after: object = ...,
        when: object = ...,
        run_if: RunIf = ...,
        on_failure: Step[..., Any] | None = ...,
        pool: str | None = ...,
        pools: Mapping[str, int] | None = ...,
        retries: int = ...,
        retry_delay: Duration = ...,
        backoff: float = ...,
        jitter: bool = ...,
        max_retry_delay: Duration = ...,
        timeout: Duration | None = ...,
        queue_timeout: Duration | None = ...,
        dispatch_deadline: Duration | None = ...,
        executor: options.StepExecutor = ...,
        needs: Mapping[str, str] | None = ...,
        affinity: str | None = ...,
        max_abandons: int = ...,
        cache: Duration | None = ...,
        cache_key: str | Sequence[str] | None = ...,
        cache_scope: CacheScope = ...,
    ) -> Self:
        """The same step with other options, for the calls made through what is returned.

        An option that is not given stays as the step has it. Beside the options of
        `@step` (without `retry_on` and `version`), those of one call in a flow:

        name        what this call is named in the run; default the step's name, numbered if repeated
        after       handles of steps to wait for without taking their results; default none
        when        a handle, a condition on handles (`total > 3`), or a bool; false skips the step
        run_if      "success" (default) runs after steps that succeeded, "failure" only if one of
                    them failed for good, "always" in any case
        on_failure  a step that runs if this call fails for good; if its first parameter has no
                    default, it gets the failure as a `StepError`; default none

            publish.with_options(when=total > 100, timeout="30s")(report)
        """
        ...  # noqa: PIE790 — marks a signature without a body for the type checker

    def __repr__(self) -> str:
        return repr(self.definition)


class AsyncStep(Step[P, T]):
    """A step defined with `async def`; `T` is what awaiting it gives."""

    fn: Callable[P, Coroutine[Any, Any, T]]  # type: ignore[assignment]


class StepDecorator(Protocol):
    """What `@step(...)` with options returns."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, T]], /) -> AsyncStep[P, T]: ...
    @overload
    def __call__(self, fn: Callable[P, T], /) -> Step[P, T]: ...


@overload
def step(fn: Callable[P, Coroutine[Any, Any, T]], /) -> AsyncStep[P, T]: ...
@overload
def step(fn: Callable[P, T], /) -> Step[P, T]: ...
@overload
def step(
    *,
    name: str | None = None,
    pool: str | None = None,
    pools: Mapping[str, int] | None = None,
    retries: int = 0,
    retry_delay: Duration = "1s",
    backoff: float = 2.0,
    jitter: bool = True,
    max_retry_delay: Duration = "1h",
    timeout: Duration | None = None,
    queue_timeout: Duration | None = None,
    dispatch_deadline: Duration | None = None,
    executor: options.StepExecutor = "auto",
    needs: Mapping[str, str] | None = None,
    affinity: str | None = None,
    max_abandons: int = 3,
    retry_on: type[Exception] | tuple[type[Exception], ...] | None = None,
    version: str | int | None = None,
    cache: Duration | None = None,
    cache_key: str | Sequence[str] | Callable[..., Any] | None = None,
    cache_scope: CacheScope = "flow",
) -> StepDecorator: ...
@public
def step(fn: Any = None, /, **given: Any) -> Any:
    """Makes a function a step: called in a flow it becomes a task of the run.

    name               default `module:function`; workers find the step by this name
    pool, pools        slots it holds while it runs: one of a pool (`pool="db"`), or several
                       (`pools={"memory": 4}`); `"api[{tenant}]"` has one pool per value of the
                       argument, or else the tag, of that name; default none
    retries            attempts after the first one, 0 to 1,000,000; default 0
    retry_delay        back-off before the first retry; default "1s"
    backoff            factor from each retry to the next, 1 to 1,000; default 2.0
    jitter             takes up to half off each back-off, by a hash of the task; default True
    max_retry_delay    the longest back-off; default "1h"
    retry_on           retry only after these exceptions; default None: after every one
    timeout            how long one attempt may run; default None, no bound
    queue_timeout      how long it may wait at its limits; default: the flow's
    dispatch_deadline  how long it may wait for a worker once every limit has room; default: the flow's
    executor           "auto" (default: `async def` on the event loop, `def` in a thread), "async",
                       "thread", or "process" for CPU-bound work
    needs              labels its worker must have: `{"gpu": "a100"}`; default none
    affinity           prefers the worker that last ran a task with the same text; default none
    max_abandons       fails with `worker_lost` after this many workers died with it; default 3
    version            pins tasks to workers that have this version of the step; default none
    cache              for how long a result is kept: a call with the same arguments then takes it, and
                       no body runs; default None: not at all
    cache_key          what "the same" means: names of arguments, or a function of the arguments;
                       default None: all arguments
    cache_scope        who shares results: runs of the same "flow" (default), or "everywhere"

    Durations are "500ms", "90s", "1h30m", seconds, or a timedelta.

        @step(pools={"api": 1}, retries=3, timeout="2m")
        async def download(accession: str) -> str: ...
    """
    options.refuse_unknown(given, _OPTIONS, "@step")
    if fn is None:
        return functools.partial(_define, given)
    return _define(given, fn)


_OPTIONS = options.show_options(step)


@public
def _define(given: dict[str, Any], fn: Any) -> Step[..., Any]:
    definition = StepDef(fn, given)
    registry.add_step(definition)
    if definition.key is not None:
        registry.add_step(definition.key)
    call = StepCall(definition, definition.options)
    return AsyncStep(call) if definition.is_async else Step(call)
