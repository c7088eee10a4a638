"""A process that is told to end does, also where a step holds its loop."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

import pytest

SCRIPT = """
import asyncio, sys, time
from headgate.base.clock import SystemClock
from headgate.cli import last_resort
from headgate.cli.serving import Told

last_resort.FIRST_US, last_resort.AGAIN_US, held, grace_us = map(int, sys.argv[1:])

async def main():
    told = Told()
    told.last_resort.grace_us = grace_us
    told.listen(with_parent=False)
    print("ready", flush=True)
    if held:
        time.sleep(held)
    await told.once()
    print("heard", told.why, flush=True)
    await told.twice()
    print("twice", flush=True)
    await asyncio.sleep(1)  # longer than the signals' time: they were heard

asyncio.run(main())
"""
LONG = 3600 * 1_000_000
SHORT = 300_000


@contextmanager
def told(
    first_us: int, again_us: int, held: int, grace_us: int = 0
) -> Generator[subprocess.Popen[str]]:
    arguments = [str(each) for each in (first_us, again_us, held, grace_us)]
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_loop_that_is_held_does_not_keep_the_process(number: signal.Signals):
    with told(SHORT, LONG, held=60) as process:
        process.send_signal(number)

        assert process.wait(20) == 75
        assert process.stderr is not None
        assert "the loop is held and hears no signal" in process.stderr.read()


def test_the_second_signal_does_not_wait_for_grace():
    with told(SHORT, SHORT, held=60, grace_us=LONG) as process:
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.5)
        process.send_signal(signal.SIGTERM)

        assert process.wait(20) == 75


def test_signals_that_are_heard_end_nothing_by_themselves():
    with told(SHORT, SHORT, held=0) as process:
        assert process.stdout is not None
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "heard SIGTERM\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "twice\n"

        assert process.wait(20) == 0
