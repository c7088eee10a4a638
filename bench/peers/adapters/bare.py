"""What the store allows without an engine (`bench/bare.py`); a limit is an `asyncio.Semaphore`."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import asyncpg

from bench import bare
from bench.peers import bodies
from bench.peers.drive import Adapter
from bench.peers.workload import BATCH, FULL, LIMIT


class Bare(Adapter):
    fills_first = False

    async def submit(self, what: str, count: int, seconds: float = 0.0) -> None:
        await self.done(what, count, seconds)

    async def done(self, what: str, count: int, seconds: float = 0.0) -> float:
        if what in {"steps", "runs"}:
            return await self._loop(count)
        began = time.monotonic()
        if what == "idle":
            await self._hand_over()
        else:
            free = asyncio.Semaphore(LIMIT)
            await asyncio.gather(*(_within(free, seconds) for _ in range(count)))
        return time.monotonic() - began

    async def _loop(self, count: int) -> float:
        """Seconds of claiming and completing; the rows are written before."""
        raise NotImplementedError

    async def _hand_over(self) -> None:
        """One row in, one claim, the body."""
        raise NotImplementedError


async def _within(free: asyncio.Semaphore, seconds: float) -> None:
    async with free:
        await bodies.sleep(seconds)


class BarePostgres(Bare):
    times = bare.POSTGRES_ROWS // FULL.steps

    async def open(self) -> None:
        self._db = await asyncpg.connect(self.place)
        self._listener = await asyncpg.connect(self.place)
        self._told = asyncio.Event()
        await self._db.execute(bare.TABLE)
        await self._listener.add_listener("bare", lambda *_: self._told.set())

    async def close(self) -> None:
        await self._listener.close()
        await self._db.close()

    async def _loop(self, count: int) -> float:
        await bare.fill(self._db, count)
        return await bare.loop(self._db, count)

    async def _hand_over(self) -> None:
        self._told.clear()
        await self._db.execute(
            "WITH made AS (INSERT INTO bare SELECT coalesce(max(id), 0) + 1, 'ready' FROM bare RETURNING id)"
            " SELECT pg_notify('bare', id::text) FROM made"
        )
        await self._told.wait()
        await self._listener.fetch(bare.CLAIM, BATCH)
        bodies.stamp()


class BareSqlite(Bare):
    times = bare.SQLITE_ROWS // FULL.steps

    async def open(self) -> None:
        self._db = bare.sqlite_open(Path(self.place) / "bare.db")

    async def close(self) -> None:
        self._db.close()

    async def _loop(self, count: int) -> float:
        bare.sqlite_fill(self._db, count)
        return bare.sqlite_loop(self._db, count)

    async def _hand_over(self) -> None:
        self._db.execute("INSERT OR REPLACE INTO task VALUES (-1, 'requested', 0, NULL)")
        self._db.execute("UPDATE task SET state = 'running', token = 1 WHERE id = -1")
        bodies.stamp()


def adapter(place: str, variant: str) -> Adapter:
    return BarePostgres(place) if variant == "postgres" else BareSqlite(place)
