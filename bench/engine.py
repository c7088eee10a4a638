"""The whole engine on SQLite, limits and events on: throughput, pools, latency, memory, real graphs."""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench import bare
from bench.peers.workload import FULL
from bench.report import Figure, Spread, ratios
from locktender import embedded_async, flow, step
from locktender.base.graph import Node
from locktender.client.client_async import AsyncClient
from locktender.flows.trace import trace
from locktender.simulate.model import Behaviour
from locktender.simulate.world import SimWorld

WORKLOADS = Path(__file__).parent / "workloads"
PARALLEL = 16
MAKESPAN_SECONDS = 1.0
GRAPH_ROUNDS = 5
ROUNDS = 5
POOL_ROUNDS = 3
POOLS = ((0.001, 1_000, None), (0.01, 500, 1.15), (0.1, 100, 1.05))
"""Seconds of a body, how many of them, and the target of wall ÷ ideal."""
Tasks = list[tuple[str, list[int]]]

_started: list[float] = []
_overlap = {"now": 0, "peak": 0}


@step
async def noop(x: int) -> int:
    return x


@step
async def stamp() -> None:
    _started.append(time.perf_counter())


@step(pools={"ten": 1})
async def pooled(seconds: float) -> None:
    _overlap["now"] += 1
    _overlap["peak"] = max(_overlap["peak"], _overlap["now"])
    await asyncio.sleep(seconds)
    _overlap["now"] -= 1


@step
async def sleeping(seconds: float) -> None:
    await asyncio.sleep(seconds)


@flow
def many(items: list[int]) -> list[int]:
    return noop.map(items)


@flow
def once() -> None:
    stamp()


@flow
def pool_of_ten(items: list[float]) -> None:
    pooled.map(items)


@flow(max_parallel=PARALLEL)
def workload(tasks: list[tuple[str, list[int]]], runtimes: list[float]) -> None:
    handles: list[object] = []
    for index, (name, parents) in enumerate(tasks):
        after = [handles[parent] for parent in parents]
        handles.append(sleeping.with_options(after=after, name=f"{index}-{name}")(runtimes[index]))


@asynccontextmanager
async def engine(**settings: object) -> AsyncIterator[AsyncClient]:
    with tempfile.TemporaryDirectory() as folder:
        async with embedded_async(Path(folder) / "bench.db", **settings) as client:
            yield client


async def throughput(count: int) -> float:
    async with engine() as client:
        run = await client.submit(many, list(range(500)))
        await run.result()
        start = time.perf_counter()
        run = await client.submit(many, list(range(count)))
        await run.result()
        return count / (time.perf_counter() - start)


async def pool_wall(count: int, seconds: float) -> tuple[float, int]:
    _overlap.update(now=0, peak=0)
    async with engine() as client:
        await client.pools.set("ten", limit=10)
        run = await client.submit(pool_of_ten, [0.001] * 20)
        await run.wait()
        _overlap.update(now=0, peak=0)
        start = time.perf_counter()
        run = await client.submit(pool_of_ten, [seconds] * count)
        await run.wait()
        return time.perf_counter() - start, _overlap["peak"]


async def idle_latency(samples: int) -> list[float]:
    async with engine() as client:
        took: list[float] = []
        for _ in range(samples):
            _started.clear()
            await asyncio.sleep(0.01)
            start = time.perf_counter()
            run = await client.submit(once)
            await run.wait()
            took.append(_started[0] - start)
        return took


def graph_figures(where: str, took: Callable[[Tasks, list[float]], float]) -> list[Figure]:
    """Measured makespan / that of a bare asyncio scheduler with the same graph, in turns; tasks are short.

    Beside it the same / the schedule by the given durations. `asyncio.sleep` takes longer than those, which no
    engine can change: the bare scheduler has that too, and nothing else.
    """
    figures: list[Figure] = []
    for path in sorted(WORKLOADS.glob("*.json")):
        tasks = in_order(json.loads(path.read_text())["tasks"])
        graph = [(name, parents) for name, parents, _ in tasks]
        runtimes = [max(0.0, runtime) for _, _, runtime in tasks]
        scale = MAKESPAN_SECONDS / simulated(graph, runtimes)
        runtimes = [round(each * scale, 4) for each in runtimes]
        ideal = simulated(graph, runtimes)
        pairs = [
            (took(graph, runtimes), asyncio.run(_bare_makespan(graph, runtimes)))
            for _ in range(GRAPH_ROUNDS)
        ]
        ratio = ratios(pairs)
        exact = statistics.median(ours / ideal for ours, _ in pairs)
        name = f"{where}graph {path.stem.split('-')[0]}, makespan / bare asyncio"
        mean = statistics.mean(runtimes) * 1e3
        note = f"{len(graph)} tasks of {mean:.0f} ms on average"
        figures += [
            Figure.at_most(name, ratio.median, "×", 1.08, 1.15, note, ratio.note),
            Figure(name.replace("bare asyncio", "exact durations"), exact, "×"),
        ]
    return figures


