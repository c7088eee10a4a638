"""Steps of the story of bounded dispatch. Each process that imports them leaves a record of itself.

A record is written before the process has joined anything, so that a worker counts
although it never got a task, never joined, or is not known to anybody. The test that
looks at it is `tests/support/worker_records.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import psutil

from locktender import flow, step
from locktender.base.clock import SystemClock
from locktender.testing import recording

RECORDS = "LOCKTENDER_TEST_RECORDS"
"""Names the file of records; unset in the process of the test itself."""
PROVISION = "LOCKTENDER_PROVISION"
"""What a provisioner calls the worker it started; others have none."""


def _began_us() -> int:
    """When the machine began this process, on the boot-time clock: before Python and its imports."""
    if not Path("/proc/self/stat").exists():
        clock = SystemClock()
        return clock.monotonic() - clock.now() + int(psutil.Process().create_time() * 1_000_000)
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return ticks * 1_000_000 // os.sysconf("SC_CLK_TCK")


def _record() -> None:
    path = os.environ.get(RECORDS)
    if not path:
        return
    line = [os.getpid(), os.environ.get(PROVISION, ""), _began_us()]
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, json.dumps(line).encode() + b"\n")
    finally:
        os.close(fd)


_record()


def _opened(latch: str) -> bool:
    return not latch or Path(latch).exists()


@step(max_abandons=10)
async def prepare(n: int) -> int:
    with recording("prepare", label=str(n)):
        return n


@step(max_abandons=10)
async def work(n: int, latch: str) -> int:
    """Runs until the latch is open; one without a name is."""
    with recording("work", label=str(n)):
        while not _opened(latch):  # noqa: ASYNC110 — the test opens it
            await asyncio.sleep(0.002)
    return 2 * n


@flow
def prepared(n: int, latch: str) -> int:
    return work(prepare(n), latch)
