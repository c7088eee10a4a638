"""Rebuilds the scheduler's ledger from rows, read-only, for `why` and other questions outside the leader."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from locktender.base.changes import TaskRow
from locktender.base.ids import run_of
from locktender.base.model import RunRow
from locktender.base.states import TaskState
from locktender.kernel.explain import Reason, Typical
from locktender.kernel.lifecycle import Defaults
from locktender.kernel.scheduler import Scheduler
from locktender.kernel.timeouts import UNKNOWN_US
from locktender.store.protocol import Snapshot, Store
from locktender.store.readable import readable


async def rebuild(store: Store) -> tuple[Scheduler, Snapshot]:
    """A ledger of all active work as the rows have it now. It decides nothing and writes nothing."""
    snapshot = await store.load()
    scheduler = Scheduler(snapshot.limits, 0, "why", Defaults(dispatch_deadline_us=UNKNOWN_US))
    found = await readable(store, snapshot)
    scheduler.graphs.update(found.graphs)
    scheduler.restore(
        found.runs,
        found.tasks,
        snapshot.workers,
        snapshot.buckets,
        snapshot.now,
        lingers=snapshot.lingers,
    )
    scheduler.held.restore(snapshot.held, snapshot.held_tasks, found.graphs, snapshot.now)
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
