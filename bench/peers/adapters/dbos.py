"""dbos: an application process that serves one queue, fed by its client; steps are those of one workflow.

Steps are async and awaited 100 at a time. Its queue polls each 10 ms (1 s as shipped) and starts at most 10
workflows in all for the limit.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
from dbos import DBOS, DBOSClient
from sqlalchemy import create_engine

from bench.peers import bodies
from bench.peers.drive import Adapter, process
from bench.peers.workload import LIMIT, POLL_SECONDS

AT_ONCE = 100
VERSION = "bench"


@DBOS.step()
async def noop(n: int) -> int:
    return n


@DBOS.workflow(name="steps")
async def many(count: int, seconds: float) -> None:  # noqa: ARG001
    for first in range(0, count, AT_ONCE):
        await asyncio.gather(*(noop(n) for n in range(first, min(count, first + AT_ONCE))))


@DBOS.workflow(name="runs")
async def single(n: int, seconds: float) -> int:  # noqa: ARG001
    return await noop(n)


@DBOS.workflow(name="idle")
async def stamp(n: int, seconds: float) -> None:  # noqa: ARG001
    bodies.stamp()


@DBOS.workflow(name="limit")
async def sleep(n: int, seconds: float) -> None:  # noqa: ARG001
    await bodies.sleep(seconds)


class Dbos(Adapter):
    scale = 0.15

    async def open(self) -> None:
        command = [str(Path(sys.executable).parent / "dbos"), "migrate", "--sys-db-url", self.place]
        with process(command) as migrating:
            migrating.wait(60)
        self._client = DBOSClient(system_database_url=self.place)
        self._engine = create_engine(self.place.replace("postgresql://", "postgresql+psycopg://"))
        self._db = await psycopg.AsyncConnection.connect(self.place, autocommit=True)

    async def close(self) -> None:
        await self._db.close()
        self._engine.dispose()
        self._client.destroy()

    @asynccontextmanager
    async def working(self, what: str) -> AsyncGenerator[None]:
        with process([sys.executable, "-m", __name__, what], wait_for="ready"):
            yield

    async def submit(self, what: str, count: int, seconds: float = 0.0) -> None:
        options = {
            "workflow_name": "limit" if what.startswith("limit") else what,
            "queue_name": what,
            "app_version": VERSION,
        }
        if what == "steps":
            await self._client.enqueue_async(options, count, seconds)
        elif count == 1:
            await self._client.enqueue_async(options, 0, seconds)
        else:
            await asyncio.to_thread(self._together, options, count, seconds)

    def _together(self, options: dict[str, str], count: int, seconds: float) -> None:
        with self._engine.begin() as db:
            for n in range(count):
                self._client.enqueue_in_transaction(db, options, n, seconds)

    async def ended(self, what: str) -> int:
        question = (
            "SELECT count(*) FROM dbos.operation_outputs WHERE output IS NOT NULL"
            if what == "steps"
            else "SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS' AND queue_name = %s"
        )
        row = await (await self._db.execute(question, [] if what == "steps" else [what])).fetchone()
        return row[0] if row else 0


def adapter(place: str, variant: str) -> Adapter:  # noqa: ARG001
    return Dbos(place)


if __name__ == "__main__":
    [_, name] = sys.argv
    DBOS(
        config={
            "name": "bench",
            "system_database_url": os.environ["BENCH_PLACE"],
            "application_version": VERSION,
            "log_level": "ERROR",
        }
    )
    DBOS.launch()
    DBOS.register_queue(
        name,
        polling_interval_sec=POLL_SECONDS,
        global_concurrency=LIMIT if name.startswith("limit") else None,
    )
    print("ready", flush=True)
    threading.Event().wait()
