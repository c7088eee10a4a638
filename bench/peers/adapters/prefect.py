"""prefect: its server by its own command, on SQLite as shipped; flows are called in a process of their own.

Steps are mapped tasks of one flow. Single-step runs are flows called 10 at a time, without deployments, which
start a process each. Idle: a background task (`delay`, `serve`). The limit: 10 threads of the flow. On
PostgreSQL it needs the extension pg_trgm, which the server of the wheel does not have.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

from bench.peers import bodies
from bench.peers.drive import Adapter, process
from bench.peers.workload import LIMIT

START_SECONDS = 90.0
HERE = "bench.peers.adapters.prefect"


def _environment(place: str, home: str, port: int) -> dict[str, str]:
    return {
        "PREFECT_HOME": home,
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{place}/prefect.db",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_LOGGING_LEVEL": "ERROR",
        "DO_NOT_TRACK": "1",
    }


def _flows():
    """Only where the environment names the server: prefect reads it as it is imported."""
    from prefect import flow, task
    from prefect.task_runners import ThreadPoolTaskRunner

    @task
    def noop(n: int) -> int:
        return n

    @task
    async def one(n: int) -> int:
        return n

    @task
    def stamp() -> None:
        bodies.stamp()

    @task
    def sleep(seconds: float) -> None:
        bodies.sleep_in_thread(seconds)

    @flow
    def many(count: int) -> None:
        noop.map(range(count)).result()

    @flow
    async def single(n: int) -> int:
        return await one(n)

    @flow(task_runner=ThreadPoolTaskRunner(max_workers=LIMIT))
    def sleeps(count: int, seconds: float) -> None:
        sleep.map([seconds] * count).result()

    return many, single, sleeps, stamp


class Prefect(Adapter):
    scale = 0.02

    async def open(self) -> None:
        self._opened = AsyncExitStack()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        home = self._opened.enter_context(tempfile.TemporaryDirectory())
        os.environ.update(_environment(self.place, home, port))
        command = [str(Path(sys.executable).parent / "prefect"), "server", "start"]
        self._opened.enter_context(process([*command, "--host", "127.0.0.1", "--port", str(port)]))
        await asyncio.to_thread(_until_healthy, f"http://127.0.0.1:{port}/api/health")
        self._asked: tuple[str, ...] = ()
        self._stamp = _flows()[3]

    async def close(self) -> None:
        await self._opened.aclose()

    @asynccontextmanager
    async def working(self, what: str) -> AsyncGenerator[None]:
        with process([sys.executable, "-m", HERE, what, *self._asked]):
            yield

    async def submit(self, what: str, count: int, seconds: float = 0.0) -> None:
        """A flow is called by the process that `working` starts."""
        if what == "idle":
            await asyncio.to_thread(self._stamp.delay)
        else:
            self._asked = (str(count), str(seconds))

    async def ended(self, what: str) -> int:
        table = "flow_run" if what == "runs" else "task_run"
        question = f"SELECT count(*) FROM {table} WHERE state_type = 'COMPLETED'"
        with closing(sqlite3.connect(f"{self.place}/prefect.db", timeout=30)) as db:
            return db.execute(question).fetchone()[0]


def _until_healthy(url: str) -> None:
    give_up = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.1)


def adapter(place: str, variant: str) -> Adapter:  # noqa: ARG001
    return Prefect(place)


async def _singles(single, count: int) -> None:
    free = asyncio.Semaphore(LIMIT)

    async def one(n: int) -> None:
        async with free:
            await single(n)

    await asyncio.gather(*(one(n) for n in range(count)))


if __name__ == "__main__":
    [_, kind, *rest] = sys.argv
    many, single, sleeps, stamp = _flows()
    if kind == "steps":
        many(int(rest[0]))
    elif kind == "runs":
        asyncio.run(_singles(single, int(rest[0])))
    elif kind == "idle":
        stamp.serve()
    else:
        sleeps(int(rest[0]), float(rest[1]))
