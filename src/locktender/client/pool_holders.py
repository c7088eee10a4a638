"""Who holds slots of pools, from the rows that usage is derived from."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from locktender.base.graph import Node
from locktender.base.ids import run_of
from locktender.base.states import TaskState
from locktender.client.run_details import node_of, nodes_of, slots_of
from locktender.client.views import instant, moment
from locktender.store.protocol import Snapshot, Store


@dataclass(frozen=True, slots=True)
class PoolHolder:
    """One attempt that holds slots."""

    run: str
    task: int
    step: str
    slots: int
    since: datetime | None
    """None where its worker is dead: the row has the next attempt."""
    worker: str | None
    state: str
    """`running`, `offered`, `stalled` (its worker's lease has passed, the process lives), or `dead`: its worker is
    gone and the slots are kept until the pool's own lease has passed."""
    lease_until: datetime | None
    """When the slots come free if the worker renews no more, the pool's own lease included."""


@dataclass(frozen=True, slots=True)
class PoolHolders:
    """Who holds slots of a pool now."""

    holders: list[PoolHolder]
    now: datetime


async def pool_holders(store: Store, snapshot: Snapshot) -> dict[str, list[PoolHolder]]:
    """Pool → the attempts that hold slots of it: those of dead workers first, then by age."""
    runs = {row.seq: row for row in (*snapshot.runs, *snapshot.held)}
    tasks = {task.id: task for task in (*snapshot.tasks, *snapshot.held_tasks)}
    leases = {worker.id: worker.lease_until for worker in snapshot.workers}

    graphs: dict[str, tuple[Node, ...]] = {}

    async def where(task: int) -> tuple[str, int, str]:
        run, row = runs.get(run_of(task)), tasks.get(task)
        if run is None or row is None:
            return f"number {run_of(task)}", task, ""
        if run.graph not in graphs:
            graphs[run.graph] = await nodes_of(store, run.graph)
        return run.id, task, node_of(graphs[run.graph], row).name

    dead: dict[str, list[PoolHolder]] = {}
    for linger in snapshot.lingers:
        of, until = await where(linger.task), instant(linger.until)
        holder = PoolHolder(*of, linger.slots, None, linger.worker, "dead", until)
        dead.setdefault(linger.pool, []).append(holder)
    living: dict[str, list[PoolHolder]] = {}
    for task in tasks.values():
        held = slots_of(task)
        if not held:
            continue
        lease = leases.get(task.worker or "", 0)
        offered = task.state == TaskState.SCHEDULED
        state = "stalled" if lease < snapshot.now else "offered" if offered else "running"
        since = instant(task.scheduled_at if offered else task.started_at or task.scheduled_at)
        of = await where(task.id)
        for pool, slots in held.items():
            rule = snapshot.limits.pool(pool)
            own_lease = 0 if rule is None else rule.lease_us or 0
            until = moment(lease and lease + own_lease)
            holder = PoolHolder(*of, slots, since, task.worker, state, until)
            living.setdefault(pool, []).append(holder)
    for several in living.values():
        several.sort(key=lambda holder: (holder.since, holder.task))
    return {pool: dead.get(pool, []) + living.get(pool, []) for pool in dead.keys() | living.keys()}