async def _bare_makespan(graph: Tasks, runtimes: list[float]) -> float:
    """The same bodies, `PARALLEL` at once, each as soon as its parents have ended: first come, first served."""
    children: list[list[int]] = [[] for _ in graph]
    missing = [len(parents) for _, parents in graph]
    for index, (_, parents) in enumerate(graph):
        for parent in parents:
            children[parent].append(index)
    ready = deque(index for index, parents in enumerate(missing) if not parents)
    running: set[asyncio.Task[None]] = set()
    over = asyncio.Event()

    def start() -> None:
        while ready and len(running) < PARALLEL:
            index = ready.popleft()
            task = asyncio.create_task(asyncio.sleep(runtimes[index]))
            running.add(task)
            task.add_done_callback(partial(ended, index))

    def ended(index: int, task: asyncio.Task[None]) -> None:
        running.discard(task)
        for child_ in children[index]:
            missing[child_] -= 1
            if not missing[child_]:
                ready.append(child_)
        start()
        if not running:
            over.set()

    began = time.perf_counter()
    start()
    await over.wait()
    return time.perf_counter() - began


def real_graphs() -> list[Figure]:
    def took(graph: Tasks, runtimes: list[float]) -> float:
        return asyncio.run(_makespan(graph, runtimes))

    return graph_figures("", took)


async def _makespan(graph: Tasks, runtimes: list[float]) -> float:
    async with engine() as client:
        start = time.perf_counter()
        run = await client.submit(workload, graph, runtimes)
        await run.wait()
        return time.perf_counter() - start


def in_order(tasks: list[dict[str, Any]]) -> list[tuple[str, list[int], float]]:
    """The tasks so that parents come first, as a flow's body would call them."""
    place: dict[int, int] = {}
    found: list[tuple[str, list[int], float]] = []
    while len(found) < len(tasks):
        for index, task in enumerate(tasks):
            if index not in place and all(parent in place for parent in task["parents"]):
                place[index] = len(found)
                parents = [place[parent] for parent in task["parents"]]
                found.append((task["name"], parents, task["runtime"]))
    return found


def simulated(graph: list[tuple[str, list[int]]], runtimes: list[float]) -> float:
    """Seconds the graph takes when deciding and writing cost nothing."""
    traced = trace(workload, (graph, runtimes))

    def duration(_: object, node: Node) -> int:
        return int(runtimes[int(node.name.split("-")[0])] * 1_000_000)

    world = SimWorld(0, Behaviour(duration, latency=0))
    world.add_worker("w", {"async": -1, "thread": 8, "process": 2}, local=True)
    world.lead()
    world.run(world.now + 1)
    start = world.now
    row = world.submit(traced.graph, params=traced.params, consts=traced.consts)
    world.run()
    assert row is not None
    return (world.model.runs[row.seq].ended_at - start) / 1_000_000


def child(code: str) -> dict[str, float]:
    """Run `code` in a fresh interpreter; it prints one JSON object."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


IMPORT = """
import json, time
start = time.perf_counter()
import locktender
print(json.dumps({"ms": (time.perf_counter() - start) * 1000}))
"""

FIRST_STEP = """
import json, tempfile, time
from pathlib import Path
from locktender import embedded, flow, step

@step
def first() -> float:
    return time.time()

@flow
def one() -> float:
    return first()

with tempfile.TemporaryDirectory() as folder, embedded(Path(folder) / "b.db") as client:
    print(json.dumps({"at": client.submit(one).result()}))
"""


def _pool(seconds: float, count: int, target: float | None) -> Figure:
    walls, peaks = zip(
        *(asyncio.run(pool_wall(count, seconds)) for _ in range(POOL_ROUNDS)), strict=True
    )
    ratio = statistics.median(walls) / (count * seconds / 10)
    # Of all rounds: a limit that was exceeded once was exceeded.
    peak = max(peaks)
    name = f"pool of 10, {count} bodies of {seconds * 1000:.0f} ms, wall / ideal"
    met = ratio <= target and peak == 10 if target else None
    return Figure(name, ratio, "×", f"≤ {target}" if target else "", met, f"peak {peak}")


def run() -> list[Figure]:
    figures: list[Figure] = []
    pairs = [(asyncio.run(throughput(FULL.steps)), bare.sqlite_rate()) for _ in range(ROUNDS)]
    rate, loop = (Spread.of(each) for each in zip(*pairs, strict=True))
    share = ratios([(ours * 100, theirs) for ours, theirs in pairs])
    figures += [
        Figure.at_least(
            "no-op steps through the engine", rate.median, "/s", 15_000, 5_000, spread=rate.note
        ),
        Figure("… a bare claim + complete loop", loop.median, "/s", spread=loop.note),
        Figure.at_least("… share of the bare loop", share.median, "%", 11, 8.5, spread=share.note),
    ]
    figures += [_pool(*each) for each in POOLS]
    latency = statistics.median(asyncio.run(idle_latency(100))) * 1000
    figures.append(Figure("idle submit → body starts, p50", latency, "ms", "≤ 3", latency <= 3))
    figures += real_graphs()
    imported = statistics.median(child(IMPORT)["ms"] for _ in range(5))
    figures.append(Figure("import locktender", imported, "ms", "≤ 150", imported <= 150))
    firsts: list[float] = []
    for _ in range(ROUNDS):
        start = time.time()
        firsts.append(child(FIRST_STEP)["at"] - start)
    first = statistics.median(firsts)
    figures.append(Figure("new process to first step", first, "s", "≤ 0.6", first <= 0.6))
    return figures


if __name__ == "__main__":
    for figure in run():
        print(figure.line())
    print(
        f"peak memory of this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB"
    )
