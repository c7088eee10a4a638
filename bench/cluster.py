"""A server and workers as processes on PostgreSQL with fsync, settings as shipped, beside a bare loop.

Ours and the bare loop (`bench/bare.py`, in a fresh database) take turns: 5 rounds, 3 of a pool. A ratio is the
median of the rounds' ratios. `tuned` is a worker whose claims and permits are not limited, to see what the
settings cost. Waiting clients and long maps: `fleet_long`. Peers: `make bench-peers`.

    python -m bench cluster
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from bench import bare
from bench import cluster_steps as steps
from bench import engine as graphs
from bench.peers.drive import pause_after
from bench.peers.workload import FULL
from bench.report import Figure, Spread, ratios
from locktender import Client, Flow, Submission, connect
from locktender.testing.postgres_server import connected, copy_of, server, template

ROUNDS = 5
ITEMS, RUNS = FULL.steps, FULL.runs
"""The counts of `make bench-peers`, so that both have one share of the bare loop."""
WARM_UP = 20
"""A part of the counts, before they are measured, as in `make bench-peers`."""
SUBMITTED_AT_ONCE = 500
"""Runs of one `submit_many`, which is all or none: the first of them start while the others are submitted."""
FIVES = 4_000
LIMITS = ((0.001, 1_000, None), (0.01, 500, None), (0.1, 100, 1.08))
"""Seconds of a body, how many of them, and the target of wall ÷ ideal."""
PATIENCE_SECONDS = 300
PATIENCE = f"{PATIENCE_SECONDS}s"
TICKS = 100


class Fleet(NamedTuple):
    engine: Client
    leader: subprocess.Popen[bytes]
    workers: list[subprocess.Popen[bytes]]


def run() -> list[Figure]:
    figures: list[Figure] = []
    with server(durable=True) as url, template(url) as name:
        with copy_of(url, name) as own:
            figures += _as_shipped(own, url)
        with copy_of(url, name) as own:
            figures += _graphs(own)
        for count in (1, 2, 4):
            with copy_of(url, name) as own:
                figures += _scaling(own, count)
    return figures


@contextmanager
def processes(url: str) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """What starts a command, as shipped, and returns when it is ready; all end with this."""
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
        if not process.stdout.readline():
            raise RuntimeError(f"{command[0]} ended with {process.wait(30)} before it was ready")
        return process

    try:
        yield start
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(30)


@contextmanager
def fleet(url: str, workers: int, *settings: str) -> Iterator[Fleet]:
    sets = [each for setting in settings for each in ("--set", setting)]
    with processes(url) as start:
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


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _as_shipped(url: str, postgres: str) -> list[Figure]:
    steps_pairs: list[tuple[float, float]] = []
    runs_pairs: list[tuple[float, float]] = []
    with fleet(url, 1) as (engine, *_):
        wide(engine, ITEMS // WARM_UP, steps.plains)
        _singles(engine, url, RUNS // WARM_UP)
        # The bare loop stands between the two, so that it is the neighbour of both.
        for _ in range(ROUNDS):
            mapped = wide(engine, ITEMS, steps.plains)
            loop = bare.postgres_rate(postgres)
            steps_pairs.append((mapped, loop))
            runs_pairs.append((_singles(engine, url), loop))
        pooled = Spread.of([wide(engine, ITEMS) for _ in range(ROUNDS)])
        start_ms, gap_ms = _idle(engine), _gap(engine)
        limited = [statistics.median(_pool(engine, *each[:2]) for _ in range(3)) for each in LIMITS]
    with fleet(url, 1, "async_permits=0", "claim_batch=1000") as (engine, *_):
        tuned = Spread.of([wide(engine, ITEMS, steps.plains) for _ in range(ROUNDS)])
    rate, bare_rate = (Spread.of(each) for each in zip(*steps_pairs, strict=True))
    runs = Spread.of([each for each, _ in runs_pairs])
    share, run_share = ratios(steps_pairs), ratios(runs_pairs)
    return [
        Figure("no-op steps, server + worker", rate.median, "/s", spread=rate.note),
        Figure("… each in a pool", pooled.median, "/s", spread=pooled.note),
        Figure("… tuned", tuned.median, "/s", spread=tuned.note),
        Figure("… a bare claim + complete loop", bare_rate.median, "/s", spread=bare_rate.note),
        Figure.at_least("… share of the bare loop", share.median, "×", 0.36, 0.28, spread=share.note),
        Figure("single-step runs, submitted and done", runs.median, "/s", "≥ 5,000", runs.median >= 5_000,
               spread=runs.note),
        Figure("… share of the bare loop, single-step runs", run_share.median, "×", spread=run_share.note),
        Figure("idle submit → start p50, three processes", start_ms, "ms"),
        Figure("hand-off in a pool of 1, end → next start p50", gap_ms, "ms", "≤ 5", gap_ms <= 5),
        *(
            Figure(f"pool of 10, {count} bodies of {seconds * 1e3:.0f} ms, wall / ideal", value, "×",
                   f"≤ {target}" if target else "", value <= target if target else None)
            for (seconds, count, target), value in zip(LIMITS, limited, strict=True)
        ),
    ]  # fmt: skip


def wide(engine: Client, items: int, flow: Flow[[list[int]], list[int]] = steps.many) -> float:
    """No-op steps/s of one map."""
    began = time.perf_counter()
    engine.submit(flow, list(range(items))).result(PATIENCE)
    return items / (time.perf_counter() - began)


def _singles(engine: Client, url: str, count: int = RUNS) -> float:
    before = asyncio.run(_ended(url, 0))
    began = time.perf_counter()
    for first in range(0, count, SUBMITTED_AT_ONCE):
        several = range(first, min(count, first + SUBMITTED_AT_ONCE))
        engine.submit_many(steps.single, [Submission((n,)) for n in several])
    asyncio.run(_ended(url, before + count))
    taken = time.perf_counter() - began
    if failed := len(engine.runs.list(status="failed", limit=1)):
        raise RuntimeError(f"{failed} or more runs failed")
    return count / taken


async def _ended(url: str, at_least: int) -> int:
    """How many runs have ended, by the store's own counter: to count their rows took up to a fifth of a core."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    async with connected(url) as conn:
        while True:
            asked = time.monotonic()
            count: int = await conn.fetchval("SELECT closed FROM locktender.closed WHERE name = ''")
            if count >= at_least:
                return count
            if asked > give_up:
                raise TimeoutError(f"{at_least - count} runs did not end in {PATIENCE_SECONDS} s")
            await asyncio.sleep(pause_after(time.monotonic() - asked))


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


# -- real graphs and more workers ------------------------------------------------------------------


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


if __name__ == "__main__":
    for figure in run():
        print(figure.line())
