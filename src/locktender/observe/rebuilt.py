"""A ledger of all active work, rebuilt from rows for whoever asks beside the leader. It decides nothing."""

from __future__ import annotations

import msgspec

from locktender.base.changes import TaskRow
from locktender.base.graph import Graph
from locktender.base.ids import run_of
from locktender.base.model import RunRow
from locktender.base.states import TaskState
from locktender.kernel.conductor import Conductor
from locktender.kernel.explain import Typical
from locktender.kernel.lives import Defaults
from locktender.kernel.patience import UNKNOWN_US
from locktender.store import values
from locktender.store.protocol import Snapshot, Store

_graph = msgspec.json.Decoder(Graph).decode


async def rebuild(store: Store) -> tuple[Conductor, Snapshot]:
    """A ledger of all active work as the rows have it now. It decides nothing and writes nothing."""
    snapshot = await store.load()
    conductor = Conductor(snapshot.limits, 0, "why", Defaults(dispatch_deadline_us=UNKNOWN_US))
    conductor.graphs.update({key: _graph(body) for key, body in snapshot.graphs.items()})
    # As the leader does: what is mapped over, or decides a condition, may have been put away.
    runs = [await values.open_values(store, row) for row in snapshot.runs]
    graphs = {row.seq: conductor.graphs[row.graph] for row in runs}
    tasks = [await values.open_output(store, graphs[run_of(row.id)], row) for row in snapshot.tasks]
    conductor.restore(
        runs,
        tasks,
        snapshot.workers,
        snapshot.buckets,
        snapshot.now,
        lingers=snapshot.lingers,
    )
    for kept in snapshot.reservations:
        entry = conductor.lives.tasks.get(kept.task)
        if entry is not None and entry.lane is not None:
            conductor.ledger.board.reserve(entry.lane, entry)
    return conductor, snapshot


def typical(snapshot: Snapshot, conductor: Conductor, recent: list[RunRow]) -> Typical:
    """Usual durations, from what has ended lately."""
    by_step: dict[str, list[int]] = {}
    for row in snapshot.tasks:
        if row.state == TaskState.COMPLETED and row.started_at:
            by_step.setdefault(_step(conductor, row), []).append(row.ended_at - row.started_at)
    runs = [row.ended_at - row.started_at for row in recent if row.started_at and row.ended_at]
    return Typical(
        {step: _median(times) for step, times in by_step.items() if step},
        _median(runs) if runs else None,
    )


def _step(conductor: Conductor, row: TaskRow) -> str:
    run = conductor.ledger.runs.get(run_of(row.id))
    return "" if run is None else run.graph.nodes[row.node].step


def _median(values: list[int]) -> int:
    return sorted(values)[len(values) // 2]
