"""What is in use of each pool and how many tasks wait for it: of the leader's ledger, or of one rebuilt from rows.

The leader counts lanes, not tasks: 100,000 items that wait cost it as much as ten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from locktender.base.limits import Limits
from locktender.base.model import LimitRow
from locktender.observe.live import POOLS, ask_leader
from locktender.store.protocol import Store

if TYPE_CHECKING:
    from locktender.kernel.scheduler import Scheduler


class PoolUse(msgspec.Struct, frozen=True):
    used: dict[str, int]
    """Slots that are held, by pool."""
    waiting: dict[str, int]
    """Tasks that stand in line for a pool, whatever else they wait for."""


_read = msgspec.json.Decoder(PoolUse).decode


def pool_use(scheduler: Scheduler) -> PoolUse:
    ledger = scheduler.ledger
    waiting: dict[str, int] = {}
    for lane in ledger.task_queue.lanes.values():
        if len(lane):
            for pool in {gate.name for gate, _ in lane.needs}:
                waiting[pool] = waiting.get(pool, 0) + len(lane)
    used = {pool: gates[0].used for pool, gates in ledger.slot_gates.items()}
    return PoolUse(used, waiting)


async def read_pools(store: Store) -> tuple[PoolUse, Limits, list[LimitRow]]:
    """With the limits in force and their rows."""
    live = await ask_leader(store, POOLS, lambda lead, _: pool_use(lead), _read)
    if live is not None:
        return live, *await store.limits()
    # Only here: where the leader answers, a command does without its rules.
    from locktender.observe.rebuilt import rebuild  # noqa: PLC0415

    scheduler, snapshot = await rebuild(store)
    return pool_use(scheduler), snapshot.limits, list(snapshot.limit_rows)
