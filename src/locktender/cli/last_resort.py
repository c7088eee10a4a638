"""The end of a process whose loop does not hear its signals.

Who runs this: a thread of `server` and `worker`. SIGTERM and SIGINT are heard
by the loop, and a step may hold the loop for hours: nothing of the worker would
ever end, and a service manager's next word is SIGKILL. So Python's own handlers,
which run also inside a step that sleeps or computes, say when a signal came, and
if the loop has not heard it in time the process ends hard. Before that its
worker leaves word which tasks it goes without: they are tried again, and that
it was told to end is charged to none of them. That is done soon after the signal
already: whoever sent it may have less patience than we.

A loop that has heard may be held again while all else ends. So it says that it
goes on, a few times a second, and if it stops saying so after the time that was
promised (`grace`, or at once after the second signal) the process ends as well. And
after the second signal it ends in any case: a store that does not answer, however
much the loop goes on, must not keep it.

A step that holds the interpreter itself, in a call into C that does not let go of
it or never returns to Python, keeps the handlers from running too: there SIGKILL is
what is left.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread

from locktender.base.clock import SECOND, Clock

FIRST_US: int = 1 * SECOND
"""Beside `grace`: for the first signal. A loop that is merely busy hears it by then, and all ends well."""
AGAIN_US: int = 1 * SECOND
HELD_US: int = 3 * SECOND
"""How long a loop that has heard, and is ending, may be silent."""
AT_LAST_US: int = 10 * SECOND
"""After the second signal: whatever it waits for."""
GOES_ON_SECONDS: float = 0.25
UNHEARD_US: int = 1 * SECOND
"""After a signal: a loop that is merely busy has heard it by then."""
ENDING_SECONDS: float = 5.0
EXIT_CODE: int = 75
LAST_LINE: str = (
    "it does not end by itself (a step holds the loop, or the store does not answer):"
    f" the process ends hard, code {EXIT_CODE}; its tasks are tried again\n"
)


def _nobody() -> None:
    return None


class LastResort:
    """`signalled` comes from a signal handler, the others from the loop: all in the main thread."""

    def __init__(self, clock: Clock) -> None:
        self.grace_us: int = 0
        self.unheard: Callable[[], None] = _nobody
        """Called when the first signal is not heard soon, in a thread of its own."""
        self.ending: Callable[[], None] = _nobody
        """Called right before the process ends hard, in a thread of its own."""
        self._clock = clock
        self._count = 0
        self._first_us: int | None = None
        self._end_us: int | None = None
        self._promised_us: int | None = None
        """When it is to have ended, once the loop has heard."""
        self._word_us: int | None = None
        self._at_last_us: int | None = None
        # The one kind of queue that a signal handler may write to while its own thread does.
        self._signals: SimpleQueue[None] = SimpleQueue()

    def start(self) -> None:
        Thread(target=self._watch, name="locktender-last-resort", daemon=True).start()

    def signalled(self) -> None:
        self._count += 1
        patience = FIRST_US + self.grace_us if self._count == 1 else AGAIN_US
        now = self._clock.monotonic()
        end_us = now + patience
        if self._count == 1:
            self._first_us = now
            self._word_us = now + UNHEARD_US
        elif self._at_last_us is None:
            self._at_last_us = now + AT_LAST_US
        self._end_us = end_us if self._end_us is None else min(end_us, self._end_us)
        self._signals.put(None)

    def heard(self) -> None:
        begins = self._promised_us is None
        self._promised_us = self._end_us or self._clock.monotonic()
        self._word_us = None
        if begins:
            self._go_on()

    def _go_on(self) -> None:
        if self._promised_us is not None:
            end_us = max(self._promised_us, self._clock.monotonic() + HELD_US)
            self._end_us = end_us if self._at_last_us is None else min(end_us, self._at_last_us)
            asyncio.get_running_loop().call_later(GOES_ON_SECONDS, self._go_on)

    def grace_left(self) -> int:
        """Of `grace`, which begins with the first signal, also where the loop hears of it late."""
        first = self._first_us
        passed = 0 if first is None else self._clock.monotonic() - first
        return max(0, self.grace_us - passed)

    def over(self) -> None:
        """Everything has ended: the loop may go."""
        self._promised_us = self._end_us = self._word_us = self._at_last_us = None

    def _watch(self) -> None:
        while True:
            # Read once: the main thread takes them away when the loop hears.
            end_us, word_us = self._end_us, self._word_us
            now = self._clock.monotonic()
            if end_us is not None and end_us <= now:
                self._end()
            if word_us is not None and word_us <= now:
                self._word_us = word_us = None
                _call(self.unheard)
            due = [each for each in (end_us, word_us) if each is not None]
            left = (min(due) - now) / SECOND if due else None
            with suppress(Empty):
                self._signals.get(timeout=left)

    def _end(self) -> None:
        # Not by logging: what holds the loop may hold a lock of it.
        with suppress(OSError):
            os.write(2, LAST_LINE.encode())
        # Nor does it wait for ever for somebody's last word.
        _call(self.ending).join(ENDING_SECONDS)
        os._exit(EXIT_CODE)


def _call(word: Callable[[], None]) -> Thread:
    """In a thread of its own: whatever becomes of it, the process ends."""
    thread = Thread(target=word, name="locktender-last-word", daemon=True)
    thread.start()
    return thread
