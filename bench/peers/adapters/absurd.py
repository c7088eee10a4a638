"""absurd: its schema from `absurdctl`, a worker of its async SDK, 50 tasks at a time.

A step is a task, a single-step run a task of one step. The worker is what its documentation starts:
`await app.start_worker()`. The limit is the worker's own concurrency. It polls each 10 ms (250 ms as shipped).
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from absurd_sdk import AsyncAbsurd

from bench.peers import bodies
from bench.peers.drive import Adapter, process
from bench.peers.workload import LIMIT, POLL_SECONDS

CONCURRENCY = 50


async def _one() -> int:
    return 1


def app(place: str, what: str) -> AsyncAbsurd:
    made = AsyncAbsurd(place, queue_name=what)

    @made.register_task(name="task")
    async def task(params: dict[str, Any], ctx: Any) -> Any:
        if what == "runs":
            return await ctx.step("one", _one)
        if what == "idle":
            bodies.stamp()
        elif what != "steps":
            await bodies.sleep(params["seconds"])
        return params["n"]

    return made


class Absurd(Adapter):
    scale = 0.25

    async def open(self) -> None:
        import absurdctl

        self._db = await psycopg.AsyncConnection.connect(self.place, autocommit=True)
        await self._db.execute(absurdctl.BUNDLED_SCHEMA_SQL)
        self._queues: dict[str, AsyncAbsurd] = {}

    async def close(self) -> None:
        for each in self._queues.values():
            await each.close()
        await self._db.close()

    async def _queue(self, what: str) -> AsyncAbsurd:
        if what not in self._queues:
            self._queues[what] = app(self.place, what)
            await self._queues[what].create_queue()
        return self._queues[what]

    @asynccontextmanager
    async def working(self, what: str) -> AsyncGenerator[None]:
        await self._queue(what)
        with process([sys.executable, "-m", __name__, what]):
            yield

    async def submit(self, what: str, count: int, seconds: float = 0.0) -> None:
        """One call a task, it has no other; many in one transaction, on a connection of one's own."""
        queue = await self._queue(what)
        if count == 1:
            await queue.spawn("task", {"n": 0, "seconds": seconds})
            return
        async with await psycopg.AsyncConnection.connect(self.place) as db:
            together = AsyncAbsurd(db, queue_name=what)
            for n in range(count):
                await together.spawn("task", {"n": n, "seconds": seconds}, queue=what)

    async def ended(self, what: str) -> int:
        question = f"SELECT count(*) FROM absurd.t_{what} WHERE state = 'completed'"
        row = await (await self._db.execute(question)).fetchone()
        return row[0] if row else 0


def adapter(place: str, variant: str) -> Adapter:  # noqa: ARG001
    return Absurd(place)


if __name__ == "__main__":
    [_, queue_name] = sys.argv
    at_once = LIMIT if queue_name.startswith("limit") else CONCURRENCY
    worker = app(os.environ["BENCH_PLACE"], queue_name)
    asyncio.run(worker.start_worker(concurrency=at_once, poll_interval=POLL_SECONDS))
