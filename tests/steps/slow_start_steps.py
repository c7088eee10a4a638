"""Steps of workers that take their time to start: at import they wait for a file.

`TEST_DEAF`: they do not notice either that whoever started them is gone.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from locktender import flow, step


def say(text: str) -> None:
    fd = os.open(os.environ["TEST_RECORDS"], os.O_WRONLY | os.O_APPEND)
    os.write(fd, f"{text}\n".encode())
    os.close(fd)


if "worker" in sys.orig_argv[1:5]:
    if os.environ.get("TEST_DEAF"):
        # Longer than whoever watches standard input looks at the old one.
        ends = os.pipe()
        os.dup2(ends[0], 0)
        time.sleep(0.5)
    say("waits")
    until = time.monotonic() + 60
    while not Path(os.environ["TEST_GO"]).exists() and time.monotonic() < until:
        time.sleep(0.02)


@step
async def work(x: int) -> int:
    return os.getpid()


@flow
def slow_to_start(x: int):
    return work(x)
