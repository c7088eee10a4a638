"""Large maps: what an item of a map of 100,000 costs against one of 10,000, and its memory in the leader.

An embedded engine on PostgreSQL; bodies do nothing. The sizes take turns, each in its own process. CPU is that
of the process, which leads and works; it tells more than wall time where others use the machine.

    python -m bench.maps
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import subprocess
import sys
import time
import tracemalloc

from tests.support.worlds import graph, items, numbers, run_row

from bench.report import Figure
from locktender import embedded_async, flow, step
from locktender.base.limits import Limits
from locktender.kernel.scheduler import Scheduler
from locktender.testing.postgres_server import copy_of, server, template

SMALL, LARGE = 10_000, 100_000
ROUNDS = 3


@step
async def noop(x: int) -> int:
    return x


@flow
def many(items: list[int]) -> list[int]:
    return noop.map(items)


async def measure(url: str, count: int) -> dict[str, float]:
    """Microseconds per item, from `submit` to `result`."""
    async with embedded_async(url) as client:
        await (await client.submit(many, list(range(1_000)))).result()
        wall, cpu = time.perf_counter(), time.process_time()
        await (await client.submit(many, list(range(count)))).result()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"wall": 1e6 * wall / count, "cpu": 1e6 * cpu / count}


def kept(count: int) -> float:
    """Bytes that an item keeps in the leader while it waits for a permit."""
    wanted = graph(items())
    scheduler = Scheduler(Limits(), term=1, owner="bench")
    scheduler.graphs[wanted.flow] = wanted
    row = run_row(1, consts=numbers(count))
    gc.collect()
    tracemalloc.start()
    scheduler.put_head(row)
    now = 10**15
    while scheduler.cycle(now).unfinished:
        pass
    for second in range(1, 4):
        # A young map holds items back for two seconds.
        scheduler.sweep(now + second * 1_000_000)
        while scheduler.cycle(now + second * 1_000_000).unfinished:
            pass
    if len(scheduler.lifecycle.tasks) < count:
        raise RuntimeError(f"only {len(scheduler.lifecycle.tasks)} of {count} items wait")
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / count


def run() -> list[Figure]:
    taken: dict[int, list[dict[str, float]]] = {SMALL: [], LARGE: []}
    with server(durable=True) as url, template(url) as name:
        for _ in range(ROUNDS):
            for count, found in taken.items():
                with copy_of(url, name) as own:
                    command = [sys.executable, "-m", "bench.maps", own, str(count)]
                    done = subprocess.run(command, capture_output=True, text=True, check=True)
                    found.append(json.loads(done.stdout))
    figures: list[Figure] = []
    for kind in ("wall", "cpu"):
        small, large = (statistics.median(each[kind] for each in taken[n]) for n in taken)
        ratio, note = large / small, f"{small:.0f} us -> {large:.0f} us"
        figures.append(
            Figure(
                f"an item of {LARGE:,} / of {SMALL:,}, {kind}",
                *(ratio, "x", "<= 1.15", ratio <= 1.15, note),
            )
        )
    size = kept(LARGE)
    figures.append(Figure("an item that waits, in the leader", size, "B", "<= 1000", size <= 1_000))
    return figures


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(asyncio.run(measure(sys.argv[1], int(sys.argv[2])))))
    else:
        for figure in run():
            print(figure.line())
