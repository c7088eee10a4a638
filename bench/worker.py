"""The worker: what a task costs it, how fast each executor is, and that its memory stays flat."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from bench.report import Figure
from locktender import embedded_async, flow, step
from locktender.base.changes import End
from locktender.base.clock import SystemClock
from locktender.base.config import Settings
from locktender.base.graph import Node
from locktender.base.quantiles import MinuteQuantiles
from locktender.client.client_async import AsyncClient
from locktender.flows.registry import registry
from locktender.store.sqlite.store import SqliteStore
from locktender.worker.pressure import Pressure
from locktender.worker.worker import LocalWorker

HERE = Path(__file__)
CALL = b'{"args": [1], "kwargs": {}}'
PATIENCE = "60s"
ELSEWHERE = {"place": "elsewhere"}
PERMITS = {"async": 1_000, "thread": 8, "process": 2}


@step
async def on_loop(x: int) -> int:
    return x


@step
def in_thread(x: int) -> int:
    return x


@step(executor="process")
def in_process(x: int) -> int:
    return x


@step(needs=ELSEWHERE)
async def elsewhere(x: int) -> int:
    return x


@step
async def sleep_and_say_where(seconds: float) -> int:
    await asyncio.sleep(seconds)
    return os.getpid()


@step
async def memory_in_use(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return psutil.Process().memory_info().rss / 1e6


STEPS: dict[str, Any] = {"async": on_loop, "thread": in_thread, "process": in_process}


@flow
def many(kind: str, items: list[int]) -> list[int]:
    return STEPS[kind].map(items)


@flow
def many_elsewhere(items: list[int]) -> list[int]:
    return elsewhere.map(items)


@flow
def whereabouts(items: list[float]) -> list[int]:
    return sleep_and_say_where.map(items)


@flow
def memories(items: list[float]) -> list[float]:
    return memory_in_use.map(items)


class Cost(NamedTuple):
    per_second: float
    cpu_us: float
    """Per task: of this process, or of the worker's where it has one of its own."""
    loop_us: float = 0.0
    """What of it the worker's loop used, without the threads of its store."""


@asynccontextmanager
async def engine(**settings: Any) -> AsyncGenerator[AsyncClient]:
    with tempfile.TemporaryDirectory() as folder:
        async with embedded_async(Path(folder) / "bench.db", **settings) as client:
            yield client


# -- the worker alone ------------------------------------------------------------------------------


async def alone(kind: str, count: int) -> Cost:
    """Launch to deliver, with every permit in use and no store: what executors and worker cost."""
    node = Node("n", STEPS[kind].name, executor=kind)  # pyright: ignore[reportArgumentType]
    tokens = iter(range(1, 10**9))
    ended = asyncio.Event()
    left = 0

    def launch() -> None:
        token = next(tokens)
        worker.start(token << 20, token, 1, "run", node, CALL)

    class Host:
        def deliver(self, end: End) -> None:
            nonlocal left
            assert end.state == "completed", end
            left -= 1
            if left >= PERMITS[kind]:
                launch()
            elif left == 0:
                ended.set()

        def attempts_changed(self) -> None: ...
        def live_fd(self, _worker: str, /) -> int | None:
            return None

    async def run(tasks: int) -> None:
        nonlocal left
        left = tasks
        ended.clear()
        for _ in range(min(tasks, PERMITS[kind])):
            launch()
        await ended.wait()

    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(work_dir=folder, process_permits=PERMITS["process"])
        store = SqliteStore(Path(folder) / "unused.db")
        worker = LocalWorker(settings, SystemClock(), store, registry, Host())
        await run(PERMITS[kind])  # children are warm, threads are made
        cpu, wall = time.process_time(), time.perf_counter()
        await run(count)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        await worker.close(0)
        worker.forget()
    return Cost(count / wall, cpu / count * 1e6)


# -- with an engine --------------------------------------------------------------------------------


async def through_an_engine(kind: str, count: int, permits: int) -> Cost:
    """Leader, store and worker in one process: everything a task costs, once."""
    async with engine(**{f"{kind}_permits": permits}) as client:
        await (await client.submit(many, kind, list(range(100)))).wait(PATIENCE)
        cpu, wall = time.process_time(), time.perf_counter()
        await (await client.submit(many, kind, list(range(count)))).wait(PATIENCE)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return Cost(count / wall, cpu / count * 1e6)


