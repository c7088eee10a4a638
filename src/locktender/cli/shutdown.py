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

While user code is imported nobody reads standard input: a thread ends us with whoever started us.

A process that serves until it is told to stop: what `server` and `worker` share.

The first SIGTERM or SIGINT drains: no new tasks, what runs may finish within
`grace`, the rest is handed back and no attempt is charged. The second does not
wait. With `--with-parent` the end of standard input counts as the first: a
process that somebody started must not outlive them unknown. A worker that ends
by itself has no such hurry: what it runs may finish, and `grace` begins only if
a signal comes meanwhile. A signal that the
loop does not hear, because a step holds it, ends the process hard (`last_resort`).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import select
import signal
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from threading import Thread
from types import FrameType

from locktender.base.background import end_tasks
from locktender.base.clock import SECOND, Clock, SystemClock
from locktender.base.config import Settings
from locktender.base.errors import InvalidInput
from locktender.client.core import Core
from locktender.client.more_workers import MoreWorkers

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


_GC_DEFAULTS = frozenset({(700, 10), (2_000, 10)})
_GC_THRESHOLDS = (10_000, 20, 50)
"""Of our own processes. Thousands of attempts in flight are many objects and no cycles: the starts and ends of
10,000 steps took 1.0 s with Python's thresholds and 0.7 s with these."""
LOOK_MILLISECONDS = 200


@contextmanager
def gone_with_parent() -> Generator[None]:
    """Ends the process at once if the other end of standard input goes; nothing runs yet."""
    over = threading.Event()

    def watch() -> None:
        poll = select.poll()
        poll.register(0, select.POLLHUP)
        while not over.is_set():
            if any(
                event & (select.POLLHUP | select.POLLERR)
                for _, event in poll.poll(LOOK_MILLISECONDS)
            ):
                if not over.is_set():
                    os._exit(0)
                return

    threading.Thread(target=watch, name="locktender-parent", daemon=True).start()
    try:
        yield
    finally:
        over.set()


log: logging.Logger = logging.getLogger(__name__)


class Told:
    """How often this process was asked to end, and by what."""

    def __init__(self) -> None:
        self.why: str = ""
        self.last_resort: LastResort = LastResort(SystemClock())
        self._first = asyncio.Event()
        self._second = asyncio.Event()

    def listen(self, *, with_parent: bool) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._heard, signal.Signals(number).name)
            # In the place of asyncio's own, which does nothing: the loop hears of it by another way.
            signal.signal(number, self._signalled)
            signal.siginterrupt(number, False)
        self.last_resort.start()
        if with_parent:
            try:
                loop.add_reader(0, self._read)
            except PermissionError:  # a file or /dev/null: it says nothing about anybody's end
                raise InvalidInput(
                    "--with-parent needs standard input to be a pipe.",
                    field="with_parent",
                    hint="Leave it out: SIGTERM ends the process.",
                ) from None

    def _signalled(self, _number: int, _frame: FrameType | None) -> None:
        self.last_resort.signalled()

    def _heard(self, why: str) -> None:
        self.last_resort.heard()
        self.end(why)

    def end(self, why: str) -> None:
        if self._first.is_set():
            self._second.set()
        else:
            self.why = why
            self._first.set()

    def _read(self) -> None:
        if not os.read(0, 4096):
            asyncio.get_running_loop().remove_reader(0)
            self.by_itself("whoever started it has gone")

    def by_itself(self, why: str) -> None:
        """Nobody asked: it is never the second time, which would not wait."""
        if not self._first.is_set():
            self.end(why)

    async def once(self) -> None:
        await self._first.wait()

    async def twice(self) -> None:
        await self._second.wait()


async def serve(
    settings: Settings,
    told: Told,
    ready: Callable[[Core], Awaitable[None]],
    *,
    lead: bool,
    work: bool,
    more: MoreWorkers | None = None,
) -> None:
    """Open, say so with `ready`, serve until told, drain."""
    if gc.get_threshold()[:2] in _GC_DEFAULTS:  # else the user's code has set its own
        gc.set_threshold(*_GC_THRESHOLDS)
    told.last_resort.grace_us = settings.grace_us
    core = await Core.open(settings, engine=True, lead=lead, work=work, more=more, ends_itself=True)
    if core.engine is not None and (member := core.engine.membership) is not None:
        told.last_resort.unheard, told.last_resort.ending = member.told_to_end, member.ends_hard
    beside = [asyncio.create_task(_hurry(core, told)), asyncio.create_task(_outlive(core, told))]
    try:
        await ready(core)
        await told.once()
    finally:
        try:
            await core.close(told.last_resort.grace_left())
            await end_tasks(beside)
        finally:
            told.last_resort.over()


async def _hurry(core: Core, told: Told) -> None:
    await told.twice()
    core.hurry()


async def _outlive(core: Core, told: Told) -> None:
    """A worker that was idle for too long, is too old, or ran enough tasks ends itself, when nothing runs."""
    member = None if core.engine is None else core.engine.membership
    if member is not None and member.lifetime.bounded:
        why = await member.lifetime.passed(lambda: member.worker.in_flight)
        log.info("%s: it ends when nothing runs any more", why)
        # First: a task that outlasts the grace would be handed back by every worker it comes to.
        await member.retire()
        told.by_itself(why)
