"""Measures one contender once, in the contender's own environment, and prints one JSON object.

    python -m bench.peers.drive NAME PLACE [--quick]

PLACE: the url of an empty PostgreSQL database, or a folder for a SQLite file. Standard library only, but for the
adapter it imports.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from bench.peers import bodies
from bench.peers.workload import FULL, LIMIT, PATIENCE_SECONDS, QUICK, Limited, Workload

ROOT = Path(__file__).parents[2]
LOOK_SECONDS = 0.01
PAUSE_PER_QUESTION = 10
MAX_PAUSE_SECONDS = 0.05
"""Between two submissions of `idle`: longer than a poll, so that they come at any time of one."""
NEARLY_ALL = 0.9
LOG_LINES = 3


class Drained(NamedTuple):
    ended: int
    """Of them, from the first sight of one to the last."""
    seconds: float

    def rate(self) -> float:
        return self.ended / self.seconds


class Adapter:
    """A contender in the words of the workload. A derived class says how; what it leaves out it cannot do."""

    can: frozenset[str] = frozenset({"steps", "runs", "idle", *(each.key for each in FULL.limits)})
    scale = 1.0
    """Of the workload's counts."""
    times = 1
    """So many times the counts of steps and runs, for a loop that would be over too soon to time."""
    fills_first = True
    """Its queue can be filled before its worker starts."""

    def __init__(self, place: str) -> None:
        self.place = place

    async def open(self) -> None:
        """Schema and client."""

    async def close(self) -> None: ...

    @asynccontextmanager
    async def working(self, what: str) -> AsyncGenerator[None]:  # noqa: ARG002
        """With its worker for `what`; of a limit's bodies it runs at most LIMIT at a time."""
        yield

    async def submit(self, what: str, count: int, seconds: float = 0.0) -> None:
        """`what`: steps, runs, idle, or the key of a limit, whose bodies sleep for `seconds`."""
        raise NotImplementedError

    async def ended(self, what: str) -> int:
        """How many of all of these are recorded as ended."""
        raise NotImplementedError

    async def done(self, what: str, count: int, seconds: float = 0.0) -> float:
        """Submit and wait for the results: seconds. Only of who does not fill first."""
        raise NotImplementedError


@contextmanager
def process(
    command: list[str], *, wait_for: str = "", **environment: str
) -> Generator[subprocess.Popen[str]]:
    """A peer's own process, from the folder of the repository, until the block ends."""
    said = Path(os.environ["BENCH_LOG"]).open("a")  # noqa: SIM115 — closed with the process
    started = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE if wait_for else subprocess.DEVNULL,
        stderr=said,
        text=True,
    )
    try:
        if wait_for:
            assert started.stdout is not None
            while wait_for not in started.stdout.readline():
                if started.poll() is not None:
                    raise RuntimeError(f"{command} ended with {started.returncode}")
        yield started
    finally:
        started.terminate()
        try:
            started.wait(10)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
        if started.stdout:
            started.stdout.close()
        said.close()


def pause_after(question_seconds: float) -> float:
    """How long to wait before asking again: who measures takes at most a tenth of the time."""
    return max(LOOK_SECONDS, PAUSE_PER_QUESTION * question_seconds)


async def drained(adapter: Adapter, what: str, count: int, before: int) -> Drained:
    """From the first sight of an end to the last.

    The last end is seen up to a pause late, which would count against the peer. So where the look before it saw
    nearly all of them end, the quicker of the two rates counts.
    """
    first, began = 0, time.monotonic()
    give_up = began + PATIENCE_SECONDS * 2
    last_but_one: Drained | None = None
    while True:
        asked = time.monotonic()
        ended, now = await adapter.ended(what) - before, time.monotonic()
        if ended >= count and not first:  # too few to see them end: with the start of its worker
            return Drained(ended, now - began)
        if ended and not first:
            first, began, give_up = ended, now, now + PATIENCE_SECONDS
        if ended >= count or now > give_up:
            if not first:
                raise TimeoutError(f"nothing of {what} ended")
            whole = Drained(ended - first, now - began)
            if last_but_one and last_but_one.ended >= NEARLY_ALL * whole.ended:
                return max(whole, last_but_one, key=Drained.rate)
            return whole
        if ended > first:
            last_but_one = Drained(ended - first, now - began)
        await asyncio.sleep(pause_after(now - asked))


