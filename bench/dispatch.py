"""Bounded dispatch: what it costs to be let in, to be turned away, and to be given a fair turn.

python -m bench dispatch
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench import cluster_steps as steps
from bench.report import Figure
from locktender import AdmissionRejected, AsyncClient, Client, connect, connect_async
from locktender.base.changes import End
from locktender.base.clock import SystemClock
from locktender.base.graph import Graph, Node
from locktender.base.ids import RunId
from locktender.base.model import NewRun, WorkerRow
from locktender.client.submit import Preparing
from locktender.kernel.scheduler import Scheduler
from locktender.leader.queue_reader import QueueReader
from locktender.store.protocol import Elect, SetLimit, Submit
from locktender.store.sqlite.store import SqliteStore
from locktender.testing.postgres_server import copy_of, server, template

MANY = 10_000
REJECTIONS = 4_000
SUBMITTERS = 8
FEW_ACTIVE, MANY_ACTIVE = 100, 100_000
SINGLES = 200
TENANTS = 10_000
QUEUED = 50_000
RUNNING = 200
PER_CYCLE = 20
CYCLES = 100


def run() -> list[Figure]:
    figures: list[Figure] = []
    with _postgres() as url:
        figures += _admission("PostgreSQL", url, held=True)
    with tempfile.TemporaryDirectory() as folder:
        figures += _admission("SQLite", str(Path(folder) / "bench.db"), held=False)
    return figures + _fair()


@contextmanager
def _postgres() -> Generator[str]:
    with server(durable=True) as url, template(url) as name, copy_of(url, name) as own:
        yield own


def _admission(store: str, url: str, *, held: bool) -> list[Figure]:
    """`held`: the targets are set for this store."""
    with connect(url) as engine:
        engine.limits.set_max_active(-1)
        engine.limits.set_tag("tenant", per_value=True, max_active=MANY_ACTIVE)
        engine.submit_many(steps.single, range(FEW_ACTIVE))
        few = _single(engine)
        rates: list[float] = []
        left = MANY_ACTIVE - FEW_ACTIVE - SINGLES
        while left > 0:
            began = time.perf_counter()
            made = engine.submit_many(steps.single, range(min(MANY, left)))
            rates.append(len(made) / (time.perf_counter() - began))
            left -= len(made)
        many = _single(engine)
    stored = asyncio.run(_stored(url))
    with connect(url) as engine:
        engine.limits.set_max_active(1_000)
    rejected = asyncio.run(_rejections(url))
    rate = statistics.median(rates)
    return [
        Figure(f"{store}: submit_many, {MANY:,} runs a call, traced and stored", rate, "/s",
               "≥ 20,000" if held else "", rate >= 20_000 if held else None),
        Figure(f"{store}: … stored, once they are traced", stored, "/s"),
        Figure(f"{store}: rejections, {SUBMITTERS} submitters of one client", rejected, "/s",
               "≥ 2,000", rejected >= 2_000),
        Figure(f"{store}: one submit with {FEW_ACTIVE} active, p50", few, "ms"),
        Figure(f"{store}: one submit with {MANY_ACTIVE:,} active, p50", many, "ms",
               "≤ 1.3 × that", many <= 1.3 * few + 0.2),
    ]  # fmt: skip


def _single(engine: Client) -> float:
    took: list[float] = []
    for n in range(SINGLES):
        began = time.perf_counter()
        engine.submit(steps.single, n, tags={"tenant": f"t{n % 10}"})
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1e3


async def _stored(url: str) -> float:
    """What is left of `submit_many` without the flow's own body and its tracing."""
    rates: list[float] = []
    async with connect_async(url) as engine:
        for _ in range(3):
            preparing = Preparing(steps.single, engine.settings, SystemClock())
            prepared = [preparing.prepare(n) for n in range(MANY)]
            began = time.perf_counter()
            await engine.submit_all_prepared(prepared, partial=False)
            rates.append(MANY / (time.perf_counter() - began))
    return statistics.median(rates)


