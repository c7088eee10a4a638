"""An offer is answered once, however often it is read."""

from __future__ import annotations

import asyncio
from pathlib import Path

from locktender import connect_async, flow, step
from locktender.base.changes import Order
from locktender.base.config import Settings
from locktender.engine import Engine
from locktender.store.open import settings_for
from locktender.store.protocol import Accept, OfferNotice, Started
from locktender.store.sqlite.store import SqliteStore


@step
async def echo(value: int) -> int:
    return value


@flow
def echoes(count: int) -> list[int]:
    return echo.map(list(range(count)))


class ToldLate(SqliteStore):
    """Its notifications tell of what was found among the orders before, as PostgreSQL's may."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.found: list[tuple[int, int]] = []
        self.told = 0

    async def wait_for_offers(self, worker: str, timeout_us: int) -> OfferNotice:
        await super().wait_for_offers(worker, timeout_us // 20)
        self.told += bool(self.found)
        return OfferNotice(list(self.found), look=True)

    async def orders(self, worker: str) -> list[Order]:
        orders = await super().orders(worker)
        self.found += [(each.task, each.token) for each in orders if each.kind == "offer"]
        return orders


async def test_an_offer_that_is_told_twice_is_declined_once(tmp_path: Path):
    settings: Settings = settings_for(tmp_path / "locktender.db", {"work_dir": str(tmp_path)})
    lead, work = SqliteStore(settings.url), ToldLate(settings.url)
    await lead.open()
    await work.open()
    leader = Engine(lead, settings, work=False)
    worker = Engine(work, settings, lead=False)
    await leader.start()
    await worker.start()
    try:
        async with connect_async(settings.url) as client:
            worker.worker.draining = True  # and nobody has told the leader yet
            run = await client.submit(echoes, 3)
            async with asyncio.timeout(60):
                while work.told < 5:  # noqa: ASYNC110 — the store says when there are offers
                    await asyncio.sleep(0.01)
            events = await run.events()

        # Once each: and the leader, which knows why, has not come again.
        assert len([event for event in events if event.after == "handed_back"]) == 3
        assert len(set(work.found)) == 3
        assert await work.stale_writes() == 0
    finally:
        await worker.stop(0)
        await leader.stop(0)
        await work.close()
        await lead.close()


OUTSTANDING = 4
"""Offers to a worker of `claim_batch=2` that wait for its answer: the leader makes no more."""


class ReadTogether(SqliteStore):
    """A worker's store that waits for the first offers until all that can come are there."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.accepted: list[int] = []

    async def wait_for_offers(self, worker: str, timeout_us: int) -> OfferNotice:
        while not self.accepted and len(await super().orders(worker)) < OUTSTANDING:
            await super().wait_for_offers(worker, timeout_us // 20)
        return await super().wait_for_offers(worker, timeout_us // 20)

    async def accept(self, accept: Accept) -> list[Started]:
        self.accepted.append(len(accept.tasks))
        return await super().accept(accept)


async def test_offers_that_come_together_are_accepted_with_one_write(tmp_path: Path):
    given = {"work_dir": str(tmp_path), "claim_batch": 2, "offer_ttl": "60s"}
    settings: Settings = settings_for(tmp_path / "locktender.db", given)
    lead, work = SqliteStore(settings.url), ReadTogether(settings.url)
    await lead.open()
    await work.open()
    leader = Engine(lead, settings, work=False)
    worker = Engine(work, settings, lead=False)
    await leader.start()
    await worker.start()
    try:
        async with connect_async(settings.url) as client:
            run = await client.submit(echoes, 20)
            assert await run.result(60) == list(range(20))
        assert work.accepted[0] == OUTSTANDING
        assert sum(work.accepted) == 20
    finally:
        await worker.stop(0)
        await leader.stop(0)
        await work.close()
        await lead.close()