async def throughput(adapter: Adapter, what: str, count: int) -> dict[str, float]:
    if not adapter.fills_first:
        async with adapter.working(what):
            await adapter.done(what, max(1, count // 20))
            return {f"{what}_whole": count / await adapter.done(what, count)}
    began = time.monotonic()
    await adapter.submit(what, count)
    filling = time.monotonic() - began
    before = await adapter.ended(what)
    async with adapter.working(what):
        found = await drained(adapter, what, count, before)
    each = found.seconds / max(1, found.ended)
    return {f"{what}_drain": 1 / each, f"{what}_whole": 1 / (filling / count + each)}


async def idle(adapter: Adapter, stamps: bodies.Stamps, samples: int) -> dict[str, float]:
    chance = random.Random(1)
    taken: list[float] = []
    async with adapter.working("idle"):
        for n in range(samples + 2):
            seen = len(stamps)
            began = time.monotonic()
            await adapter.submit("idle", 1)
            await _until(stamps, seen + 1)
            if len(stamps) == seen:
                raise TimeoutError("the body did not start")
            if n >= 2:  # the first ones start what they need
                taken.append(stamps.said(seen)[0][1] - began)
            await asyncio.sleep(0.01 + chance.random() * MAX_PAUSE_SECONDS)
    return {"idle": statistics.median(taken) * 1e3}


async def limited(adapter: Adapter, stamps: bodies.Stamps, what: Limited) -> dict[str, float]:
    seen = len(stamps)
    if adapter.fills_first:
        await adapter.submit(what.key, what.bodies, what.seconds)
        async with adapter.working(what.key):
            await _until(stamps, seen + 2 * what.bodies)
            said = stamps.said(seen)
        times = sorted(at for _, at in said)
        wall = times[-1] - times[0] if times else 0.0
    else:
        async with adapter.working(what.key):
            await adapter.done(what.key, LIMIT, 0.001)
            seen = len(stamps)
            wall = await adapter.done(what.key, what.bodies, what.seconds)
            said = stamps.said(seen)
    ended = sum(sign == "-" for sign, _ in said)
    if not ended:
        raise TimeoutError("no body ended")
    ideal = ended * what.seconds / LIMIT
    return {what.key: wall / ideal, f"{what.key}_peak": bodies.peak(said)}


async def _until(stamps: bodies.Stamps, count: int) -> None:
    give_up = time.monotonic() + PATIENCE_SECONDS
    while len(stamps) < count and time.monotonic() < give_up:
        await asyncio.sleep(0.001)


async def measure(adapter: Adapter, workload: Workload, stamps: bodies.Stamps) -> dict[str, Any]:
    found: dict[str, Any] = {}
    workload = workload.scaled(adapter.scale) if adapter.scale < 1 else workload
    steps = {
        "steps": lambda: throughput(adapter, "steps", workload.steps * adapter.times),
        "runs": lambda: throughput(adapter, "runs", workload.runs * adapter.times),
        "idle": lambda: idle(adapter, stamps, workload.idle),
        **{each.key: lambda each=each: limited(adapter, stamps, each) for each in workload.limits},
    }
    for name, work in steps.items():
        if name not in adapter.can:
            continue
        began = time.monotonic()
        try:
            found.update(await work())
        except Exception as error:  # noqa: BLE001 — recorded; the other measures go on
            found.setdefault("failed", {})[name] = failure(error)
        found.setdefault("seconds", {})[name] = round(time.monotonic() - began, 2)
    return found


def failure(error: Exception) -> str:
    """What failed, and the last lines that the contender's processes wrote."""
    log = Path(os.environ["BENCH_LOG"])
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join([f"{type(error).__name__}: {error}", *lines[-LOG_LINES:]])


async def main(name: str, place: str, workload: Workload) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stamps"
        os.environ[bodies.VARIABLE] = str(path)
        os.environ["BENCH_PLACE"] = place
        os.environ["BENCH_LOG"] = str(Path(folder) / "log")
        module, _, variant = name.partition(":")
        adapter: Adapter = import_module(f"bench.peers.adapters.{module}").adapter(place, variant)
        await adapter.open()
        found = await measure(adapter, workload, bodies.Stamps(path))
        try:
            await adapter.close()
        except Exception as error:  # noqa: BLE001 — what was measured before counts
            found.setdefault("failed", {})["close"] = failure(error)
        return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("place")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    print(json.dumps(asyncio.run(main(given.name, given.place, QUICK if given.quick else FULL))))
