"""procrastinate on the same server: how many no-ops a second, and how soon an idle worker starts one."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

MODULE = "bench.peers.queue_app"
JOBS = 1_000
STARTS = 40
CONCURRENCY = 50
DEADLINE_SECONDS = 60.0


class Peer(NamedTuple):
    steps: float
    """No-ops a second, one worker."""
    start_ms: float
    """Median from the submission to the body, the worker idle."""


def measure(url: str) -> Peer:
    with tempfile.TemporaryDirectory() as folder:
        stamps = Path(folder) / "stamps"
        stamps.touch()
        os.environ["BENCH_POSTGRES"] = url
        os.environ["BENCH_STAMPS"] = str(stamps)
        from bench.peers.queue_app import app  # only now: it reads the url as it is imported

        asyncio.run(_schema(app))
        return Peer(_steps(url, app), _start(app, stamps))


async def _schema(app: Any) -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


@contextmanager
def _worker(queue: str) -> Iterator[None]:
    command = [
        *(sys.executable, "-m", "procrastinate", f"--app={MODULE}.app", "worker"),
        *(f"--queues={queue}", f"--concurrency={CONCURRENCY}"),
    ]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


def _steps(url: str, app: Any) -> float:
    from bench.peers.queue_app import noop

    async def defer() -> None:
        async with app.open_async():
            await noop.batch_defer_async(*({"n": n} for n in range(JOBS)))

    with psycopg.connect(url, autocommit=True) as conn, _worker("noop"):
        asyncio.run(defer())
        began = None
        end = time.perf_counter() + DEADLINE_SECONDS
        while time.perf_counter() < end:
            [done] = conn.execute(
                "SELECT count(*) FROM procrastinate_jobs"
                " WHERE status = 'succeeded' AND queue_name = 'noop'"
            ).fetchone() or [0]
            # From the first ones on: its start-up is not what is compared.
            if done and began is None:
                began, first = time.perf_counter(), done
            if done == JOBS and began is not None:
                return (JOBS - first) / max(1e-6, time.perf_counter() - began)
            time.sleep(0.005)
    raise TimeoutError("procrastinate did not finish")


def _start(app: Any, stamps: Path) -> float:
    from bench.peers.queue_app import stamp

    async def go() -> list[float]:
        taken: list[float] = []
        async with app.open_async():
            for n in range(STARTS + 2):
                sent = time.time()
                await stamp.defer_async(n=n)
                while len(lines := stamps.read_text().splitlines()) <= n:
                    await asyncio.sleep(0.002)
                taken.append(float(lines[-1]) - sent)
                await asyncio.sleep(0.02)
        return taken[2:]

    with _worker("stamp"):
        return statistics.median(asyncio.run(go())) * 1e3
