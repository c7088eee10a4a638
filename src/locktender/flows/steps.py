"""`@step`: a function a worker can run.

How it is typed. Inside a flow a step's call returns a handle, but it is typed
as the result itself: so handles go into other steps, are compared and picked
apart under a strict type checker without a cast. The price is an async step
outside a flow: it returns a coroutine there as ever, but `await step(...)` is
typed as awaiting the result; a strictly typed test awaits `step.fn(...)`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable
from typing import (
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    overload,
)

from locktender.base.codec import StepError
from locktender.base.errors import InvalidFlow
from locktender.flows import options
from locktender.flows.definitions import StepCall, StepDef
from locktender.flows.registry import registry
from locktender.flows.tracer import current

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")


class Step(Generic[P, T]):
    """A step: called in a flow it records a node, called anywhere else it just calls the function."""

    fn: Callable[P, T]
    """The function itself."""

    def __init__(self, call: StepCall) -> None:
        self.call = call
        self.definition: StepDef = call.step
        functools.update_wrapper(self, call.step.fn)
        self.fn = call.step.fn

    @property
    def name(self) -> str:
        return self.definition.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        tracer = current()
        if tracer is None:
            return self.fn(*args, **kwargs)
        return tracer.call(self.call, args, kwargs)  # type: ignore[return-value]

    @overload
    def map(
        self: Step[Concatenate[A, ...], T],
        items: Iterable[A],
        /,
        *,
        window: int | None = None,
        on_error: Literal["fail"] = "fail",
        **shared: Any,
    ) -> list[T]: ...
    @overload
    def map(
        self: Step[Concatenate[A, ...], T],
        items: Iterable[A],
        /,
        *,
        window: int | None = None,
        on_error: Literal["collect"],
        **shared: Any,
    ) -> list[T | StepError]: ...
    def map(
        self,
        items: Any,
        /,
        *,
        window: int | None = None,
        on_error: Literal["fail", "collect"] = "fail",
        **shared: Any,
    ) -> Any:
        """One task per item, at most `window` in flight. The first parameter takes the item, `shared` goes to all.

        With `on_error="fail"` a failed item fails the map; with `"collect"` it
        arrives as a `StepError` in the list. Results keep the order of the items.
        """
        options.one_of(on_error, options.ON_ERROR, "on_error")
        tracer = current()
        if tracer is not None:
            return tracer.map(self.call, items, shared, window, on_error)
        if self.definition.is_async:
            raise InvalidFlow(
                f"step {self.definition.short!r} is async: outside a flow it cannot be mapped.",
                field=self.definition.short,
                hint="Use asyncio.gather(*(step(item) for item in items)).",
            )
        function: Callable[..., Any] = self.fn
        return [function(item, **shared) for item in items]

    def with_options(self, **given: Unpack[options.CallSettings]) -> Step[P, T]:
        """The same step with other options, for the calls made through what is returned."""
        return Step(self.call.override(given))

    def __repr__(self) -> str:
        return repr(self.definition)


class AsyncStep(Step[P, T]):
    """A step defined with `async def`; `T` is what awaiting it gives."""

    fn: Callable[P, Coroutine[Any, Any, T]]  # type: ignore[assignment]

    def with_options(self, **given: Unpack[options.CallSettings]) -> AsyncStep[P, T]:
        return AsyncStep(self.call.override(given))


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
def step(**given: Unpack[options.StepSettings]) -> StepDecorator: ...
def step(fn: Any = None, /, **given: Any) -> Any:
    """Makes a function a step: `@step`, or `@step(pool="db", retries=3, timeout="2m")`."""
    if fn is None:
        return functools.partial(_define, given)
    return _define(given, fn)


def _define(given: dict[str, Any], fn: Any) -> Step[..., Any]:
    definition = StepDef(fn, given)
    registry.add_step(definition)
    call = StepCall(definition, definition.options)
    return AsyncStep(call) if definition.is_async else Step(call)
