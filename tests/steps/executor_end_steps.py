"""One body for each executor that ends in any way it is told; imported by the test and by its workers.

Each attempt leaves a file in its work directory and says in `seen` who it is and
where that directory was. A body in a child process also leaves a process running.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from locktender import current, flow, step
from locktender.testing import recording

LOOK = 0.002
APART = {"where": "apart"}
STOPPED = ("timeout", "cancel", "lease_loss", "drain")
"""Ways to end that need a body which does not end by itself."""


def begin(seen: str, *, with_process: bool) -> None:
    job = current()
    assert job is not None
    (job.workdir / "left").write_text("behind")
    pids = [os.getpid()]
    if with_process:
        pids.append(subprocess.Popen(["sleep", "3600"]).pid)
    with Path(seen).open("a") as file:
        file.write(f"{job.workdir} {' '.join(map(str, pids))}\n")


def end(how: str) -> Any:
    if how == "failure":
        raise ValueError("as it was asked to")
    if how == "unserialisable":
        return {"a", object()}
    if how == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()
    return how


def opened(latch: str) -> bool:
    return Path(latch).exists()


def block(latch: str) -> None:
    """A thread cannot be stopped: it looks by itself whether it was told to."""
    while not opened(latch):
        job = current()
        if job is not None and job.stop_reason is not None:
            return
        time.sleep(LOOK)


@step(pool="slots", needs=APART, max_abandons=1)
async def on_loop(how: str, seen: str, latch: str) -> Any:
    with recording("slots"):
        begin(seen, with_process=False)
        while how in STOPPED and not opened(latch):  # noqa: ASYNC110 — the test opens it
            await asyncio.sleep(LOOK)
        return end(how)


@step(pool="slots", needs=APART, max_abandons=1)
def in_thread(how: str, seen: str, latch: str) -> Any:
    with recording("slots"):
        begin(seen, with_process=False)
        if how in STOPPED:
            block(latch)
        return end(how)


@step(pool="slots", needs=APART, max_abandons=1, executor="process")
def in_process(how: str, seen: str, latch: str) -> Any:
    with recording("slots"):
        begin(seen, with_process=True)
        if how in STOPPED:
            block(latch)
        return end(how)


STEPS: dict[str, Any] = {"async": on_loop, "thread": in_thread, "process": in_process}


@flow
def ending(executor: str, how: str, seen: str, latch: str) -> Any:
    options: dict[str, Any] = {}
    if how == "timeout":
        options["timeout"] = "300ms"
    if how == "lease_loss":
        options["max_abandons"] = 3
    return STEPS[executor].with_options(**options)(how, seen, latch)


@step(pool="slots")
async def probe() -> bool:
    """Needs the only slot, on any worker: it starts only when nothing is held."""
    with recording("slots"):
        return True


@flow
def probing() -> bool:
    return probe()
