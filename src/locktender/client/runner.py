"""What `flow.run(...)` calls: the flow in an embedded engine, which is imported on the first call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from locktender.base.errors import WaitTimeout
from locktender.flows import flows
from locktender.flows.definitions import FlowDef

if TYPE_CHECKING:
    from locktender.client.client import Client


CANCEL_SECONDS = 5


def run_embedded(flow: FlowDef, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    embedding: Any = import_module("locktender.client.open")
    client: Client = embedding.embedded()
    with client:
        run = client.submit_call(flow, args, kwargs)
        try:
            return run.result()
        except KeyboardInterrupt:
            # Whoever interrupts a call does not expect the next program to go on with it.
            run.cancel("interrupted")
            with suppress(WaitTimeout):
                run.wait(CANCEL_SECONDS)
            raise


flows.register(run_embedded)
