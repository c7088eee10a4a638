"""The end of a process whose loop does not hear its signals.

Who runs this: a thread of `server` and `worker`. SIGTERM and SIGINT are heard
by the loop, and a step may hold the loop for hours: nothing of the worker would
ever end, and a service manager's next word is SIGKILL. So Python's own handlers,
which run also inside a step that sleeps or computes, say when a signal came, and
if the loop has not heard it in time the process ends hard. Its tasks are
abandoned then and tried again, as after any crash.
"""

from __future__ import annotations

import os
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread

from headgate.base.clock import SECOND, Clock

FIRST_US: int = 10 * SECOND
"""Beside `grace`: for the first signal. What holds the loop may be over by then, and all ends well."""
AGAIN_US: int = 5 * SECOND
EXIT_CODE: int = 75


class LastResort:
    """`signalled` comes from a signal handler, `heard` from the loop: both in the main thread."""

    def __init__(self, clock: Clock) -> None:
        self.grace_us: int = 0
        self._clock = clock
        self._count = 0
        self._end_us: int | None = None
        # The one kind of queue that a signal handler may write to while its own thread does.
        self._signals: SimpleQueue[None] = SimpleQueue()

    def start(self) -> None:
        Thread(target=self._watch, name="headgate-last-resort", daemon=True).start()

    def signalled(self) -> None:
        self._count += 1
        patience = FIRST_US + self.grace_us if self._count == 1 else AGAIN_US
        end_us = self._clock.monotonic() + patience
        self._end_us = end_us if self._end_us is None else min(end_us, self._end_us)
        self._signals.put(None)

    def heard(self) -> None:
        self._end_us = None

    def _watch(self) -> None:
        while True:
            end_us = self._end_us
            left = None if end_us is None else (end_us - self._clock.monotonic()) / SECOND
            if left is not None and left <= 0:
                _end()
            with suppress(Empty):
                self._signals.get(timeout=left)


def _end() -> None:
    # Not by logging: what holds the loop may hold a lock of it.
    text = f"the loop is held and hears no signal: the process ends, code {EXIT_CODE}; its tasks are tried again\n"
    with suppress(OSError):
        os.write(2, text.encode())
    os._exit(EXIT_CODE)
