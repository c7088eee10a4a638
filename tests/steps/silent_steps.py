"""Steps for a worker whose engine can be blocked from outside while its lease is kept.

`SIGUSR2` blocks the loop of the process until the file that `LOCKTENDER_TEST_SILENT` names is gone. The handler
runs in the main thread, where the engine's loop is; the lease is renewed in a thread of its own.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType

from locktender import flow, step
from locktender.testing import recording


def _block(_signal: int, _frame: FrameType | None) -> None:
    _wait_for(Path(os.environ["LOCKTENDER_TEST_SILENT"]))


def _wait_for(latch: Path) -> None:
    latch.with_suffix(".blocked").touch()
    while latch.exists():
        time.sleep(0.01)


if "LOCKTENDER_TEST_SILENT" in os.environ and (
    threading.current_thread() is threading.main_thread()
):
    signal.signal(signal.SIGUSR2, _block)


@step
async def shown(n: int) -> int:
    with recording("shown", label=str(n)):
        return n


@flow
def show(n: int) -> int:
    return shown(n)


@step
async def blocks_the_loop(latch: str) -> None:
    """An async body that blocks the loop of all async bodies of its worker."""
    _wait_for(Path(latch))


@flow
def block(latch: str) -> None:
    return blocks_the_loop(latch)
