"""A worker that gives its lease up proves its life no longer, also where the store could not be written."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from locktender.base.clock import SECOND
from locktender.base.errors import StoreError
from locktender.base.model import WorkerRow
from locktender.store.postgres import PostgresStore
from locktender.store.protocol import Heartbeat, Store
from locktender.store.sqlite.store import SqliteStore
from locktender.testing.postgres_server import connected

pytest_plugins = ["locktender.testing.postgres"]
ROW = WorkerRow("given-up", "host", 1, "0", {"async": 1}, 1, 1)


async def proof_of(store: Store) -> str:
    [life] = await store.lives()
    return life.proof


async def test_a_busy_file(tmp_path: Path):
    path = tmp_path / "locktender.db"
    gives_up, leader = SqliteStore(path, busy_timeout_us=SECOND // 5), SqliteStore(path)
    await gives_up.open()
    await leader.open()
    await gives_up.heartbeat(Heartbeat(ROW, 3_600 * SECOND))
    assert await proof_of(leader) == "held"
    with closing(sqlite3.connect(path, isolation_level=None)) as foreign:
        foreign.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError):
            await gives_up.leave(ROW.id)
    assert await proof_of(leader) == "none"
    await gives_up.close()
    await leader.close()


async def waits_for_a_lock(url: str) -> None:
    question = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    async with connected(url) as looks:
        while not await looks.fetch(question):  # noqa: ASYNC110 — it happens in the database
            await asyncio.sleep(0.01)


async def test_a_locked_row(postgres_url: str):
    gives_up, leader = PostgresStore(postgres_url), PostgresStore(postgres_url)
    await gives_up.open()
    await leader.open()
    await gives_up.heartbeat(Heartbeat(ROW, 3_600 * SECOND))
    assert await proof_of(leader) == "held"
    async with connected(postgres_url) as foreign, foreign.transaction():
        await foreign.execute("SELECT 1 FROM locktender.worker FOR UPDATE")
        leaving = asyncio.create_task(gives_up.leave(ROW.id))
        await waits_for_a_lock(postgres_url)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert await proof_of(leader) == "none"
    await gives_up.close()
    await leader.close()
