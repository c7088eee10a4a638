"""The bare loops: what the store allows without an engine, for `make bench` and `make bench-peers` alike.

One table, a statement that claims a batch of 200 rows, a statement that completes it, one connection, fsync; no
fence, no history, no orders, no notification. The rate is rows / total seconds of claiming and completing, in a
fresh database or file. A loop lasts about a second or longer: shorter ones cannot be timed on a shared machine.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Any

import asyncpg

from bench.peers.workload import BATCH
from locktender.testing.postgres_server import connected, copy_of, run

POSTGRES_ROWS = 50_000
SQLITE_ROWS = 200_000
TABLE = """
CREATE TABLE bare (id bigint PRIMARY KEY, state text NOT NULL, input bytea, output bytea, ended_at bigint)
    WITH (fillfactor = 60);
CREATE INDEX bare_ready ON bare (id) WHERE state = 'ready'
"""
FILL = """
INSERT INTO bare SELECT n, 'ready', '{"args":[1,2],"kwargs":{}}' FROM generate_series(1, $1::bigint) n
"""
CLAIM = """
UPDATE bare SET state = 'running' WHERE id IN (
    SELECT id FROM bare WHERE state = 'ready' ORDER BY id FOR UPDATE SKIP LOCKED LIMIT $1
) RETURNING id, input
"""
COMPLETE = """
UPDATE bare b SET state = 'completed', output = v.output, ended_at = 1
FROM unnest($1::bigint[], $2::bytea[]) v (id, output) WHERE b.id = v.id AND b.state = 'running'
"""
SQLITE_TABLE = "CREATE TABLE task (id INTEGER PRIMARY KEY, state TEXT, token INT, output BLOB)"
SQLITE_CLAIM = "UPDATE task SET state = 'running', token = 1 WHERE id = ?"
SQLITE_COMPLETE = "UPDATE task SET state = 'completed', output = x'31' WHERE id = ? AND token = 1"


# -- PostgreSQL ------------------------------------------------------------------------------------


async def fill(db: asyncpg.Connection[Any], rows: int) -> None:
    """Exactly so many rows, all of them ready."""
    await db.execute("TRUNCATE bare")
    await db.execute(FILL, rows)
    await db.execute("ANALYZE bare")


async def loop(db: asyncpg.Connection[Any], rows: int) -> float:
    """Seconds to claim and complete what `fill` wrote."""
    began = time.perf_counter()
    left = rows
    while left > 0:
        ids = sorted(row[0] for row in await db.fetch(CLAIM, BATCH))
        if not ids:
            raise RuntimeError(f"the bare loop found no row to claim; {left} of {rows} are left")
        await db.execute(COMPLETE, ids, [b"42"] * len(ids))
        left -= len(ids)
    return time.perf_counter() - began


def postgres_rate(server: str, rows: int = POSTGRES_ROWS) -> float:
    """Rows/s in a fresh database of this server."""
    with copy_of(server, "template1") as own:
        return run(_postgres_rate(own, rows))


async def _postgres_rate(url: str, rows: int) -> float:
    async with connected(url) as db:
        await db.execute(TABLE)
        # The same warm-up as a contender of `make bench-peers` gets.
        for count in (rows // 20, rows):
            await fill(db, count)
            seconds = await loop(db, count)
        return rows / seconds


# -- SQLite ----------------------------------------------------------------------------------------


def sqlite_open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute(SQLITE_TABLE)
    return db


def sqlite_fill(db: sqlite3.Connection, rows: int) -> None:
    db.execute("BEGIN")
    db.execute("DELETE FROM task")
    db.executemany("INSERT INTO task VALUES (?, 'requested', 0, NULL)", ((n,) for n in range(rows)))
    db.execute("COMMIT")


def sqlite_loop(db: sqlite3.Connection, rows: int) -> float:
    """Seconds to claim and complete what `sqlite_fill` wrote."""
    began = time.perf_counter()
    for first in range(0, rows, BATCH):
        ids = range(first, min(rows, first + BATCH))
        for statement in (SQLITE_CLAIM, SQLITE_COMPLETE):
            db.execute("BEGIN IMMEDIATE")
            db.executemany(statement, ((n,) for n in ids))
            db.execute("COMMIT")
    return time.perf_counter() - began


def sqlite_rate(rows: int = SQLITE_ROWS) -> float:
    """Rows/s in a fresh file."""
    with tempfile.TemporaryDirectory() as folder:
        db = sqlite_open(Path(folder) / "bare.db")
        for count in (rows // 20, rows):
            sqlite_fill(db, count)
            seconds = sqlite_loop(db, count)
        db.close()
        return rows / seconds
