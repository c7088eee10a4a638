"""A server and workers as processes on PostgreSQL with fsync, settings as shipped, beside a bare loop.

Ours and the bare loop take turns; every figure is the median of its rounds. `tuned` is a worker whose claims and
permits are not limited, to see what the settings cost. Peers: `make bench-peers`.

    python -m bench cluster
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import asyncpg

from bench import cluster_steps as steps
from bench import engine as graphs
from bench.postgres import BARE, BATCH, CLAIM, COMPLETE
from bench.report import Figure
from locktender import Client, Submission, connect, connect_async
from locktender.testing.postgres_server import connected, copy_of, server, template

ROUNDS = 5
ITEMS = 5_000
RUNS = 10_000
SUBMITTED_AT_ONCE = 500
"""Runs of one `submit_many`, which is all or none: the first of them start while the others are submitted."""
FIVES = 4_000
MAP, LONG_MAP = 10_000, 100_000
MAP_ROUNDS = 2
WAITERS, CLIENTS = 100, 10
WAITED_ITEMS = 20_000
"""Enough that what happens once a second happens in every round."""
SETTLED_SECONDS = 8.0
LIMITS = ((0.001, 1_000, None), (0.01, 500, None), (0.1, 100, 1.08))
"""Seconds of a body, how many of them, and the target of wall ÷ ideal."""
PATIENCE = "300s"
TICKS = 100


class Fleet(NamedTuple):
    engine: Client
    leader: subprocess.Popen[bytes]
    workers: list[subprocess.Popen[bytes]]


def run() -> list[Figure]:
    figures: list[Figure] = []
    with server(durable=True) as url, template(url) as name:
        with copy_of(url, name) as own:
            figures += _as_shipped(own)
        with copy_of(url, name) as own:
            figures += _waiting(own)
        with copy_of(url, name) as own:
            figures += _maps(own)
        with copy_of(url, name) as own:
            figures += _graphs(own)
        for count in (1, 2, 4):
            with copy_of(url, name) as own:
                figures += _scaling(own, count)
    return figures


@contextmanager
def fleet(url: str, workers: int, *settings: str) -> Iterator[Fleet]:
    sets = [each for setting in settings for each in ("--set", setting)]
    base = [sys.executable, "-m", "locktender"]
    rest = ["--url", url, "--json", "--with-parent"]
    started: list[subprocess.Popen[bytes]] = []

    def start(*command: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [*base, *command, *rest],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # as shipped it logs
        )
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    try:
        leader = start("server", "--port", "0")
        crew = [start("worker", "--app", steps.__name__, *sets) for _ in range(workers)]
        with connect(url) as engine:
            engine.limits.set_max_concurrent_runs(-1)
            engine.limits.set_max_active(-1)
            engine.pools.set("wide", limit=100_000)
            engine.pools.set("ten", limit=10)
            engine.pools.set("one", limit=1)
            engine.submit(steps.many, list(range(200))).result(PATIENCE)
            yield Fleet(engine, leader, crew)
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(30)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _cpu(*processes: subprocess.Popen[bytes]) -> float:
    return sum(cpu_seconds(each.pid) for each in processes)


def _as_shipped(url: str) -> list[Figure]:
    with fleet(url, 1) as (engine, *_):
        pairs = [(_wide(engine), asyncio.run(_bare(url))) for _ in range(ROUNDS)]
        runs = [(_singles(engine, url), asyncio.run(_bare(url))) for _ in range(ROUNDS)]
        start_ms, gap_ms = _idle(engine), _gap(engine)
        limited = [statistics.median(_pool(engine, *each[:2]) for _ in range(3)) for each in LIMITS]
    with fleet(url, 1, "async_permits=0", "claim_batch=1000") as (engine, *_):
        tuned = statistics.median(_wide(engine) for _ in range(ROUNDS))
    rate, run_rate = (statistics.median(each for each, _ in found) for found in (pairs, runs))
    bare = statistics.median(each for _, each in pairs)
    share = statistics.median(ours / theirs for ours, theirs in pairs)
    run_share = statistics.median(ours / theirs for ours, theirs in runs)
    return [
        Figure("no-op steps, server + worker", rate, "/s"),
        Figure("… tuned", tuned, "/s"),
        Figure("… a bare claim + complete loop", bare, "/s"),
        Figure("… share of the bare loop", share, "×", "≥ 0.36, floor 0.28", share >= 0.36),
        Figure("single-step runs, submitted and done", run_rate, "/s", "5,000", run_rate >= 5_000),
        Figure("… share of the bare loop, single-step runs", run_share, "×"),
        Figure("idle submit → start p50, three processes", start_ms, "ms"),
        Figure("hand-off in a pool of 1, end → next start p50", gap_ms, "ms", "≤ 5", gap_ms <= 5),
        *(
            Figure(f"pool of 10, {count} bodies of {seconds * 1e3:.0f} ms, wall / ideal", value, "×",
                   f"≤ {target}" if target else "", value <= target if target else None)
            for (seconds, count, target), value in zip(LIMITS, limited, strict=True)
        ),
    ]  # fmt: skip


def _wide(engine: Client, items: int = ITEMS) -> float:
    began = time.perf_counter()
    engine.submit(steps.many, list(range(items))).result(PATIENCE)
    return items / (time.perf_counter() - began)


def _singles(engine: Client, url: str) -> float:
    before = asyncio.run(_ended(url, 0))
    began = time.perf_counter()
    for first in range(0, RUNS, SUBMITTED_AT_ONCE):
        several = range(first, first + SUBMITTED_AT_ONCE)
        engine.submit_many(steps.single, [Submission((n,)) for n in several])
    asyncio.run(_ended(url, before + RUNS))
    taken = time.perf_counter() - began
    if failed := len(engine.runs.list(status="failed", limit=1)):
        raise RuntimeError(f"{failed} or more runs failed")
    return RUNS / taken


async def _ended(url: str, at_least: int) -> int:
    """How many runs have ended, by the store's own counter: to count their rows took up to a fifth of a core."""
    async with connected(url) as conn:
        while True:
            count: int = await conn.fetchval("SELECT closed FROM locktender.closed WHERE name = ''")
            if count >= at_least:
                return count
            await asyncio.sleep(0.02)


