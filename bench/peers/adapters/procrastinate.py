"""procrastinate: its worker by its own command, 50 jobs at a time; the limit is that of the worker."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import procrastinate
import psycopg

from bench.peers import bodies
from bench.peers.drive import Adapter, process
from bench.peers.workload import LIMIT

CONCURRENCY = 50

app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=os.environ["BENCH_PLACE"])
)


@app.task(name="steps")
async def noop(n: int, seconds: float) -> int:  # noqa: ARG001 — every job has the same arguments
    return n


@app.task(name="idle")
async def stamp(n: int, seconds: float) -> None:  # noqa: ARG001
    bodies.stamp()


@app.task(name="limit")
async def sleep(n: int, seconds: float) -> None:  # noqa: ARG001
    await bodies.sleep(seconds)


TASKS = {"steps": noop, "idle": stamp}


class Procrastinate(Adapter):
    can = Adapter.can - {"runs"}
    scale = 0.15

    async def open(self) -> None:
        await app.open_async()
        await app.schema_manager.apply_schema_async()
        self._db = await psycopg.AsyncConnection.connect(self.place, autocommit=True)

    async def close(self) -> None:
        await self._db.close()
        await app.close_async()

    @asynccontextmanager
    async def working(self, what: str) -> AsyncGenerator[None]:
        at_once = LIMIT if what.startswith("limit") else CONCURRENCY
        command = [sys.executable, "-m", "procrastinate", f"--app={__name__}.app", "worker"]
        with process([*command, f"--queues={what}", f"--concurrency={at_once}"]):
            yield

    async def submit(self, what: str, count: int, seconds: float = 0.0) -> None:
        task = TASKS.get(what, sleep).configure(queue=what)
        if count == 1:
            await task.defer_async(n=0, seconds=seconds)
        else:
            await task.batch_defer_async(*({"n": n, "seconds": seconds} for n in range(count)))

    async def ended(self, what: str) -> int:
        question = (
            "SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded' AND queue_name = %s"
        )
        row = await (await self._db.execute(question, [what])).fetchone()
        return row[0] if row else 0


def adapter(place: str, variant: str) -> Adapter:  # noqa: ARG001
    return Procrastinate(place)
