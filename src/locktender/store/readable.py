"""Which executing runs of a snapshot can be read: their rows, their graphs, their tasks and large values."""

from __future__ import annotations

import asyncio

import msgspec

from locktender.base.changes import TaskRow
from locktender.base.errors import (
    DataRefused,
    InvalidFlow,
    LocktenderError,
    NotLeader,
    StoreError,
    UnreadableRow,
)
from locktender.base.graph import Graph
from locktender.base.graph_check import checked_graph
from locktender.base.ids import run_of
from locktender.base.model import RunRow
from locktender.base.states import RunState
from locktender.store import blob_values
from locktender.store.decode import task_fault
from locktender.store.protocol import Snapshot, StoreBase

ROWS_AT_ONCE = 1_000
"""Between two turns of the loop."""


class ReadableRuns(msgspec.Struct):
    runs: list[RunRow] = []
    tasks: list[TaskRow] = []
    """Of those runs."""
    graphs: dict[str, Graph] = {}
    faults: dict[int, str] = {}
    """The other runs, and why they cannot be read."""


async def readable(store: StoreBase, snapshot: Snapshot) -> ReadableRuns:
    found = ReadableRuns()
    found.faults = {row.seq: row.unreadable for row in snapshot.held if row.state != RunState.HELD}
    unreadable: dict[str, str] = {}
    for digest, body in snapshot.graphs.items():
        try:
            found.graphs[digest] = checked_graph(body)
        except InvalidFlow as error:
            unreadable[digest] = str(error)
    by_run: dict[int, list[TaskRow]] = {}
    for number, task in enumerate(snapshot.tasks, 1):
        # An await that has nothing to wait for lets no other task run: the loop has to be left.
        if not number % ROWS_AT_ONCE:
            await asyncio.sleep(0)
        by_run.setdefault(run_of(task.id), []).append(task)
    for row in snapshot.runs:
        try:
            if row.unreadable:
                raise UnreadableRow(row.unreadable)
            if row.graph not in found.graphs:
                why = unreadable.get(row.graph, f"no graph {row.graph!r} is stored.")
                raise UnreadableRow(why)
            graph = found.graphs[row.graph]
            tasks = by_run.get(row.seq, [])
            opened = await blob_values.open_values(store, row)
            for number, task in enumerate(tasks):
                if not number % ROWS_AT_ONCE:
                    await asyncio.sleep(0)
                if fault := task_fault(task, len(graph.nodes)):
                    raise UnreadableRow(fault)
                if task.output is not None:
                    tasks[number] = await blob_values.open_output(store, graph, task)
        except Exception as error:
            if not is_fault(error):
                raise
            found.faults[row.seq] = reason_of(error)
        else:
            found.runs.append(opened)
            found.tasks += tasks
    return found


def is_fault(error: Exception) -> bool:
    """Whether data or our own code is to blame: then trying again cannot help."""
    if isinstance(error, NotLeader):
        return False
    return not isinstance(error, StoreError) or isinstance(error, DataRefused)


def reason_of(error: Exception) -> str:
    """Why a run is held."""
    if isinstance(error, LocktenderError):
        return str(error)
    return f"internal: {type(error).__name__}: {error}"
