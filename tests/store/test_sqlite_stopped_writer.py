"""A process that is stopped inside its write blocks every writer: they name it, and `why` does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from locktender import connect, flow, step
from locktender.base.clock import SystemClock
from locktender.base.errors import StoreBusy
from locktender.store.sqlite.write_lock import WriteLock, holder
from locktender.testing import eventually

pytestmark = pytest.mark.skipif(not Path("/proc/locks").exists(), reason="Linux says who locks")
CHILD = """
import sys
from locktender.base.clock import SystemClock
from pathlib import Path
from locktender.store.sqlite.write_lock import WriteLock
lock = WriteLock(Path(sys.argv[1]), SystemClock(), 10**9)
lock.enter()
print("in", flush=True)
sys.stdin.read()
"""


@step
async def one() -> int:
    return 1


@flow
def ones() -> int:
    return one()


def test_the_stopped_process_that_holds_the_lock_is_named(url: Path):
    with connect(url) as client:
        run = client.submit(ones)
        lock = WriteLock(url, SystemClock(), 1_000)
        assert holder(lock.descriptors()[1]) is None
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(url)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "in\n"
            with pytest.raises(StoreBusy, match=rf"process {child.pid} \(.+\) holds it"):
                lock.enter()
            # A write that goes on is nothing to report.
            assert "write lock" not in str(run.why())

            os.kill(child.pid, signal.SIGSTOP)

            eventually(lambda: f"Process {child.pid}" in str(run.why()))
            assert "is stopped and holds the write lock" in str(run.why())
            with pytest.raises(
                StoreBusy, match=rf"process {child.pid} \(.+\), which is stopped, holds it"
            ):
                lock.enter()
        finally:
            child.kill()
            child.communicate()
        lock.enter()
        lock.leave()
        lock.close()
        assert "write lock" not in str(run.why())
