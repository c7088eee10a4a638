"""What `flow.run(...)` calls: the flow in an embedded engine, which is imported on the first call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from locktender.base.errors import InvalidFlow, WaitTimeout
from locktender.flows import flows
from locktender.flows.definitions import FlowDef
from locktender.flows.tracer import current as current_trace

if TYPE_CHECKING:
    from locktender.client.client import Client


CANCEL_SECONDS = 5


def run_embedded(flow: FlowDef, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    _refuse_in_bodies(flow)
    embedding: Any = import_module("locktender.client.open")
    client: Client = embedding.embedded()
    with client:
        run = client.submit_call(flow, args, kwargs)
        try:
            return run.result()
        except KeyboardInterrupt:
            # A user who interrupts a call does not expect the next program to continue it.
            run.cancel("interrupted")
            with suppress(WaitTimeout):
                run.wait(CANCEL_SECONDS)
            raise


def _refuse_in_bodies(flow: FlowDef) -> None:
    """Raises in the body of a flow or step: its own engine's limits would not hold for what runs here."""
    short = flow.short
    if current_trace() is not None:
        where, hint = "a flow", f"Call it there, and its steps join the flow: {short}(...)."
    elif import_module("locktender.worker.executors.current").current() is not None:
        where = "a step"
        hint = (
            f"Call it in the body of the flow: {short}(...). Or submit it to the engine's own store:"
            f" connect(url).submit({short}, ...); in an async step connect_async(url)."
        )
    else:
        return
    raise InvalidFlow(
        f"flow {short!r} cannot run() in the body of {where}: a second engine would start, on the default"
        " store and outside all limits of this one.",
        field=short,
        hint=hint,
    )


flows.register(run_embedded)