@contextmanager
def worker_process(url: str, *arguments: str) -> Generator[psutil.Process]:
    """`locktender worker` on this file's steps; ends when its standard input does."""
    command = [sys.executable, "-m", "locktender", "worker", "--app", "bench.worker", "--url", url]
    process = subprocess.Popen(
        [*command, "--json", "--with-parent", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=HERE.parents[1],
    )
    try:
        if process.stdout is None or not process.stdout.readline():
            raise RuntimeError("the worker did not start: what it says stands above")
        yield psutil.Process(process.pid)
    finally:
        process.communicate(timeout=30)


async def beside_a_leader(count: int) -> Cost:
    """A worker in a process of its own, its own reads and writes of the store included."""
    with tempfile.TemporaryDirectory() as folder:
        url = str(Path(folder) / "bench.db")
        async with embedded_async(url) as client:
            with worker_process(url, "--label", "place=elsewhere") as worker:
                await (await client.submit(many_elsewhere, list(range(200)))).wait(PATIENCE)
                before, wall = seconds_used(worker), time.perf_counter()
                await (await client.submit(many_elsewhere, list(range(count)))).wait(PATIENCE)
                wall = time.perf_counter() - wall
                after = seconds_used(worker)
    loop, whole = ((b - a) / count * 1e6 for a, b in zip(before, after, strict=True))
    return Cost(count / wall, whole, loop)


def seconds_used(process: psutil.Process) -> tuple[float, float]:
    """CPU of the thread of its loop, and of the whole process with the threads of its store."""
    threads = process.threads()
    loop = sum(each.user_time + each.system_time for each in threads if each.id == process.pid)
    return loop, sum(each.user_time + each.system_time for each in threads)


async def shares(count: int, seconds: float, permits: int) -> Counter[int]:
    """How many tasks each of three workers got: the leader's own and two processes. 0: unlimited permits."""
    with tempfile.TemporaryDirectory() as folder:
        url = str(Path(folder) / "bench.db")
        settings: dict[str, Any] = {"async_permits": permits, "placement": "spread"}
        few = ("--set", f"async_permits={permits}")
        async with embedded_async(url, **settings) as client:
            with worker_process(url, *few), worker_process(url, *few):
                run = await client.submit(whereabouts, [seconds] * count)
                return Counter(await run.result(PATIENCE))


async def memory_while(count: int, permits: int) -> list[float]:
    """Megabytes in use as each task saw them, in order."""
    async with engine(async_permits=permits) as client:
        await (await client.submit(memories, [0.0] * 100)).wait(PATIENCE)
        run = await client.submit(memories, [0.005] * count)
        return await run.result(PATIENCE)


IN_FLIGHT = """
import asyncio, json, resource, tempfile, time
from pathlib import Path
from bench.worker import whereabouts
from locktender import embedded_async

async def main():
    with tempfile.TemporaryDirectory() as folder:
        async with embedded_async(Path(folder) / "b.db", async_permits=0) as client:
            start = time.perf_counter()
            run = await client.submit(whereabouts, [1.0] * 10_000)
            await run.wait()
            took = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": took, "mb": peak}))

asyncio.run(main())
"""


def in_flight() -> dict[str, float]:
    """In a fresh interpreter, so that the peak is its own."""
    command = [sys.executable, "-c", IN_FLIGHT]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=HERE.parents[1])
    return json.loads(done.stdout.splitlines()[-1])


def nanoseconds(call: Callable[[], object], times: int) -> float:
    rounds: list[float] = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(times):
            call()
        rounds.append((time.perf_counter() - start) / times * 1e9)
    return statistics.median(rounds)


def pressure() -> list[Figure]:
    sketch = MinuteQuantiles(0)
    felt = Pressure(Settings(), 0)
    permits, flying = Settings().permits(), {"async": 40, "thread": 2}
    add = nanoseconds(lambda: sketch.add(12_345), 100_000)
    ask = nanoseconds(lambda: felt.claim(1, flying, permits), 5_000) / 1000
    return [
        Figure("a duration into the sketch of the last minute", add, "ns", "<= 500", add <= 500),
        Figure("a claim asked for, readings fresh", ask, "us"),
    ]


