"""A long queue: what a leader's cycle costs with 1,000,000 queued runs of 10,000 tenants, against 1,000 runs.

The real store, feed and scheduler; bodies end at once. Each cycle ends 20
running runs, brings the heads of their lanes, decides and commits.
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from bench.report import Figure
from locktender.base.graph import Graph, Node
from locktender.base.ids import RunId
from locktender.base.model import NewRun, WorkerRow
from locktender.kernel.scheduler import Scheduler
from locktender.leader.queue_reader import QueueReader
from locktender.observe.why import explain_run
from locktender.store.protocol import Elect, SetLimit, Store, Submit
from locktender.store.sqlite.store import SqliteStore

RUNNING = 200
PER_CYCLE = 20
CYCLES = 60


async def measure(runs: int, tenants: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder) / "backlog.db")
        await store.open()
        await store.set_limit(
            [
                SetLimit("runs", "", b'{"limit":%d}' % RUNNING, "bench"),
                SetLimit("active", "", b'{"limit":-1}', "bench"),
                SetLimit(
                    "tag", "tenant=*", b'{"key":"tenant","per_value":true,"limit":1}', "bench"
                ),
            ]
        )
        await fill(store, runs, tenants)
        asked = await _why(store, runs)
        took = await _cycles(store)
        await store.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"ms": statistics.median(took) * 1000, "mb": peak, "why": asked * 1000}


async def _why(store: SqliteStore, runs: int) -> float:
    """What `why` takes for the first, the last and the one in the middle: the longest of them."""
    longest = 0.0
    for index in (0, runs // 2, runs - 1):
        took: list[float] = []
        for _ in range(7):
            start = time.perf_counter()
            await explain_run(store, f"{index:026d}")
            took.append(time.perf_counter() - start)
        longest = max(longest, statistics.median(took))
    return longest


async def fill(store: Store, runs: int, tenants: int) -> None:
    body = msgspec.json.encode(Graph("one", (Node("a", "a", executor="async"),)))
    for first in range(0, runs, 5_000):
        batch = [
            NewRun(
                RunId(f"{index:026d}"), "one", "g", b"{}", b"[]", {"tenant": f"t{index % tenants}"}
            )
            for index in range(first, min(runs, first + 5_000))
        ]
        await store.submit(Submit(batch, {"g": body}))


async def _cycles(store: SqliteStore) -> list[float]:
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
    for _ in range(CYCLES * 10):
        start = time.perf_counter()
        now = await store.now()
        ending, running = running[:PER_CYCLE], running[PER_CYCLE:]
        for task, token in ending:
            scheduler.ended(task, token, "completed", now, b"1", local=True)
        typical = len(ending) == PER_CYCLE and feed.behind <= 2 * PER_CYCLE
        await feed.fill(scheduler, is_behind=False)
        cycle = scheduler.cycle(now)
        await store.commit(cycle.commit)
        for started in cycle.commit.runs_started:
            feed.left(started.run)
        running += [(entry.id, entry.token) for entry in cycle.starts]
        # Cycles that still bring the first heads of ten thousand lanes are no typical ones.
        if typical:
            took.append(time.perf_counter() - start)
    return took[20 : 20 + CYCLES]


def run() -> list[Figure]:
    found: dict[str, dict[str, float]] = {}
    for name, runs, tenants in (("few", 1_000, 1_000), ("many", 1_000_000, 10_000)):
        command = [sys.executable, "-m", "bench.backlog", str(runs), str(tenants)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found[name] = json.loads(done.stdout)
    ratio = found["many"]["ms"] / found["few"]["ms"]
    note = f"{found['few']['ms']:.2f} ms -> {found['many']['ms']:.2f} ms"
    megabytes, why = found["many"]["mb"], found["many"]["why"]
    return [
        Figure(
            "cycle with 1,000,000 queued runs / with 1,000",
            ratio,
            "x",
            "<= 1.3",
            ratio <= 1.3,
            note,
        ),
        Figure("… peak memory of the leader", megabytes, "MB", "<= 512", megabytes <= 512),
        Figure("… why of a queued run", why, "ms", "<= 20", why <= 20),
    ]


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(asyncio.run(measure(int(sys.argv[1]), int(sys.argv[2])))))
    else:
        for figure in run():
            print(figure.line())
