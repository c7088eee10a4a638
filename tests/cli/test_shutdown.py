"""A process that is asked to end does, whatever it waits for: after its grace, or at the second signal."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

import pytest

SCRIPT = """
import asyncio, os, sys, threading, time
from locktender.cli import shutdown
from locktender.cli.shutdown import StopRequests

held, ends = int(sys.argv[1]), int(sys.argv[2])
shutdown.HARD_END_SECONDS = 3600 if ends else 0.3
grace = float(sys.argv[3])
shutdown.LAST_WRITE_SECONDS = 0.2

def last_write():
    os.write(1, b"last write\\n")
    time.sleep(3600)  # the store does not answer

async def main():
    stop = StopRequests()
    stop.hard_end.last_write = last_write
    stop.hard_end.grace_seconds = grace
    stop.listen(with_parent=False)
    print("ready", flush=True)
    if held:
        time.sleep(held)
    await stop.first()
    print("heard", stop.reason, stop.grace_left(60_000_000) <= 60_000_000, flush=True)
    await stop.second()
    print("twice", flush=True)
    if ends:
        stop.hard_end.cancel()
        async with asyncio.timeout(60):
            while any(isinstance(each, threading.Timer) for each in threading.enumerate()):
                await asyncio.sleep(0.01)
    else:
        await asyncio.sleep(3600)

asyncio.run(main())
"""


@contextmanager
def stop(
    *, held: int = 0, ends: bool = False, grace: float = 3600
) -> Generator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(held), str(int(ends)), str(grace)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_ends_a_process_that_waits_for_ever(number: signal.Signals):
    with stop() as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.send_signal(number)
        assert process.stdout.readline() == f"heard {number.name} True\n"
        process.send_signal(number)

        assert process.stdout.readline() == "twice\n"
        assert process.stdout.readline() == "last write\n"
        assert process.wait(60) == 75
        assert "does not end by itself" in process.stderr.read()


def test_the_second_signal_ends_a_process_whose_loop_is_blocked():
    with stop(held=3600) as process:
        assert process.stderr is not None
        while process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(0.2)
            except subprocess.TimeoutExpired:
                continue

        assert process.wait(60) == 75


@pytest.mark.parametrize("held", [0, 3600])
def test_one_signal_ends_a_process_soon_after_its_grace(held: int):
    with stop(held=held, grace=0.2) as process:
        assert process.stderr is not None
        process.send_signal(signal.SIGTERM)

        assert process.wait(60) == 75
        assert "does not end by itself" in process.stderr.read()


def test_a_process_that_has_ended_its_work_is_not_ended_hard():
    with stop(ends=True) as process:
        assert process.stdout is not None
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "heard SIGTERM True\n"
        process.send_signal(signal.SIGINT)

        assert process.stdout.read() == "twice\n"
        assert process.wait(60) == 0
