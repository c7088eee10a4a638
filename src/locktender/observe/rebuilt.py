"""Rebuilds the scheduler's ledger from rows, read-only, for `why` and other questions outside the leader."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from locktender.base.changes import TaskRow
from locktender.base.graph import Graph
from locktender.base.ids import run_of
from locktender.base.model import RunRow
from locktender.base.states import TaskState
from locktender.kernel.explain import Reason, Typical
from locktender.kernel.lifecycle import Defaults
from locktender.kernel.scheduler import Scheduler
from locktender.kernel.timeouts import UNKNOWN_US
from locktender.store import blob_values
from locktender.store.protocol import Snapshot, Store

_graph = msgspec.json.Decoder(Graph).decode


async def rebuild(store: Store) -> tuple[Scheduler, Snapshot]:
    """A ledger of all active work as the rows have it now. It decides nothing and writes nothing."""
    snapshot = await store.load()
    scheduler = Scheduler(snapshot.limits, 0, "why", Defaults(dispatch_deadline_us=UNKNOWN_US))
    scheduler.graphs.update({key: _graph(body) for key, body in snapshot.graphs.items()})
    # As the leader does: what is mapped over, or decides a condition, may have been put away.
    runs = [await blob_values.open_values(store, row) for row in snapshot.runs]
    graphs = {row.seq: scheduler.graphs[row.graph] for row in runs}
    tasks = [
        await blob_values.open_output(store, graphs[run_of(row.id)], row) for row in snapshot.tasks
    ]
    scheduler.restore(
        runs,
        tasks,
        snapshot.workers,
        snapshot.buckets,
        snapshot.now,
        lingers=snapshot.lingers,
        unplaced=snapshot.unplaced,
    )
    for kept in snapshot.reservations:
        entry = scheduler.lifecycle.tasks.get(kept.task)
        if entry is not None and entry.lane is not None:
            scheduler.ledger.task_queue.reserve(entry.lane, entry)
    return scheduler, snapshot


def typical(snapshot: Snapshot, scheduler: Scheduler, recent: list[RunRow]) -> Typical:
    """Usual durations, from what has ended lately."""
    by_step: dict[str, list[int]] = {}
    for row in snapshot.tasks:
        if row.state == TaskState.COMPLETED and row.started_at:
            by_step.setdefault(_step(scheduler, row), []).append(row.ended_at - row.started_at)
    runs = [row.ended_at - row.started_at for row in recent if row.started_at and row.ended_at]
    return Typical(
        {step: _median(times) for step, times in by_step.items() if step},
        _median(runs) if runs else None,
    )


def _step(scheduler: Scheduler, row: TaskRow) -> str:
    run = scheduler.ledger.runs.get(run_of(row.id))
    return "" if run is None else run.graph.nodes[row.node].step


def _median(values: list[int]) -> int:
    return sorted(values)[len(values) // 2]


WORKER_GATE = "worker"


async def provisioner_words(store: Store) -> str | None:
    """As the leader stored them last; None: nobody leads, or who leads starts no workers."""
    if await store.leader() is None:
        return None
    found = await store.provisioned()
    return None if found.said is None else found.said.words(found.now)


async def provisioner_note(store: Store, waiting: Iterable[Sequence[Reason]]) -> str:
    """Empty where none of those who wait lacks only a worker: for others nobody is started."""
    if not any(all(reason.gate == WORKER_GATE for reason in each) for each in waiting if each):
        return ""
    if await store.leader() is None:
        return "No process leads: start an engine on this store."
    words = await provisioner_words(store)
    if words is None:
        return "No provisioner: workers are started by hand."
    return f"Provisioner: {words}."
