"""huey on SQLite with fsync: its consumer by its own command, 10 threads; the limit is their number.

It polls each 10 ms (each 0.1 s and slower, up to 10 s, as shipped).
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from huey import SqliteHuey

from bench.peers import bodies
from bench.peers.drive import Adapter, process
from bench.peers.workload import LIMIT, POLL_SECONDS

WHAT = os.environ.get("BENCH_WHAT", "")


def _queue(what: str) -> SqliteHuey:
    return SqliteHuey(
        what, filename=str(Path(os.environ["BENCH_PLACE"]) / f"{what}.db"), fsync=True
    )


def _task(queue: SqliteHuey, what: str):
    @queue.task(name="task")
    def task(seconds: float) -> int:
        if what == "idle":
            bodies.stamp()
        elif what != "steps":
            bodies.sleep_in_thread(seconds)
        return 1

    return task


if WHAT:
    queue = _queue(WHAT)
    task = _task(queue, WHAT)


class Huey(Adapter):
    can = Adapter.can - {"runs"}
    scale = 0.3

    async def open(self) -> None:
        self._tasks = {}

    @asynccontextmanager
    async def working(self, what: str) -> AsyncGenerator[None]:
        command = [str(Path(sys.executable).parent / "huey_consumer"), f"{__name__}.queue"]
        poll = ["-d", str(POLL_SECONDS), "-m", str(POLL_SECONDS)]
        with process([*command, "-w", str(LIMIT), "-k", "thread", *poll], BENCH_WHAT=what):
            yield

    async def submit(self, what: str, count: int, seconds: float = 0.0) -> None:
        if what not in self._tasks:
            self._tasks[what] = _task(_queue(what), what)
        for _ in range(count):
            self._tasks[what](seconds)

    async def ended(self, what: str) -> int:
        """Each has a result."""
        with sqlite3.connect(Path(self.place) / f"{what}.db", timeout=30) as db:
            return db.execute("SELECT count(*) FROM kv").fetchone()[0]


def adapter(place: str, variant: str) -> Adapter:  # noqa: ARG001
    return Huey(place)
