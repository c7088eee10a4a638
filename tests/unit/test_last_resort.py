"""A process that is told to end does, also where a step holds its loop."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from locktender.base.clock import ManualClock
from locktender.cli import shutdown

SCRIPT = """
import asyncio, sys, time
from locktender.cli import shutdown
from locktender.cli.shutdown import Told

shutdown.FIRST_US, shutdown.AGAIN_US, grace_us = map(int, sys.argv[1:])

async def main():
    told = Told()
    told.last_resort.grace_us = grace_us
    told.listen(with_parent=False)
    print("ready", flush=True)
    time.sleep(600)  # a step holds the loop

asyncio.run(main())
"""
LONG = 3600 * 1_000_000
SHORT = 300_000


@contextmanager
def told(first_us: int, again_us: int, grace_us: int = 0) -> Generator[subprocess.Popen[str]]:
    """A process whose loop is held, and which is to be told to end."""
    arguments = [str(each) for each in (first_us, again_us, grace_us)]
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
    with told(SHORT, LONG) as process:
        process.send_signal(number)

        assert process.wait(60) == 75
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
    with told(SHORT, LONG) as process:
        process.send_signal(signal.SIGTERM)

        assert process.stdout is not None
        assert process.stdout.readline() == "unheard\n"
        assert process.stdout.readline() == "ending\n"
        assert process.wait(60) == 75


def test_the_second_signal_does_not_wait_for_grace():
    with told(SHORT, SHORT, grace_us=LONG) as process:
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2 * SHORT / 1_000_000)
        process.send_signal(signal.SIGTERM)

        assert process.wait(60) == 75


class Looked(Exception):
    pass


class Ended(Exception):
    pass


class Once:
    """In the place of the queue that the thread waits at: one look, and it is over."""

    def put(self, _: None) -> None: ...

    def get(self, timeout: float | None) -> None:
        raise Looked


class Resort(shutdown.LastResort):
    """Under a clock of the test's own; its thread's looks are the test's, too."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        super().__init__(self.clock)
        self.said: list[str] = []
        self.unheard = lambda: self.said.append("unheard")
        self._signals = Once()  # type: ignore[assignment]

    def after(self, passed_us: int) -> str:
        """What its thread does when so much time has passed."""
        self.clock.advance(passed_us)
        try:
            self._watch()
        except Looked:
            return "goes on"
        except Ended:
            return "ended"

    def _end(self) -> None:
        raise Ended


async def test_nothing_is_said_where_the_loop_hears():
    resort = Resort()
    resort.signalled()
    resort.heard()
    assert resort.after(shutdown.UNHEARD_US) == "goes on"
    assert resort.said == []


async def test_signals_that_are_heard_end_nothing_while_the_loop_goes_on():
    resort = Resort()
    resort.signalled()
    resort.heard()
    for _ in range(20):
        assert resort.after(shutdown.HELD_US - 1) == "goes on"
        resort._go_on()
    resort.signalled()
    resort.heard()
    resort._go_on()
    assert resort.after(shutdown.AGAIN_US) == "goes on"
    resort.over()  # everything has ended: nobody hurries the process any more
    assert resort.after(LONG) == "goes on"


async def test_after_the_second_signal_it_ends_in_any_case():
    resort = Resort()
    for _ in range(2):
        resort.signalled()
        resort.heard()
    resort._go_on()
    waited = 0
    while resort.after(shutdown.SECOND) == "goes on":
        resort._go_on()
        waited += shutdown.SECOND
    assert waited == shutdown.AT_LAST_US - shutdown.SECOND


async def test_a_loop_that_has_heard_and_is_held_again_does_not_keep_the_process():
    resort = Resort()
    resort.signalled()
    resort.heard()
    assert resort.grace_left() == 0
    assert resort.after(shutdown.HELD_US - 1) == "goes on"
    assert resort.after(1) == "ended"


async def test_a_loop_that_is_held_again_has_what_was_promised():
    resort = Resort()
    resort.grace_us = LONG
    resort.signalled()
    resort.heard()
    assert resort.after(LONG // 2) == "goes on"
    assert resort.grace_left() == LONG // 2  # it began with the signal
    resort.signalled()
    assert resort.after(shutdown.AGAIN_US - 1) == "goes on"
    assert resort.after(1) == "ended"


def test_what_is_promised_is_kept_within_about_a_second():
    assert shutdown.FIRST_US == shutdown.AGAIN_US == 1_000_000
    assert shutdown.UNHEARD_US <= shutdown.FIRST_US