async def _rejections(url: str) -> float:
    async with connect_async(url) as engine:
        began = time.perf_counter()
        each = REJECTIONS // SUBMITTERS
        await asyncio.gather(*(_turned_away(engine, each) for _ in range(SUBMITTERS)))
        return REJECTIONS / (time.perf_counter() - began)


async def _turned_away(engine: AsyncClient, times: int) -> None:
    for n in range(times):
        try:
            await engine.submit(steps.single, n)
        except AdmissionRejected:
            continue
        raise AssertionError("there was room")


# -- fair turns ------------------------------------------------------------------------------------


class Cycles(NamedTuple):
    ms: float
    decide_ms: float


def _fair() -> list[Figure]:
    found = {how: _in_a_process(how) for how in ("none", "fair")}
    ratio = found["fair"].ms / found["none"].ms
    decided = found["fair"].decide_ms / found["none"].decide_ms
    note = f"{found['none'].ms:.2f} ms -> {found['fair'].ms:.2f} ms"
    return [
        Figure(f"a cycle with a fair key of {TENANTS:,} tenants / with none", ratio, "×",
               "≤ 1.3", ratio <= 1.3, note),
        Figure("… the decision alone", decided, "×", note=f"{found['fair'].decide_ms:.3f} ms"),
    ]  # fmt: skip


def _in_a_process(how: str) -> Cycles:
    command = [sys.executable, "-m", "bench.dispatch", how]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Cycles(*json.loads(done.stdout))


async def _measure(how: str) -> Cycles:
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder) / "fair.db")
        await store.open()
        await store.set_limit(
            [
                SetLimit("runs", "", b'{"limit":%d}' % RUNNING, "bench"),
                SetLimit("active", "", b'{"limit":-1}', "bench"),
            ]
        )
        if how == "fair":
            await store.set_limit([SetLimit("fair", "tenant", b'{"key":"tenant"}', "bench")])
        await _fill(store)
        cycles = await _cycles(store)
        await store.close()
    return cycles


async def _fill(store: SqliteStore) -> None:
    body = msgspec.json.encode(Graph("one", (Node("a", "a", executor="async"),)))
    for first in range(0, QUEUED, 5_000):
        batch = [
            NewRun(
                RunId(f"{index:026d}"), "one", "g", b"{}", b"[]", {"tenant": f"t{index % TENANTS}"}
            )
            for index in range(first, first + 5_000)
        ]
        await store.submit(Submit(batch, {"g": body}))


async def _cycles(store: SqliteStore) -> Cycles:
    """Each ends some runs, brings the heads of their lanes, decides and commits."""
    term = (await store.elect(Elect("bench", 3_600_000_000))).term
    snapshot = await store.load()
    scheduler = Scheduler(snapshot.limits, term, "bench")
    scheduler.begin(snapshot.limit_rows)
    worker = WorkerRow("w", "host", 1, "0", {"async": -1}, -1, -1)
    scheduler.put_worker(worker, local=True)
    feed = QueueReader(store)
    feed.lanes(snapshot.lanes)
    running: list[tuple[int, int]] = []
    took: list[float] = []
    decided: list[float] = []
    while len(took) < CYCLES + 20:
        began = time.perf_counter()
        now = await store.now()
        ending, running = running[:PER_CYCLE], running[PER_CYCLE:]
        typical = len(ending) == PER_CYCLE and feed.behind <= 2 * PER_CYCLE
        for task, token in ending:
            scheduler.ended(End(task, token, "completed", b"1"), now, local=True)
        await feed.fill(scheduler, is_behind=False)
        deciding = time.perf_counter()
        cycle = scheduler.cycle(now)
        deciding = time.perf_counter() - deciding
        await store.commit(cycle.commit)
        for started in cycle.commit.runs_started:
            feed.left(started.run)
        running += [(entry.id, entry.token) for entry in cycle.starts]
        # Cycles that still bring the first heads of ten thousand lanes are no typical ones.
        if typical:
            took.append(time.perf_counter() - began)
            decided.append(deciding)
    return Cycles(statistics.median(took[20:]) * 1e3, statistics.median(decided[20:]) * 1e3)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        print(json.dumps(asyncio.run(_measure(sys.argv[1]))))
    else:
        for figure in run():
            print(figure.line())
