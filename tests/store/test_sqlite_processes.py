"""SQLite with real second processes: ceilings, crashes, fairness, waking, liveness."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from tests.support.store_children import Child, child_of

from locktender.base.clock import SECOND
from locktender.store.protocol import Elect, RunFilter, Store
from locktender.store.sqlite import SqliteStore
from locktender.store.sqlite import store as stores
from locktender.testing.conformance import SceneLeader, new_run
from locktender.testing.conformance.world import expire_passed, join, set_ceiling, submit, submitted


def child(path: Path, verb: str, argument: object = "") -> AbstractAsyncContextManager[Child]:
    return child_of("sqlite_child.py", path, verb, argument)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locktender.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.open()
    yield store
    await store.close()


def sound(path: Path) -> None:
    """The file is whole, and every queued run is in the queue and in the history, once."""
    db = sqlite3.connect(path)
    try:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        runs = db.execute("SELECT seq FROM run WHERE state = 'queued' ORDER BY seq").fetchall()
        assert runs == db.execute("SELECT run FROM queue ORDER BY run").fetchall()
        assert runs == db.execute("SELECT run FROM event WHERE run > 0 ORDER BY run").fetchall()
        active = db.execute("SELECT admitted - closed FROM counter WHERE name = ''").fetchone()
        assert active == (len(runs),)
    finally:
        db.close()


async def test_the_ceiling_is_exact_over_processes(path: Path, store: SqliteStore) -> None:
    await set_ceiling(store, 15)
    async with child(path, "race", 20) as one, child(path, "race", 20) as two:
        await one.line()
        await two.line()
        one.go()
        two.go()
        created = [(await each.line())["created"] for each in (one, two)]
    assert sum(created) == 15
    counts = await store.counts()
    assert (counts.admitted[""], counts.active[""]) == (15, 15)


async def test_a_killed_writer_leaves_nothing_half_done(path: Path, store: SqliteStore) -> None:
    await set_ceiling(store, -1)
    acknowledged: list[str] = []
    own: set[str] = set()
    for words in (3, 5, 8):
        async with child(path, "hammer", 7) as writer:
            await writer.line()
            for _ in range(words):
                acknowledged += (await writer.line())["ids"]
            await writer.kill()
        # No lock of the dead stands in the way.
        own.add((await submitted(store)).id)
    sound(path)
    # Nor does its socket stay: the next commits find nobody there.
    wake = path.with_name(path.name + "-wake")
    end = time.monotonic() + 60
    while len(list(wake.iterdir())) > 1:
        assert time.monotonic() < end
        own.add((await submitted(store)).id)
    stored = {row.id for row in await store.runs(RunFilter(limit=100_000))}
    assert stored.issuperset(acknowledged)
    # A batch is stored as a whole or not at all.
    assert len([run for run in stored if run not in own]) % 7 == 0


async def test_a_second_process_gets_its_turn_beside_a_hot_writer(
    path: Path, store: SqliteStore
) -> None:
    """An operator's writes all pass while an engine writes without pause.

    That whoever waits is next, before the hot writer's next turn, is `test_a_waiter_is_always_next`.
    """
    await set_ceiling(store, -1)
    stop = False
    commits = 0

    async def engine() -> None:
        nonlocal commits
        while not stop:
            await submit(store, *(new_run() for _ in range(20)))
            commits += 1

    hot = [asyncio.ensure_future(engine()) for _ in range(3)]
    async with child(path, "operate", 50) as operator:
        assert await operator.line() == {"set": 50}
    stop = True
    await asyncio.gather(*hot)
    assert commits > 0


async def test_a_commit_wakes_who_waits_without_a_poll(
    path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither side polls here: without the byte that says *look* nobody would go on."""
    monkeypatch.setattr(stores, "POLL_SECONDS", 3600.0)
    async with child(path, "echo", 30) as other, asyncio.timeout(60):
        await other.line()
        mark = await store.wait(0)
        for _ in range(30):
            await submitted(store)
            mark = await store.wait(3600 * SECOND, mark)
        assert await other.line() == {"done": True}


async def test_without_sockets_polling_finds_out(path: Path, store: SqliteStore) -> None:
    async with child(path, "hammer", 1) as other:
        await other.line()
        await store.wait(0)  # it listens from here on
        [socket] = path.with_name(path.name + "-wake").iterdir()
        socket.unlink()
        mark = await store.wait(0)
        assert await store.wait(60 * SECOND, mark) > mark


async def takes_over(store: Store, owner: str) -> int:
    end = time.monotonic() + 60
    while not (led := await store.elect(Elect(owner, SECOND))).term:
        assert time.monotonic() < end, "nobody took over"
        await asyncio.sleep(0.005)
    return led.term


async def test_a_crash_is_noticed_long_before_the_lease_ends(
    path: Path, store: SqliteStore
) -> None:
    async with child(path, "live", "other/1") as other:
        term = (await other.line())["term"]
        assert (await store.elect(Elect("me", SECOND))).term == 0
        await other.kill()
        taken = await takes_over(store, "me")
        assert taken == term + 1
        [lost] = await expire_passed(store, taken, "leader:me")
        assert (lost.worker, lost.reason) == ("other/1", "process died")
    locks = sorted(lock.name for lock in path.with_name(path.name + "-live").iterdir())
    assert locks == ["me.lock"]


async def test_a_living_process_is_not_taken_for_dead(path: Path, store: SqliteStore) -> None:
    async with child(path, "live", "other") as other:
        await other.line()
        leader = await store.elect(Elect("me", SECOND))
        assert leader.term == 0
        assert leader.owner == "other"


async def test_own_locks_are_not_taken_for_free(store: SqliteStore) -> None:
    led = await SceneLeader.stand(store, "me")
    await join(store, "me")
    assert await expire_passed(store, led.term, led.actor) == []


async def test_a_worker_counts_as_alive_while_its_children_live(
    path: Path, store: SqliteStore
) -> None:
    led = await SceneLeader.stand(store, "me", 3_600 * SECOND)
    async with child(path, "with_child", "w1") as worker:
        orphan = (await worker.line())["child"]
        await worker.kill()
        try:
            assert await expire_passed(store, led.term, led.actor) == []
        finally:
            os.kill(orphan, signal.SIGKILL)
        end = time.monotonic() + 60
        while not (lost := await expire_passed(store, led.term, led.actor)):
            assert time.monotonic() < end
            await asyncio.sleep(0.005)
        assert lost[0].reason == "process died"


async def test_a_missing_lock_means_unknown(path: Path, store: SqliteStore) -> None:
    led = await SceneLeader.stand(store, "me", 3_600 * SECOND)
    async with child(path, "live", "other") as other:
        await other.line()
        (path.with_name(path.name + "-live") / "other.lock").unlink()
        await other.kill()
        assert await expire_passed(store, led.term, led.actor) == []


async def test_processes_that_open_a_new_file_together(path: Path) -> None:
    async with child(path, "race", 1) as one, child(path, "race", 1) as two:
        for each in (one, two):
            assert await each.line() == {"ready": True}
            each.go()
        assert [await each.line() for each in (one, two)] == [{"created": 1}] * 2
    sound(path)