def median(measure: Callable[[], Cost]) -> Cost:
    """Of three."""
    return sorted(measure() for _ in range(3))[1]


def rates(kind: str, target: int, count: int) -> list[Figure]:
    """The executor by itself, then with one commit between two bodies: there permits set the pace."""
    alone_ = median(lambda: asyncio.run(alone(kind, count)))
    figures = [
        Figure(
            f"{kind} tasks, executor and worker alone", alone_.per_second, "/s",
            f">= {target:,}", alone_.per_second >= target, f"{alone_.cpu_us:.0f} us of CPU",
        )
    ]  # fmt: skip
    for permits in (PERMITS[kind], 4 * PERMITS[kind]):
        whole = median(lambda: asyncio.run(through_an_engine(kind, count, permits)))  # noqa: B023
        figures.append(
            Figure(
                f"… {kind} through an engine, {permits} permits", whole.per_second, "/s",
                f">= {target:,}", whole.per_second >= target, f"{whole.cpu_us:.0f} us of CPU",
            )
        )  # fmt: skip
    return figures


def run() -> list[Figure]:
    figures: list[Figure] = []
    cost = median(lambda: asyncio.run(alone("async", 20_000)))
    figures.append(
        Figure(
            "no-op async: CPU of launch to deliver, no store",
            cost.cpu_us, "us", "<= 40, aim 25", cost.cpu_us <= 25, f"{cost.per_second:,.0f}/s",
        )
    )  # fmt: skip
    cost = median(lambda: asyncio.run(beside_a_leader(5_000)))
    figures.append(
        Figure(
            "no-op async: CPU of a worker process, its store included",
            cost.cpu_us, "us", "<= 40", cost.cpu_us <= 40,
            f"its loop {cost.loop_us:.0f} us; {cost.per_second:,.0f}/s",
        )
    )  # fmt: skip
    cost = median(lambda: asyncio.run(through_an_engine("async", 5_000, PERMITS["async"])))
    note = f"{cost.per_second:,.0f}/s"
    figures.append(
        Figure("no-op async: CPU of a whole embedded engine", cost.cpu_us, "us", note=note)
    )
    for kind, target, count in (("thread", 4_000, 3_000), ("process", 2_000, 1_000)):
        figures += rates(kind, target, count)
    flight = in_flight()
    seconds, megabytes = flight["seconds"], flight["mb"]
    figures += [
        Figure("10,000 async tasks of 1 s, wall", seconds, "s", "<= 1.5 + start", seconds <= 1.5),
        Figure("… peak memory", megabytes, "MB", "<= 300", megabytes <= 300),
    ]
    seen = asyncio.run(memory_while(10_000, 64))
    first, last = statistics.mean(seen[64:564]), statistics.mean(seen[-500:])
    change = (last / first - 1) * 100
    note = f"{first:.0f} -> {last:.0f} MB, leader included"
    figures.append(
        Figure(
            "10,000 tasks, 64 permits: memory, first to last", change, "%", "within 10",
            abs(change) <= 10, note,
        )
    )  # fmt: skip
    return figures + spread() + pressure()


def spread() -> list[Figure]:
    """Bodies as short as a hand-over, where the leader's own worker has the greatest advantage."""
    figures: list[Figure] = []
    for permits in (16, PERMITS["async"], 0):
        start = time.perf_counter()
        counts = asyncio.run(shares(3_000, 0.02, permits))
        took = time.perf_counter() - start
        ratio = max(counts.values()) / min(counts.values()) if len(counts) == 3 else float("inf")
        note = " ".join(f"{each:,}" for each in sorted(counts.values()))
        what = f"3 workers, spread, {permits or 'unlimited'} permits: busiest / idlest"
        figures.append(
            Figure(what, ratio, "x", "<= 1.5", ratio <= 1.5, f"{note}; {took:.1f} s with start")
        )
    return figures
