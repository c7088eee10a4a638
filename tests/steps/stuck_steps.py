"""Bodies that hear nothing, in a thread, on the loop and in a child, and say again and again that they run."""

from __future__ import annotations

import os
import time
from pathlib import Path

from locktender import flow, step
from locktender.base.clock import SystemClock


def _run_until_open(folder: str) -> int:
    with (Path(folder) / f"beats-{os.getpid()}").open("ab", buffering=0) as beats:
        while not (Path(folder) / "open").exists():
            beats.write(b"%d\n" % (1_000 * SystemClock().monotonic()))
            time.sleep(0.001)
    return os.getpid()


@step(pools={"lone": 1})
def stuck(folder: str) -> int:
    return _run_until_open(folder)


@step(pools={"lone": 1})
async def holding(folder: str) -> int:
    """It holds the loop: nothing else of its worker is heard or done meanwhile."""
    return _run_until_open(folder)


@step(executor="process")
def apart(folder: str) -> int:
    return _run_until_open(folder)


@flow
def sticking(folder: str) -> int:
    return stuck(folder)


@flow
def hogging(folder: str) -> int:
    return holding(folder)


@flow
def parting(folder: str) -> int:
    return apart(folder)
