"""Large values: what was put away as blobs, back in the rows of whoever looks into it."""

from __future__ import annotations

import msgspec

from locktender.base import codec
from locktender.base.changes import TaskRow
from locktender.base.graph import Graph
from locktender.base.model import RunRow
from locktender.kernel.advance import looked_into
from locktender.store.protocol import Store


async def open_values(store: Store, row: RunRow) -> RunRow:
    """`row` with parameters and constants that were put away as blobs."""
    if codec.is_blob(row.params):
        row = msgspec.structs.replace(row, params=await fetch(store, row.params))
    if codec.is_blob(row.consts):
        row = msgspec.structs.replace(row, consts=await fetch(store, row.consts))
    return row


async def open_output(store: Store, graph: Graph, row: TaskRow) -> TaskRow:
    """A row of a run that is picked up, with its output in place if the graph looks into it."""
    if row.output is None or not codec.is_blob(row.output) or row.node not in looked_into(graph):
        return row
    return row._replace(output=await fetch(store, row.output))


async def fetch(store: Store, value: bytes) -> bytes:
    """What a reference stands for; any other value is itself."""
    ref = codec.is_blob(value)
    return value if ref is None else await store.get_blob(ref[0])
