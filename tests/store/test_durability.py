"""Durability: fsync at every commit, and commits accepted in their order only."""

from __future__ import annotations

from pathlib import Path

import pytest

from locktender.base.clock import SystemClock
from locktender.base.commits import Commit, RunEvents
from locktender.base.errors import StoreError
from locktender.base.events import Change
from locktender.store.protocol import Elect
from locktender.store.sqlite import SqliteStore
from locktender.store.sqlite.session import connect


def test_the_writer_waits_for_the_disk_at_every_commit(tmp_path: Path) -> None:
    session = connect(tmp_path / "h.db", SystemClock(), 1_000_000, write=True)
    try:
        assert session.db.execute("PRAGMA synchronous").fetchone() == (2,)
        assert session.db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    finally:
        session.db.close()


def _commit(term: int, cycle: int, previous: int) -> Commit:
    told = RunEvents(
        0, [Change("limit", 0, "", "in_force", 0, {"kind": "runs", "name": "", "rule": None})]
    )
    return Commit(term, cycle, "leader:me", previous=previous, events=[told])


async def test_a_commit_whose_predecessor_is_not_written_is_refused(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "h.db")
    await store.open()
    try:
        term = (await store.elect(Elect("me", 5_000_000))).term
        await store.commit(_commit(term, 1, 0))
        with pytest.raises(StoreError, match="not written yet"):
            await store.commit(_commit(term, 3, 2))
        second = await store.commit(_commit(term, 2, 1))
        third = await store.commit(_commit(term, 3, 2))
        assert third.seq > second.seq
        assert (await store.commit(_commit(term, 3, 2))).seq == third.seq
    finally:
        await store.close()
