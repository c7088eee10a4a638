"""The drain list of a worker that is asked to end names every attempt that it still has."""

from __future__ import annotations

import asyncio
from pathlib import Path

from locktender.base.changes import End
from locktender.base.config import Settings
from locktender.engine import Engine
from locktender.store.sqlite.store import SqliteStore
from locktender.worker.membership import MAX_DRAIN_LIST


async def test_what_is_on_its_way_in_either_direction_is_named(tmp_path: Path):
    store = SqliteStore(tmp_path / "engine.db")
    await store.open()
    engine = Engine(store, Settings(work_dir=str(tmp_path / "work")), lead=False)
    try:
        await engine.start()
        member = engine.membership
        assert member is not None
        member.offers.add_unanswered([(1, 11)])  # accepted, maybe, and not begun
        member._unwritten.append(End(2, 12, "completed"))  # pyright: ignore[reportPrivateUsage]
        assert member.describe().leaves == ()  # nobody has told it to end

        member._ending = True  # pyright: ignore[reportPrivateUsage]
        assert set(member.describe().leaves) == {(1, 11), (2, 12)}

        member.offers.add_unanswered([(task, task) for task in range(100, 101 + MAX_DRAIN_LIST)])
        row = member.describe()
        assert (row.leaves, row.leaves_all) == ((), True)
    finally:
        if engine.membership is not None:
            engine.membership.offers.forget()
            engine.membership._unwritten.clear()  # pyright: ignore[reportPrivateUsage]
        await engine.stop(0)
        await store.close()


async def test_a_leading_workers_drain_list_has_unwritten_ends(tmp_path: Path):
    store = SqliteStore(tmp_path / "engine.db")
    await store.open()
    engine = Engine(store, Settings(work_dir=str(tmp_path / "work")))
    try:
        await engine.start()
        await _leads(engine)
        member, leader = engine.membership, engine.leader
        assert member is not None
        assert leader is not None
        member._ending = True  # pyright: ignore[reportPrivateUsage]
        leader.ended(End(3, 13, "completed"))  # taken with the next cycle: not yet
        assert (3, 13) in member.describe().leaves
    finally:
        await engine.stop(0)
        await store.close()


async def _leads(engine: Engine) -> None:
    async with asyncio.timeout(60):
        while not engine.leads:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
