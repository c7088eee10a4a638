"""A process that is told to end does, also where a step holds its loop."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from locktender.cli import shutdown

SCRIPT = """
import asyncio, sys, time
from locktender.base.clock import SystemClock
from locktender.cli import shutdown
from locktender.cli.shutdown import Told

shutdown.FIRST_US, shutdown.AGAIN_US, held, grace_us, again = map(int, sys.argv[1:])
shutdown.HELD_US = 1_000_000

async def main():
    told = Told()
    told.last_resort.grace_us = grace_us
    told.listen(with_parent=False)
    print("ready", flush=True)
    if held:
        time.sleep(held)
    await told.once()
    print("heard", told.why, flush=True)
    if again:
        await asyncio.sleep(1.5)  # longer than a loop may be silent: it is not
        print("left", told.last_resort.grace_left(), flush=True)
        time.sleep(again)
    await told.twice()
    print("twice", flush=True)
    await asyncio.sleep(1.5)  # longer than the signals' time: they were heard
    told.last_resort.over()
    time.sleep(1.5)

asyncio.run(main())
"""
LONG = 3600 * 1_000_000
SHORT = 300_000


@contextmanager
def told(
    first_us: int, again_us: int, held: int, grace_us: int = 0, again: int = 0
) -> Generator[subprocess.Popen[str]]:
    arguments = [str(each) for each in (first_us, again_us, held, grace_us, again)]
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
        assert "it does not end by itself" in process.stderr.read()


WORDS = """
import os, time
from locktender.cli import shutdown

shutdown.UNHEARD_US, shutdown.ENDING_SECONDS = 100_000, 0.2

def unheard():
    os.write(1, b"unheard\\n")

def ending():
    os.write(1, b"ending\\n")
    time.sleep(3600)  # nobody answers

made = shutdown.LastResort.__init__

def make(self, clock):
    made(self, clock)
    self.unheard, self.ending = unheard, ending

shutdown.LastResort.__init__ = make
"""


def test_the_last_words_are_said_and_do_not_keep_the_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(f"{__name__}.SCRIPT", WORDS + SCRIPT)
    with told(SHORT, LONG, held=60) as process:
        process.send_signal(signal.SIGTERM)

        assert process.stdout is not None
        assert process.stdout.readline() == "unheard\n"
        assert process.stdout.readline() == "ending\n"
        assert process.wait(20) == 75


def test_nothing_is_said_where_the_loop_hears(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(f"{__name__}.SCRIPT", WORDS + SCRIPT)
    with told(SHORT, SHORT, held=0) as process:
        assert process.stdout is not None
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "heard SIGTERM\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "twice\n"


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


def test_a_loop_that_has_heard_and_is_held_again_does_not_keep_the_process():
    with told(SHORT, LONG, held=0, again=60) as process:
        assert process.stdout is not None
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "heard SIGTERM\n"
        assert process.stdout.readline() == "left 0\n"

        assert process.wait(20) == 75


def test_a_loop_that_is_held_again_has_what_was_promised():
    with told(SHORT, SHORT, held=0, grace_us=LONG, again=60) as process:
        assert process.stdout is not None
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "heard SIGTERM\n"
        left = int(process.stdout.readline().removeprefix("left "))
        assert LONG - 10_000_000 < left <= LONG - 1_500_000  # it began with the signal
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.5)
        process.send_signal(signal.SIGTERM)

        assert process.wait(20) == 75


def test_what_is_promised_is_kept_within_about_a_second():
    assert shutdown.FIRST_US == shutdown.AGAIN_US == 1_000_000
    assert shutdown.UNHEARD_US <= shutdown.FIRST_US
