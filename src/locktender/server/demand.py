"""`/api/v1/demand`: how many tasks lack only a worker, and what they ask of one.

The leader has the figure at hand, from its sweep of every second. A server that
does not lead answers too: it rebuilds the ledger from rows and asks it by the
rules the leader decides with. Nothing of that is written.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from locktender.client.views import instant
from locktender.engine import Engine
from locktender.kernel.demand import Demand
from locktender.observe.rebuilt import provisioner_words, rebuild
from locktender.server.fresh import Fresh

KEPT_SECONDS = 1.0
PATIENCE_SECONDS = 5.0
MOST_CYCLES = 100
MOST_NEEDS = 1_000
"""Entries in one answer, those that have waited longest; the total counts all."""


class Need(msgspec.Struct, frozen=True):
    """Tasks that ask the same of a worker."""

    executor: str
    needs: dict[str, str]
    """Labels that a worker must have."""
    step: str
    signature: str
    """The version of the step: a worker matches if it has this one."""
    tasks: int
    matching_workers: int
    since: datetime
    """Since when the one that has waited longest has lacked only a worker."""


class DemandAnswer(msgspec.Struct, frozen=True):
    total: int
    by_need: tuple[Need, ...]
    workers: int
    as_of: datetime
    leader: str | None
    provisioner: str | None = None
    """What the leader's provisioner last did, or why it does nothing; None where it has none."""


class DemandAnswers:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._from_rows = Fresh(self._rebuilt, KEPT_SECONDS)

    async def tell(self) -> DemandAnswer:
        leader, overflow = self._engine.leader, self._engine.overflow
        if leader is None or not leader.sweep.demand_at:
            return await self._from_rows.get(PATIENCE_SECONDS)
        found = _answer(leader.sweep.demand, leader.sweep.demand_at, leader.owner)
        said = None if overflow is None else overflow.describe()
        return msgspec.structs.replace(found, provisioner=said)

    async def close(self) -> None:
        await self._from_rows.close()

    async def _rebuilt(self) -> DemandAnswer:
        store = self._engine.store
        leader = await store.leader()
        scheduler, snapshot = await rebuild(store)
        # What a worker would get at once is no demand: it is granted first, in this copy alone.
        for _ in range(MOST_CYCLES):
            if not scheduler.cycle(snapshot.now).unfinished:
                break
        found = _answer(scheduler.sweep(snapshot.now), snapshot.now, leader)
        return msgspec.structs.replace(found, provisioner=await provisioner_words(store))


def _answer(demand: Demand, at: int, leader: str | None) -> DemandAnswer:
    needs = tuple(
        Need(
            want.executor,
            dict(want.needs),
            want.step,
            want.signature,
            want.tasks,
            want.workers,
            instant(want.since or at),
        )
        for want in demand.wants[:MOST_NEEDS]
    )
    return DemandAnswer(demand.total, needs, demand.workers, instant(at), leader)
