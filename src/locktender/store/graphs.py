"""Reads the stored graph of a run, which may be missing or unreadable."""

from __future__ import annotations

import msgspec

from locktender.base.errors import NotFound, UnreadableRow
from locktender.base.graph import Graph, read_graph
from locktender.base.model import RunRow
from locktender.store.protocol import Reading

_FAULTS = (msgspec.MsgspecError, UnicodeError, RecursionError, NotFound)


async def graph_of(store: Reading, digest: str) -> Graph | None:
    """None where it cannot be read: such a run is held, and what else is known of it is shown all the same."""
    try:
        return read_graph(await store.graph(digest))
    except _FAULTS:
        return None


async def required_graph(store: Reading, row: RunRow) -> Graph:
    """For what cannot be done without it."""
    try:
        return read_graph(await store.graph(row.graph))
    except _FAULTS as error:
        raise UnreadableRow(
            f"the graph of run {row.id} cannot be read: {error}",
            field="run",
            got=row.id,
            hint=f"See: locktender why {row.id}",
        ) from None
