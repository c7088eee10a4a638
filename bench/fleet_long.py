"""A fleet under loads that last: processes that wait for results, and maps of 100,000 items.

A server and a worker as in `cluster`: processes on PostgreSQL with fsync, settings as shipped. About four minutes.

    python -m bench fleet_long
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager

from bench import cluster_steps as steps
from bench.cluster import cpu_seconds, fleet, wide
from bench.report import Figure, ratios
from locktender import connect_async
from locktender.testing.postgres_server import copy_of, server, template

MAP, LONG_MAP = 10_000, 100_000
MAP_ROUNDS = 5
WAITERS, CLIENTS = 100, 10
WAITED_ITEMS = 20_000
"""Enough that what happens once a second happens in every round."""
SETTLED_SECONDS = 8.0


def run() -> list[Figure]:
    figures: list[Figure] = []
    with server(durable=True) as url, template(url) as name:
        for measure in (_waiting, _maps):
            with copy_of(url, name) as own:
                figures += measure(own)
    return figures


def _cpu(*processes: subprocess.Popen[bytes]) -> float:
    return sum(cpu_seconds(each.pid) for each in processes)


def _waiting(url: str) -> list[Figure]:
    """Runs that no worker can run are there in both cases; in one of them a process waits for their results."""
    with fleet(url, 1) as (engine, leader, workers):
        for n in range(WAITERS):
            engine.submit(steps.never, n)
        alone: list[tuple[float, float]] = []
        beside: list[tuple[float, float]] = []

        def measure(figures: list[tuple[float, float]]) -> None:
            before = _cpu(leader, *workers)
            rate = wide(engine, WAITED_ITEMS)
            figures.append((rate, (_cpu(leader, *workers) - before) / WAITED_ITEMS * 1e6))

        # In turns, each after a pause as long: after some idle seconds everything is slower for a while.
        for n in range(4):
            for waits in (n % 2 == 0, n % 2 == 1):
                with _waiters(url) if waits else _pause():
                    wide(engine, MAP)
                    for _ in range(3):
                        measure(beside if waits else alone)
    (rate, cpu), (waited, busy) = (
        [statistics.median(each) for each in zip(*figures, strict=True)]
        for figures in (alone, beside)
    )
    cost = (1 - waited / rate) * 100
    note = f"CPU of leader and worker: {cpu:.0f} µs a step without, {busy:.0f} µs with"
    name = f"{WAITERS} waits in {CLIENTS} clients, after {SETTLED_SECONDS:.0f} s, cost the fleet"
    return [Figure.at_most(name, cost, "%", 1, 3, note)]


@contextmanager
def _pause() -> Iterator[None]:
    time.sleep(SETTLED_SECONDS)
    yield


@contextmanager
def _waiters(url: str) -> Iterator[None]:
    command = [sys.executable, "-m", "bench.fleet_long", "wait", url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        if int(process.stdout.readline() or 0) != WAITERS:
            raise RuntimeError("the waiting clients failed to start or found too few runs")
        yield
    finally:
        process.terminate()
        process.communicate(timeout=30)


async def _wait(url: str) -> None:
    async with AsyncExitStack() as opened:
        clients = [await opened.enter_async_context(connect_async(url)) for _ in range(CLIENTS)]
        found = await clients[0].runs.list(status="running", limit=WAITERS)
        runs = [await clients[n % CLIENTS].runs.get(each.id) for n, each in enumerate(found)]
        waits = asyncio.gather(*(run.wait() for run in runs))
        # What it costs to begin to wait is not what waiting costs: a read, and some seconds of attention.
        await asyncio.sleep(SETTLED_SECONDS)
        print(len(runs), flush=True)
        await waits


def _maps(url: str) -> list[Figure]:
    with fleet(url, 1) as (engine, *_):
        # Seconds of an item: the rates, upside down. The other one begins each time.
        pairs: list[tuple[float, float]] = []
        for number in range(MAP_ROUNDS):
            sizes = (LONG_MAP, MAP) if number % 2 == 0 else (MAP, LONG_MAP)
            taken = {size: 1 / wide(engine, size) for size in sizes}
            pairs.append((taken[LONG_MAP], taken[MAP]))
    growth = ratios(pairs)
    long, short = (statistics.median(each) * 1e6 for each in zip(*pairs, strict=True))
    note = f"{short:.0f} µs -> {long:.0f} µs"
    name = f"a map of {LONG_MAP:,} items / of {MAP:,}, per item"
    return [Figure.at_most(name, growth.median, "×", 1.05, 1.15, note, growth.note)]


if __name__ == "__main__":
    if sys.argv[1:2] == ["wait"]:
        asyncio.run(_wait(sys.argv[2]))
    else:
        for figure in run():
            print(figure.line())
