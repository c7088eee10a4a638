"""The tasks that hold slots of a pool now, from the rows that usage is derived from."""

from __future__ import annotations

from datetime import datetime

import msgspec
from rich.markup import escape
from rich.table import Table

from locktender.base.graph import Node
from locktender.base.ids import run_of
from locktender.cli.tables import ago, shorten, table
from locktender.client.run_details import node_of, nodes_of, slots_of
from locktender.client.views import instant
from locktender.store.protocol import Store


class PoolHolder(msgspec.Struct, frozen=True):
    """One task that holds slots."""

    run: str
    task: int
    step: str
    slots: int
    since: datetime
    worker: str | None
    lease_until: datetime | None


async def holders_of(store: Store, pool: str) -> tuple[list[PoolHolder], datetime]:
    snapshot = await store.load()
    runs = {row.seq: row for row in (*snapshot.runs, *snapshot.held)}
    leases = {worker.id: worker.lease_until for worker in snapshot.workers}
    found: list[PoolHolder] = []
    nodes: dict[str, tuple[Node, ...]] = {}
    for task in (*snapshot.tasks, *snapshot.held_tasks):
        slots = slots_of(task).get(pool, 0)
        if not slots:
            continue
        run = runs[run_of(task.id)]
        if run.graph not in nodes:
            nodes[run.graph] = await nodes_of(store, run.graph)
        until = leases.get(task.worker or "")
        found.append(
            PoolHolder(
                run=run.id,
                task=task.id,
                step=node_of(nodes[run.graph], task).name,
                slots=slots,
                since=instant(task.started_at or task.scheduled_at),
                worker=task.worker,
                lease_until=None if until is None else instant(until),
            )
        )
    return sorted(found, key=lambda holder: holder.since), instant(snapshot.now)


def holders_table(holders: list[PoolHolder], now: datetime) -> Table:
    short = shorten(holder.run for holder in holders)
    return table(
        "run", "step…", ">task", ">slots", "held since", "lease ends",
        rows=[
            [
                short[holder.run],
                escape(holder.step),
                str(holder.task),
                str(holder.slots),
                ago(holder.since, now),
                "-" if holder.lease_until is None else ago(holder.lease_until, now),
            ]
            for holder in holders
        ],
    )  # fmt: skip
