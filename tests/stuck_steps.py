"""A body in a thread that hears nothing, and says again and again that it runs."""

from __future__ import annotations

import os
import time
from pathlib import Path

from headgate import flow, step


@step(pools={"lone": 1})
def stuck(folder: str) -> int:
    with (Path(folder) / f"beats-{os.getpid()}").open("ab", buffering=0) as beats:
        while not (Path(folder) / "open").exists():
            beats.write(b"%d\n" % time.clock_gettime_ns(time.CLOCK_BOOTTIME))
            time.sleep(0.001)
    return os.getpid()


@flow
def sticking(folder: str) -> int:
    return stuck(folder)
