"""The writer's groups and the turnstile between writers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from locktender.base.clock import SystemClock
from locktender.store.sqlite import SqliteStore
from locktender.store.sqlite.session import SqliteSession
from locktender.store.sqlite.write_lock import WriteLock
from locktender.testing.conformance.world import set_ceiling, submitted


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "locktender.db")
    await store.open()
    yield store
    await store.close()


class Refused(Exception):
    pass


def _write(tx: SqliteSession, name: str) -> str:
    tx.each("lane_add", [(name,)])
    return name


def _write_and_fail(tx: SqliteSession) -> None:
    _write(tx, "half done")
    raise Refused


def _lanes(tx: SqliteSession) -> set[str]:
    return {row[0] for row in tx.db.execute("SELECT signature FROM lane")}


async def _held_up(store: SqliteStore, *verbs: object) -> list[object]:
    """Runs the verbs as one group: they queue up while the writer is busy."""
    writer = store._opened.writer
    go = threading.Event()
    busy = asyncio.ensure_future(writer.call(lambda _: go.wait(10), outside=True))
    await asyncio.sleep(0)
    work = [asyncio.ensure_future(writer.call(verb)) for verb in verbs]  # pyright: ignore
    await asyncio.sleep(0)
    go.set()
    await busy
    return await asyncio.gather(*work, return_exceptions=True)


async def test_a_verb_that_fails_half_way_is_undone_alone(store: SqliteStore) -> None:
    results = await _held_up(
        store,
        lambda tx: _write(tx, "before"),
        _write_and_fail,
        lambda tx: _write(tx, "after"),
    )
    assert results[0] == "before"
    assert isinstance(results[1], Refused)
    assert results[2] == "after"
    assert await store._look(_lanes) == {"before", "after"}


async def test_a_verb_alone_that_fails_half_way_is_undone(store: SqliteStore) -> None:
    with pytest.raises(Refused):
        await store._write(_write_and_fail)
    assert await store._look(_lanes) == set()


async def test_a_group_is_one_commit(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    commits: list[None] = []
    monkeypatch.setattr(store._opened.writer, "_committed", lambda: commits.append(None))
    names = [str(n) for n in range(50)]
    await _held_up(store, *(partial(_write, name=name) for name in names))
    assert await store._look(_lanes) == set(names)
    assert len(commits) == 1


async def test_limits_that_were_rolled_back_are_forgotten(store: SqliteStore) -> None:
    """A version given in a transaction that failed is given again, to other content."""

    def doomed(tx: SqliteSession) -> None:
        tx.run("limit_put", "active", "", None, b'{"limit":1}')
        tx.run("limits_changed")
        assert tx.limits().max_active == 1
        raise Refused

    with pytest.raises(Refused):
        await store._write(doomed)
    await set_ceiling(store, 3)
    outcomes = [(await submitted(store)).outcome for _ in range(4)]
    assert outcomes == ["created"] * 3 + ["rejected"]


async def test_a_caller_that_stops_waiting_does_not_stop_the_verb(store: SqliteStore) -> None:
    writer = store._opened.writer
    go = threading.Event()
    busy = asyncio.ensure_future(writer.call(lambda _: go.wait(10), outside=True))
    await asyncio.sleep(0)
    work = asyncio.ensure_future(writer.call(lambda tx: _write(tx, "kept")))
    await asyncio.sleep(0)
    work.cancel()
    go.set()
    await busy
    with pytest.raises(asyncio.CancelledError):
        await work
    assert await store._write(_lanes) == {"kept"}


def test_a_waiter_is_always_next(tmp_path: Path) -> None:
    """However fast the other comes round again, it stands behind who waits."""
    path = tmp_path / "locktender.db"
    hot, waiter = (WriteLock(path, SystemClock(), 10_000_000) for _ in range(2))
    turns = 0
    stop = threading.Event()

    def hurry() -> None:
        nonlocal turns
        while not stop.is_set():
            hot.enter()
            turns += 1
            time.sleep(0.001)
            hot.leave()

    thread = threading.Thread(target=hurry)
    thread.start()
    try:
        passed: list[int] = []
        for _ in range(50):
            before = turns
            waiter.enter()
            passed.append(turns - before)
            waiter.leave()
            time.sleep(0.002)
    finally:
        stop.set()
        thread.join()
        hot.close()
        waiter.close()
    assert turns > 50
    assert sorted(passed)[-5] <= 3
