"""A server and workers as processes on PostgreSQL with fsync, beside a bare loop and a peer in the same run.

python -m bench cluster
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import asyncpg

from bench import cluster_steps as steps
from bench.postgres import BARE, BATCH, CLAIM, COMPLETE
from bench.report import Figure
from locktender import Client, Submission, connect
from locktender.testing.postgres_server import connected, copy_of, server, template

if TYPE_CHECKING:
    from bench.peers import procrastinate

ITEMS = 5_000
RUNS = 5_000
FIVES = 4_000
PATIENCE = "120s"
TICKS = 100


class Fleet(NamedTuple):
    engine: Client
    leader: subprocess.Popen[bytes]
    workers: list[subprocess.Popen[bytes]]


def run() -> list[Figure]:
    from bench.peers import procrastinate  # only here: it is installed for benchmarks alone

    with server(durable=True) as url, template(url) as name:
        with copy_of(url, name) as own:
            bare = asyncio.run(_bare(own))
        with copy_of(url, name) as own:
            peer = procrastinate.measure(own)
        with copy_of(url, name) as own:
            figures = _ours(own, bare, peer)
        for count in (1, 2, 4):
            with copy_of(url, name) as own:
                figures += _scaling(own, count)
    return figures


@contextmanager
def fleet(url: str, workers: int, *settings: str) -> Iterator[Fleet]:
    sets = [each for setting in settings for each in ("--set", setting)]
    base = [sys.executable, "-m", "locktender"]
    rest = ["--url", url, "--json", "--with-parent", "--set", "log_level=warning"]
    started: list[subprocess.Popen[bytes]] = []

    def start(*command: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [*base, *command, *rest], stdin=subprocess.PIPE, stdout=subprocess.PIPE
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


def _ours(url: str, bare: float, peer: procrastinate.Peer) -> list[Figure]:
    with fleet(url, 1, "async_permits=0", "claim_batch=1000") as (engine, *_):
        rates = [_wide(engine) for _ in range(3)]
        steps_rate = max(rates)
        runs = _singles(engine, url)
        start_ms = _idle(engine)
        gap_ms = _gap(engine)
        pool = _pool(engine)
    share, times = steps_rate / bare, steps_rate / peer.steps
    return [
        Figure("no-op steps, one worker", steps_rate, "/s", "≥ 10,000", steps_rate >= 10_000),
        Figure("… a bare claim + complete loop", bare, "/s"),
        Figure("… share of it", share, "×", "≥ 0.25, floor 0.1", share >= 0.25),
        Figure("… procrastinate", peer.steps, "/s"),
        Figure("… times procrastinate", times, "×", "≥ 8", times >= 8),
        Figure("single-step runs, submitted and done", runs, "/s", "aim 5,000", runs >= 5_000),
        Figure("idle submit → start p50, three processes", start_ms, "ms",
               f"≤ {peer.start_ms:.2f} (procrastinate)", start_ms <= peer.start_ms),
        Figure("hand-off in a pool of 1, end → next start p50", gap_ms, "ms", "≤ 5", gap_ms <= 5),
        Figure("pool of 10, 200 bodies of 100 ms, wall / ideal", pool, "×", "≤ 1.08", pool <= 1.08),
    ]  # fmt: skip


def _wide(engine: Client) -> float:
    began = time.perf_counter()
    engine.submit(steps.many, list(range(ITEMS))).result(PATIENCE)
    return ITEMS / (time.perf_counter() - began)


def _singles(engine: Client, url: str) -> float:
    before = asyncio.run(_ended(url, 0))
    began = time.perf_counter()
    engine.submit_many(steps.single, [Submission((n,)) for n in range(RUNS)])
    asyncio.run(_ended(url, before + RUNS))
    return RUNS / (time.perf_counter() - began)


async def _ended(url: str, at_least: int) -> int:
    async with connected(url) as conn:
        while True:
            count: int = await conn.fetchval(
                "SELECT count(*) FROM locktender.run WHERE state = 'succeeded'"
            )
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


def _pool(engine: Client) -> float:
    began = time.perf_counter()
    engine.submit(steps.pool_of_ten, [0.1] * 200).result(PATIENCE)
    return (time.perf_counter() - began) / 2.0


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
    async with connected(url) as conn:
        await conn.execute(BARE)
        return statistics.median([await _bare_batch(conn) for _ in range(40)][8:])


async def _bare_batch(conn: asyncpg.Connection[asyncpg.Record]) -> float:
    began = time.perf_counter()
    ids = sorted(row[0] for row in await conn.fetch(CLAIM, BATCH))
    await conn.execute(COMPLETE, ids, [b"42"] * BATCH)
    return BATCH / (time.perf_counter() - began)


if __name__ == "__main__":
    for figure in run():
        print(figure.line())
