"""`why` and the commands that read a store, with 1,000,000 queued runs.

    python -m bench why                                       both stores
    python -m bench.why --on sqlite --queued 10000 --items 1000

This process leads and works. Of its permits and of the slots of a pool none is free; runs with 1, 20 and 100
different steps wait for both, one with 100,000 items for the pool. `why` is asked here (CPU of the whole process,
without what an idle second takes) and as a command in a process of its own. Beside the commands stands what Python
takes to start, and to import what no command can do without. Bytecode is compiled before, as an installer does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from bench import why_steps as steps
from bench.backlog_leader import fill
from bench.report import Figure
from bench.sleepers import STORES
from bench.ui import url_of
from locktender import Client, Run, RunState, embedded
from locktender.base.ids import task_id
from locktender.store.open import settings_for, store_for
from locktender.testing import eventually

QUEUED, ITEMS = 1_000_000, 100_000
TENANTS = 10_000
PERMITS = 10
WARM_UP = 20
ASKED = 9
CALLED = 9
FOREVER = 3_600.0
URGENT = 10
IDLE_SECONDS = 3.0
PATIENCE = "300s"
LEADER_MS, COMMAND_MS = 20.0, 250.0


class Shapes(NamedTuple):
    """What is asked about: a name → a run's id or a task's number."""

    by_name: dict[str, str | int]
    middle: str
    """A queued run in the middle of the queue."""


def queued_id(number: int) -> str:
    return f"{number:026d}"


async def _fill(url: str, count: int) -> None:
    store = store_for(settings_for(url, {}))
    await store.open()
    await fill(store, count, TENANTS)
    await store.close()


@contextmanager
def leading(url: str, queued: int, items: int) -> Iterator[tuple[Client, Shapes]]:
    with embedded(url, async_permits=PERMITS, grace="0s") as client:
        client.limits.set_max_active(-1)
        client.limits.set_max_concurrent_runs(-1)
        client.pools.set("narrow", limit=PERMITS)
        for _ in range(WARM_UP):
            client.submit(steps.pooled, steps.MOST).result(PATIENCE)
            client.submit(steps.free, steps.MOST).result(PATIENCE)
        client.submit(steps.items, list(range(WARM_UP))).result(PATIENCE)
        client.pools.set("narrow", limit=1)
        holders = [client.submit(steps.pooled, 1, FOREVER, priority=URGENT)]
        holders += [client.submit(steps.free, 1, FOREVER) for _ in range(PERMITS - 1)]
        for each in holders:
            eventually(lambda run=each: run.why().running, PATIENCE, "holders run")
        shapes: dict[str, str | int] = {}
        for count in (1, 20, steps.MOST):
            for kind, flow in (("a pool", steps.pooled), ("a permit", steps.free)):
                run = client.submit(flow, count, FOREVER)
                eventually(lambda run=run: run.status() == RunState.RUNNING, PATIENCE)
                shapes[f"a run with {count} different steps that wait for {kind}"] = run.id
        many = client.submit(steps.items, list(range(items)))
        eventually(lambda: _waiting(many) >= items, PATIENCE, "items wait")
        shapes[f"a run with {items:,} items that wait for a pool"] = many.id
        shapes[f"a task in the middle of {items:,} waiters of a pool"] = task_id(
            many.info().number, items // 2
        )
        running = len(client.runs.list(status=["running"], limit=1_000))
        client.limits.set_max_concurrent_runs(running)
        asyncio.run(_fill(url, queued))
        middle = queued_id(queued // 2)
        shapes[f"a queued run in the middle of {queued:,}"] = middle
        yield client, Shapes(shapes, middle)


def _waiting(run: Run[Any]) -> int:
    return sum(each.count for each in run.why().waiting)


def asked(client: Client, shapes: Shapes) -> list[Figure]:
    """CPU of this process, and by the clock: medians."""
    time.sleep(1.0)
    began, used = time.monotonic(), time.process_time()
    time.sleep(IDLE_SECONDS)
    idle = (time.process_time() - used) / (time.monotonic() - began)
    found: list[Figure] = []
    for name, subject in shapes.by_name.items():
        cpu: list[float] = []
        wall: list[float] = []
        client.why(subject)
        for _ in range(ASKED):
            began, used = time.perf_counter(), time.process_time()
            client.why(subject)
            passed = time.perf_counter() - began
            cpu.append((time.process_time() - used - idle * passed) * 1e3)
            wall.append(passed * 1e3)
        value = statistics.median(cpu)
        note = f"{statistics.median(wall):.1f} ms by the clock"
        found.append(Figure(f"why of {name}", value, "ms", "≤ 20", value <= LEADER_MS, note))
    return found


class Call(NamedTuple):
    name: str
    command: list[str]
    bare: bool = False


def called(url: str, shapes: Shapes) -> list[Figure]:
    """Commands in processes of their own, in turns: medians by the clock; their CPU beside it."""
    program = [sys.executable, "-m", "locktender"]
    calls = [
        Call("python -c pass", [sys.executable, "-c", "pass"], bare=True),
        Call("… import sqlite3, asyncio", [sys.executable, "-c", "import sqlite3, asyncio"], True),
    ]
    for words in ("runs list", "queue list", "pools list", f"runs show {shapes.middle}"):
        shown = words.replace(shapes.middle, "RUN, queued")
        calls.append(Call(f"locktender {shown}", [*program, *words.split(), "--url", url]))
    calls += [
        Call(f"locktender why: {name}", [*program, "why", str(subject), "--url", url])
        for name, subject in shapes.by_name.items()
    ]
    with tempfile.TemporaryDirectory() as compiled:
        unset = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "COLUMNS")
        kept = {name: value for name, value in os.environ.items() if name not in unset}
        environment = {**kept, "PYTHONPYCACHEPREFIX": compiled}
        took: dict[str, list[tuple[float, float]]] = {}
        for turn in range(CALLED + 1):
            for call in calls:
                passed = _timed(call.command, environment)
                if turn:  # the first compiles
                    took.setdefault(call.name, []).append(passed)
    found: list[Figure] = []
    for call in calls:
        value = statistics.median(wall for wall, _ in took[call.name])
        cpu = statistics.median(cpu for _, cpu in took[call.name])
        least = min(wall for wall, _ in took[call.name])
        note = f"CPU {cpu:.0f} ms, the quickest {least:.0f} ms"
        if call.bare:
            found.append(Figure(call.name, value, "ms", note=note))
        else:
            found.append(Figure(call.name, value, "ms", "≤ 250", value <= COMMAND_MS, note))
    return found


def _timed(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Milliseconds by the clock, and of CPU."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    told = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    passed = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stderr.close()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: {told.decode()}")
    return passed * 1e3, (used.ru_utime + used.ru_stime) * 1e3


def figures(store: str, queued: int, items: int) -> list[Figure]:
    with url_of(store) as url, leading(url, queued, items) as (client, shapes):
        found = asked(client, shapes) + called(url, shapes)
    return [
        Figure(f"{store}: {each.name}", each.value, each.unit, each.target, each.met, each.note)
        for each in found
    ]


def run() -> list[Figure]:
    return [figure for store in STORES for figure in figures(store, QUEUED, ITEMS)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", choices=STORES, default="sqlite")
    parser.add_argument("--queued", type=int, default=QUEUED)
    parser.add_argument("--items", type=int, default=ITEMS)
    given = parser.parse_args()
    for each in figures(given.on, given.queued, given.items):
        sys.stdout.write(each.line() + "\n")
