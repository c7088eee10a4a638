"""What a worker that is told to end leaves behind: all that is its own in the store, wherever it is here."""

from __future__ import annotations

import asyncio
from pathlib import Path

from locktender.base.config import Settings
from locktender.engine import Engine
from locktender.store.sqlite.store import SqliteStore
from locktender.worker.membership import MOST_LEFT
from locktender.worker.worker import End


async def test_what_is_on_its_way_in_either_direction_is_named(tmp_path: Path):
    store = SqliteStore(tmp_path / "engine.db")
    await store.open()
    engine = Engine(store, Settings(work_dir=str(tmp_path / "work")), lead=False)
    try:
        await engine.start()
        member = engine.member
        assert member is not None
        member.orders.doubt([(1, 11)])  # accepted, maybe, and not begun
        member._unwritten.append(End(2, 12, "completed"))  # pyright: ignore[reportPrivateUsage]
        assert member.describe().leaves == ()  # nobody has told it to end

        member._told_to_end = True  # pyright: ignore[reportPrivateUsage]
        assert set(member.describe().leaves) == {(1, 11), (2, 12)}

        member.orders.doubt([(task, task) for task in range(100, 101 + MOST_LEFT)])
        row = member.describe()
        assert (row.leaves, row.leaves_all) == ((), True)
    finally:
        if engine.member is not None:
            engine.member.orders.forget()
            engine.member._unwritten.clear()  # pyright: ignore[reportPrivateUsage]
        await engine.stop(0)
        await store.close()


async def test_a_leading_worker_names_ends_that_its_commits_have_yet_to_bring(tmp_path: Path):
    store = SqliteStore(tmp_path / "engine.db")
    await store.open()
    engine = Engine(store, Settings(work_dir=str(tmp_path / "work")))
    try:
        await engine.start()
        await _leads(engine)
        member, coordinator = engine.member, engine.coordinator
        assert member is not None
        assert coordinator is not None
        member._told_to_end = True  # pyright: ignore[reportPrivateUsage]
        coordinator.ended(End(3, 13, "completed"))  # taken with the next cycle: not yet
        assert (3, 13) in member.describe().leaves
    finally:
        await engine.stop(0)
        await store.close()


async def _leads(engine: Engine) -> None:
    async with asyncio.timeout(60):
        while not engine.leads:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
