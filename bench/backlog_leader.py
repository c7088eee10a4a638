"""What a leader's cycle costs with a queue of so many runs; a process of its own for `bench.backlog`.

The real store, feed and scheduler; bodies end at once. Each cycle ends 20
running runs, brings the heads of their lanes, decides and commits.

    python -m bench.backlog_leader URL RUNS TENANTS
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec

from locktender.base.changes import End
from locktender.base.graph import Graph, Node
from locktender.base.ids import RunId
from locktender.base.model import NewRun, WorkerRow
from locktender.kernel.scheduler import Scheduler
from locktender.leader.queue_reader import QueueReader
from locktender.observe.why import explain_run
from locktender.store.open import settings_for, store_for
from locktender.store.protocol import Elect, SetLimit, Store, Submit

RUNNING = 200
PER_CYCLE = 20
CYCLES = 60


async def measure(url: str, runs: int, tenants: int) -> dict[str, float]:
    async with filled(url, runs, tenants) as store:
        asked = await _why(store, runs)
        took = await _cycles(store)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"ms": statistics.median(took) * 1000, "mb": peak, "why": asked * 1000}


@asynccontextmanager
async def filled(
    url: str, runs: int, tenants: int, shape: Shape | None = None
) -> AsyncGenerator[Store]:
    """A store with so many queued runs, of which 200 may run at once and one of each tenant."""
    store = store_for(settings_for(url, {}))
    await store.open()
    try:
        await store.set_limit(
            [
                SetLimit("runs", "", b'{"limit":%d}' % RUNNING, "bench"),
                SetLimit("active", "", b'{"limit":-1}', "bench"),
                SetLimit(
                    "tag", "tenant=*", b'{"key":"tenant","per_value":true,"limit":1}', "bench"
                ),
            ]
        )
        await fill(store, runs, tenants, shape)
        yield store
    finally:
        await store.close()


async def _why(store: Store, runs: int) -> float:
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


class Shape(NamedTuple):
    """What the queued runs are: their flow's name, and their graph as it is stored, with its values."""

    flow: str
    digest: str
    body: bytes
    params: bytes = b"{}"
    consts: bytes = b"[]"


ONE = Shape("one", "g", msgspec.json.encode(Graph("one", (Node("a", "a", executor="async"),))))


async def fill(store: Store, runs: int, tenants: int, shape: Shape | None = None) -> None:
    flow, digest, body, params, consts = shape or ONE
    for first in range(0, runs, 5_000):
        batch = [
            NewRun(
                RunId(f"{index:026d}"),
                flow,
                digest,
                params,
                consts,
                {"tenant": f"t{index % tenants}"},
            )
            for index in range(first, min(runs, first + 5_000))
        ]
        await store.submit(Submit(batch, {digest: body}))


async def _cycles(store: Store) -> list[float]:
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
            scheduler.ended(End(task, token, "completed", b"1"), now, local=True)
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


if __name__ == "__main__":
    [_, place, queued, lanes] = sys.argv
    print(json.dumps(asyncio.run(measure(place, int(queued), int(lanes)))))
