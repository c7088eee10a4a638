"""Where `flow.run(...)` finds an engine. Flows know none: the client registers itself here when it is imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from locktender.base.errors import LocktenderError
from locktender.flows.definitions import FlowDef


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
