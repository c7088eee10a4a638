"""`@flow`: a function that wires steps into a graph. It is traced; its body runs no step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from locktender.base.errors import InvalidFlow
from locktender.flows import running
from locktender.flows.definitions import FlowDef
from locktender.flows.options import FlowSettings
from locktender.flows.registry import registry
from locktender.flows.tracer import current

P = ParamSpec("P")
T = TypeVar("T")


class Flow(Generic[P, T]):
    """A flow: submitted to an engine, run embedded, or called inside another flow, whose steps it joins.

    What holds for a run (tags, priority, deadline, `fail`) is taken from the
    outermost flow alone.
    """

    def __init__(self, definition: FlowDef) -> None:
        self.definition = definition
        functools.update_wrapper(self, definition.fn)

    @property
    def name(self) -> str:
        return self.definition.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        tracer = current()
        if tracer is None:
            short = self.definition.short
            raise InvalidFlow(
                f"flow {short!r} was called outside a flow, where nothing would hold its limits.",
                field=short,
                hint=f"Run it: {short}.run(...), or submit it: client.submit({short}, ...).",
            )
        return cast("T", tracer.inline(self.definition, args, kwargs))

    def run(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs the flow in an engine of this process, through the same gates, and returns its result."""
        return cast("T", running.run_embedded(self.definition, args, kwargs))

    def __repr__(self) -> str:
        return repr(self.definition)


class FlowDecorator(Protocol):
    """What `@flow(...)` with options returns."""

    def __call__(self, fn: Callable[P, T], /) -> Flow[P, T]: ...


@overload
def flow(fn: Callable[P, T], /) -> Flow[P, T]: ...
@overload
def flow(**given: Unpack[FlowSettings]) -> FlowDecorator: ...
def flow(fn: Any = None, /, **given: Any) -> Any:
    """Makes a function a flow: `@flow`, or `@flow(max_parallel=8, tags={"team": "search"})`."""
    if fn is None:
        return functools.partial(_define, given)
    return _define(given, fn)


def _define(given: dict[str, Any], fn: Any) -> Flow[..., Any]:
    definition = FlowDef(fn, given)
    registry.add_flow(definition)
    return Flow(definition)
