"""Ours, settings as shipped, from `submit` to `result`: a server and a worker as processes, or embedded."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import AsyncExitStack, closing
from pathlib import Path

from bench.peers import bodies
from bench.peers.drive import ROOT, Adapter, pause_after
from bench.peers.workload import LIMIT
from locktender import AsyncClient, Submission, connect_async, embedded_async, flow, step
from locktender.testing.postgres_server import connected

PATIENCE = "120s"
PATIENCE_SECONDS = 120.0
ENDED = "SELECT closed FROM {} WHERE name = ''"
SUCCEEDED = "SELECT count(*) FROM {} WHERE state = 'succeeded' AND flow LIKE '%single'"
SUBMITTED_AT_ONCE = 500
"""Runs of one `submit_many`, which is all or none: the first of them start while the others are submitted."""


@step
async def noop(n: int) -> int:
    return n


@step
async def stamp() -> None:
    bodies.stamp()


@step(pools={"ten": 1})
async def sleep(seconds: float) -> None:
    await bodies.sleep(seconds)


@flow
def many(items: list[int]) -> list[int]:
    return noop.map(items)


@flow
def single(n: int) -> int:
    return noop(n)


@flow
def once() -> None:
    stamp()


@flow
def sleeps(items: list[float]) -> None:
    sleep.map(items)


class Ours(Adapter):
    fills_first = False

    def __init__(self, place: str, variant: str) -> None:
        super().__init__(place)
        self._url = place if "://" in place else str(Path(place) / "bench.db")
        self._processes = variant == "server"
        self._opened = AsyncExitStack()
        self._runs = 0

    async def open(self) -> None:
        url = self._url
        if self._processes:
            for command in (["server", "--port", "0"], ["worker", "--app", __name__]):
                self._opened.callback(_end, _started(command, url))
            client = await self._opened.enter_async_context(connect_async(url))
        else:
            client = await self._opened.enter_async_context(embedded_async(url))
        self._client: AsyncClient = client
        self._counter, self._file = "closed", None
        if "://" in url:
            self._db = await self._opened.enter_async_context(connected(url))
        else:
            self._counter = "counter"
            self._file = self._opened.enter_context(closing(sqlite3.connect(url, timeout=60)))
        await client.pools.set("ten", limit=LIMIT)
        # A limit, not a setting of the machinery: the peers have none on runs.
        await client.limits.set_max_concurrent_runs(-1)

    async def close(self) -> None:
        await self._opened.aclose()

    async def submit(self, what: str, count: int, seconds: float = 0.0) -> None:
        await self.done(what, count, seconds)

    async def done(self, what: str, count: int, seconds: float = 0.0) -> float:
        began = time.monotonic()
        if what == "steps":
            run = await self._client.submit(many, list(range(count)))
            assert len(await run.result(PATIENCE)) == count
        elif what == "runs":
            await self._singles(count)
        elif what == "idle":
            await (await self._client.submit(once)).result(PATIENCE)
        else:
            await (await self._client.submit(sleeps, [seconds] * count)).result(PATIENCE)
        return time.monotonic() - began

    async def _singles(self, count: int) -> None:
        """As the peers' ends are waited for: by counting. Thousands of waiting clients are another workload.

        The store's counter says when so many runs have ended; how they ended is counted once, at the end: to
        count rows each time takes up to a fifth of a core.
        """
        before = await self._ask(ENDED, self._counter)
        for first in range(0, count, SUBMITTED_AT_ONCE):
            several = range(first, min(count, first + SUBMITTED_AT_ONCE))
            await self._client.submit_many(single, [Submission((n,)) for n in several])
        give_up = time.monotonic() + PATIENCE_SECONDS
        while True:
            asked = time.monotonic()
            ended, now = await self._ask(ENDED, self._counter) - before, time.monotonic()
            if ended >= count:
                break
            if now > give_up:
                raise TimeoutError(f"{ended} of {count} runs ended in {PATIENCE}")
            await asyncio.sleep(pause_after(now - asked))
        self._runs += count
        if (found := await self._ask(SUCCEEDED, "run")) != self._runs:
            raise RuntimeError(f"{found} of {self._runs} runs succeeded")

    async def _ask(self, question: str, table: str) -> int:
        if self._file is not None:
            return self._file.execute(question.format(table)).fetchone()[0]
        return await self._db.fetchval(question.format(f"locktender.{table}"))


def _started(command: list[str], url: str) -> subprocess.Popen[bytes]:
    base = [sys.executable, "-m", "locktender", *command, "--url", url, "--json", "--with-parent"]
    with Path(os.environ["BENCH_LOG"]).open("a") as said:
        process = subprocess.Popen(
            base, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said
        )
    assert process.stdout is not None
    if not process.stdout.readline():
        raise RuntimeError(f"{command} did not start")
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.communicate(timeout=30)


def adapter(place: str, variant: str) -> Adapter:
    return Ours(place, variant)