def _idle(engine: Client) -> float:
    taken: list[float] = []
    for n in range(60):
        sent = time.time()
        taken.append(engine.submit(steps.once, n).result(PATIENCE) - sent)
        time.sleep(0.02)
    return statistics.median(taken[20:]) * 1e3


def _gap(engine: Client) -> float:
    spans = sorted(engine.submit(steps.turns, list(range(200))).result(PATIENCE))
    gaps = [after[0] - before[1] for before, after in pairwise(spans)]
    return statistics.median(gaps) * 1e3


def _pool(engine: Client, seconds: float, count: int) -> float:
    began = time.perf_counter()
    engine.submit(steps.pool_of_ten, [seconds] * count).result(PATIENCE)
    return (time.perf_counter() - began) / (count * seconds / 10)


# -- waiting clients -------------------------------------------------------------------------------


def _waiting(url: str) -> list[Figure]:
    """Runs that no worker can run are there in both cases; in one of them a process waits for their results."""
    with fleet(url, 1) as (engine, leader, workers):
        for n in range(WAITERS):
            engine.submit(steps.never, n)
        alone: list[tuple[float, float]] = []
        beside: list[tuple[float, float]] = []

        def measure(figures: list[tuple[float, float]]) -> None:
            before = _cpu(leader, *workers)
            rate = _wide(engine, WAITED_ITEMS)
            figures.append((rate, (_cpu(leader, *workers) - before) / WAITED_ITEMS * 1e6))

        # In turns, each after a pause as long: after some idle seconds everything is slower for a while.
        for n in range(4):
            for waits in (n % 2 == 0, n % 2 == 1):
                with _waiters(url) if waits else _pause():
                    _wide(engine, MAP)
                    for _ in range(3):
                        measure(beside if waits else alone)
    (rate, cpu), (waited, busy) = (
        [statistics.median(each) for each in zip(*figures, strict=True)]
        for figures in (alone, beside)
    )
    cost = (1 - waited / rate) * 100
    note = f"CPU of leader and worker: {cpu:.0f} µs a step without, {busy:.0f} µs with"
    return [
        Figure(
            f"{WAITERS} waiting clients cost the fleet", cost, "%", "≤ 1, floor 3", cost <= 1, note
        )
    ]


