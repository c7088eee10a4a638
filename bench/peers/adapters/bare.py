"""What the store allows without an engine: no fence, no history, no retry; a limit is an `asyncio.Semaphore`.

`postgres`: one table, an UPDATE … SKIP LOCKED that claims a batch, an UPDATE that completes it, one connection.
`sqlite`: the same rows by primary key in one thread, with the same fsync.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path

from bench.peers import bodies
from bench.peers.drive import Adapter
from bench.peers.workload import BATCH, LIMIT


class Bare(Adapter):
    fills_first = False

    async def submit(self, what: str, count: int, seconds: float = 0.0) -> None:
        await self.done(what, count, seconds)

    async def done(self, what: str, count: int, seconds: float = 0.0) -> float:
        began = time.monotonic()
        if what in {"steps", "runs"}:
            await self._rows(count)
            # Only claim and complete, as the engines' bare loop always was: its rows are there.
            began = time.monotonic()
            await self._loop(count)
        elif what == "idle":
            await self._hand_over()
        else:
            free = asyncio.Semaphore(LIMIT)
            await asyncio.gather(*(_within(free, seconds) for _ in range(count)))
        return time.monotonic() - began

    async def _rows(self, count: int) -> None:
        raise NotImplementedError

    async def _loop(self, count: int) -> None:
        raise NotImplementedError

    async def _hand_over(self) -> None:
        """One row in, one claim, the body."""
        raise NotImplementedError


async def _within(free: asyncio.Semaphore, seconds: float) -> None:
    async with free:
        await bodies.sleep(seconds)


class BarePostgres(Bare):
    async def open(self) -> None:
        import asyncpg

        from bench.postgres import BARE

        self._db = await asyncpg.connect(self.place)
        self._listener = await asyncpg.connect(self.place)
        self._told = asyncio.Event()
        await self._db.execute(BARE)
        await self._db.execute("TRUNCATE bare")
        await self._listener.add_listener("bare", lambda *_: self._told.set())

    async def close(self) -> None:
        await self._listener.close()
        await self._db.close()

    async def _rows(self, count: int) -> None:
        await self._db.execute("TRUNCATE bare")
        await self._db.execute(
            """INSERT INTO bare SELECT n, 'ready', '{"args":[1,2],"kwargs":{}}' FROM generate_series(1, $1) n""",
            count,
        )
        await self._db.execute("ANALYZE bare")

    async def _loop(self, count: int) -> None:
        from bench.postgres import CLAIM, COMPLETE

        while count > 0:
            ids = sorted(row[0] for row in await self._db.fetch(CLAIM, BATCH))
            await self._db.execute(COMPLETE, ids, [b"42"] * len(ids))
            count -= len(ids)

    async def _hand_over(self) -> None:
        from bench.postgres import CLAIM

        self._told.clear()
        await self._db.execute(
            "WITH made AS (INSERT INTO bare SELECT coalesce(max(id), 0) + 1, 'ready' FROM bare RETURNING id)"
            " SELECT pg_notify('bare', id::text) FROM made"
        )
        await self._told.wait()
        await self._listener.fetch(CLAIM, BATCH)
        bodies.stamp()


class BareSqlite(Bare):
    async def open(self) -> None:
        self._db = sqlite3.connect(Path(self.place) / "bare.db", isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute(
            "CREATE TABLE task (id INTEGER PRIMARY KEY, state TEXT, token INT, output BLOB)"
        )

    async def close(self) -> None:
        self._db.close()

    async def _rows(self, count: int) -> None:
        self._db.execute("BEGIN")
        self._db.execute("DELETE FROM task")
        self._db.executemany(
            "INSERT INTO task VALUES (?, 'requested', 0, NULL)", ((n,) for n in range(count))
        )
        self._db.execute("COMMIT")

    async def _loop(self, count: int) -> None:
        claim = "UPDATE task SET state = 'running', token = 1 WHERE id = ?"
        complete = "UPDATE task SET state = 'completed', output = x'31' WHERE id = ? AND token = 1"
        for first in range(0, count, BATCH):
            for statement in (claim, complete):
                self._db.execute("BEGIN IMMEDIATE")
                ids = range(first, min(count, first + BATCH))
                self._db.executemany(statement, ((n,) for n in ids))
                self._db.execute("COMMIT")

    async def _hand_over(self) -> None:
        self._db.execute("INSERT OR REPLACE INTO task VALUES (-1, 'requested', 0, NULL)")
        self._db.execute("UPDATE task SET state = 'running', token = 1 WHERE id = -1")
        bodies.stamp()


def adapter(place: str, variant: str) -> Adapter:
    return BarePostgres(place) if variant == "postgres" else BareSqlite(place)
