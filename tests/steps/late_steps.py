"""Steps of a worker that joins late and is not to be stopped: at import it waits for a file, deaf to SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from locktender import flow, step


def _record() -> None:
    """As `bounded_steps.py` does."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    began = ticks * 1_000_000 // os.sysconf("SC_CLK_TCK")
    line = json.dumps([os.getpid(), os.environ["LOCKTENDER_PROVISION"], began])
    fd = os.open(
        os.environ["LOCKTENDER_TEST_RECORDS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
    )
    os.write(fd, f"{line}\n".encode())
    os.close(fd)


if "LOCKTENDER_PROVISION" in os.environ:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a mask would be of this thread alone
    _record()
    while not Path(os.environ["TEST_GO"]).exists():
        time.sleep(0.02)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@step
async def work(n: int) -> int:
    return 2 * n


@flow
def late(n: int) -> int:
    return work(n)