@contextmanager
def _pause() -> Iterator[None]:
    time.sleep(SETTLED_SECONDS)
    yield


@contextmanager
def _waiters(url: str) -> Iterator[None]:
    command = [sys.executable, "-m", "bench.cluster", "wait", url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        if int(process.stdout.readline() or 0) != WAITERS:
            raise RuntimeError(
                "the waiting clients did not start, or have too few runs to wait for"
            )
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


# -- long maps and real graphs ---------------------------------------------------------------------


def _maps(url: str) -> list[Figure]:
    with fleet(url, 1) as (engine, *_):
        pairs = [(1 / _wide(engine, MAP), 1 / _wide(engine, LONG_MAP)) for _ in range(MAP_ROUNDS)]
    growth = statistics.median(long / short for short, long in pairs)
    short, long = (statistics.median(each) * 1e6 for each in zip(*pairs, strict=True))
    note = f"{short:.0f} µs -> {long:.0f} µs"
    return [
        Figure(f"a map of {LONG_MAP:,} items / of {MAP:,}, per item", growth, "×",
               "≤ 1.05, floor 1.15", growth <= 1.05, note),
    ]  # fmt: skip


def _graphs(url: str) -> list[Figure]:
    with fleet(url, 1) as (engine, *_):

        def took(graph: graphs.Tasks, runtimes: list[float]) -> float:
            began = time.perf_counter()
            engine.submit(graphs.workload, graph, runtimes).result(PATIENCE)
            return time.perf_counter() - began

        return graphs.graph_figures("server + worker: ", took)


def _scaling(url: str, count: int) -> list[Figure]:
    with fleet(url, count, "async_permits=16") as (engine, leader, workers):
        lead, crew = cpu_seconds(leader.pid), sum(cpu_seconds(each.pid) for each in workers)
        began = time.perf_counter()
        engine.submit(steps.fives, list(range(FIVES))).result(PATIENCE)
        rate = FIVES / (time.perf_counter() - began)
        lead = cpu_seconds(leader.pid) - lead
        crew = sum(cpu_seconds(each.pid) for each in workers) - crew
    ideal = count * 16 / 0.005
    per_step = f"leader {lead / FIVES * 1e6:.0f} µs, workers {crew / FIVES * 1e6:.0f} µs"
    note = f"of {ideal:,.0f}; CPU per step: {per_step}"
    return [Figure(f"{count} workers of 16 permits, steps of 5 ms", rate, "/s", note=note)]


async def _bare(url: str) -> float:
    """In the same database, in turns with ours."""
    async with connected(url) as conn:
        await conn.execute("DROP TABLE IF EXISTS bare")
        await conn.execute(BARE)
        return statistics.median([await _bare_batch(conn) for _ in range(40)][8:])


async def _bare_batch(conn: asyncpg.Connection[asyncpg.Record]) -> float:
    began = time.perf_counter()
    ids = sorted(row[0] for row in await conn.fetch(CLAIM, BATCH))
    await conn.execute(COMPLETE, ids, [b"42"] * BATCH)
    return BATCH / (time.perf_counter() - began)


if __name__ == "__main__":
    if sys.argv[1:2] == ["wait"]:
        asyncio.run(_wait(sys.argv[2]))
    else:
        for figure in run():
            print(figure.line())
