"""pgqueuer: its worker by its own command (`pgq run`), as shipped (batches of 10) and with batches of 200."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from bench.peers import bodies
from bench.peers.drive import Adapter, process
from bench.peers.workload import LIMIT


@asynccontextmanager
async def main() -> AsyncGenerator[PgQueuer]:
    connection = await asyncpg.connect(os.environ["BENCH_PLACE"])
    queue = PgQueuer(AsyncpgDriver(connection))
    what = os.environ["BENCH_WHAT"]
    if what == "steps":

        @queue.entrypoint(what)
        async def noop(job: Job) -> None: ...

    elif what == "idle":

        @queue.entrypoint(what)
        async def stamp(job: Job) -> None:  # noqa: ARG001
            bodies.stamp()

    else:

        @queue.entrypoint(what, concurrency_limit=LIMIT)
        async def sleep(job: Job) -> None:
            await bodies.sleep(float(job.payload or b"0"))

    yield queue
    await connection.close()


class PgQueuerAdapter(Adapter):
    can = Adapter.can - {"runs"}

    def __init__(self, place: str, batch: str) -> None:
        super().__init__(place)
        self._batch = ["--batch-size", batch] if batch else []

    async def open(self) -> None:
        self._db = await asyncpg.connect(self.place)
        self._queries = Queries(AsyncpgDriver(self._db))
        await self._queries.install()

    async def close(self) -> None:
        await self._db.close()

    @asynccontextmanager
    async def working(self, what: str) -> AsyncGenerator[None]:
        command = [str(Path(sys.executable).parent / "pgq"), "run", f"{__name__}:main"]
        with process([*command, *self._batch], BENCH_WHAT=what):
            yield

    async def submit(self, what: str, count: int, seconds: float = 0.0) -> None:
        payload = str(seconds).encode()
        if count == 1:
            await self._queries.enqueue(what, payload)
        else:
            await self._queries.enqueue([what] * count, [payload] * count, [0] * count)

    async def ended(self, what: str) -> int:
        """An ended job leaves the table of jobs."""
        if not hasattr(self, "_count"):
            self._count = await self._left(what)
        return self._count - await self._left(what)

    async def _left(self, what: str) -> int:
        return await self._db.fetchval("SELECT count(*) FROM pgqueuer WHERE entrypoint = $1", what)


def adapter(place: str, variant: str) -> Adapter:
    return PgQueuerAdapter(place, variant)
