"""Verbs in one commit, and the lock between writers of several processes."""

from __future__ import annotations

import asyncio
import fcntl
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
    busy = asyncio.ensure_future(writer.call(lambda _: go.wait(60), outside=True))
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
    assert await store._query(_lanes) == {"before", "after"}


async def test_a_verb_alone_that_fails_half_way_is_undone(store: SqliteStore) -> None:
    with pytest.raises(Refused):
        await store._write(_write_and_fail)
    assert await store._query(_lanes) == set()


async def test_a_group_is_one_commit(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    commits: list[None] = []
    monkeypatch.setattr(store._opened.writer, "_committed", lambda: commits.append(None))
    names = [str(n) for n in range(50)]
    await _held_up(store, *(partial(_write, name=name) for name in names))
    assert await store._query(_lanes) == set(names)
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
    busy = asyncio.ensure_future(writer.call(lambda _: go.wait(60), outside=True))
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
    hot, waiter = (WriteLock(path, SystemClock(), 60_000_000) for _ in range(2))
    for _ in range(20):
        turns: list[str] = []

        def wait(turns: list[str] = turns) -> None:
            waiter.enter()
            turns.append("waiter")
            waiter.leave()

        hot.enter()
        thread = threading.Thread(target=wait)
        thread.start()
        _until_the_head_is_taken(path)
        hot.leave()
        hot.enter()  # at once again
        turns.append("hot")
        hot.leave()
        thread.join(60)
        assert turns == ["waiter", "hot"]
    hot.close()
    waiter.close()


def _until_the_head_is_taken(path: Path) -> None:
    """Somebody stands at the head of the line, and waits for the write to be over."""
    end = time.monotonic() + 60
    with path.with_name(path.name + "-q.lock").open("r+b") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            fcntl.flock(file, fcntl.LOCK_UN)
            assert time.monotonic() < end
            time.sleep(0.0005)
