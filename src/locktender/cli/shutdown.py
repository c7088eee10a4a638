"""How `server` and `worker` end.

The first SIGTERM or SIGINT drains: no new tasks, what runs may finish within `grace`, the rest
is handed back and no attempt is charged. The second does not wait. With `--with-parent` the end
of standard input counts as the first. A worker that ends by itself lets all that runs finish;
`grace` begins only if a signal comes meanwhile.

Bodies run neither on this loop nor in the main thread, so the loop receives its signals. A store
that does not answer, or a provisioner that blocks the loop, must not keep the process: a timer ends
it in any case, 10 s after `grace` has passed, or 10 s after the second signal.
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
from types import FrameType

from locktender.base.background import end_tasks
from locktender.base.clock import SECOND, Clock, SystemClock
from locktender.base.config import Settings
from locktender.base.errors import InvalidInput
from locktender.client.core import Core
from locktender.client.more_workers import MoreWorkers

log: logging.Logger = logging.getLogger(__name__)
HARD_END_SECONDS: float = 10.0
"""After `grace` has passed, or after the second signal."""
LAST_WRITE_SECONDS: float = 5.0
"""How long the process then waits for its worker to write which tasks it leaves behind."""
EXIT_CODE: int = 75
LAST_LINE: str = f"the process does not end by itself: it ends hard, code {EXIT_CODE}; its tasks are tried again\n"
PARENT_POLL_MILLISECONDS = 200


class HardEnd:
    """Ends the process some time after the first signal, sooner after the second, whatever it waits for."""

    def __init__(self) -> None:
        self.last_write: Callable[[], None] | None = None
        """Called before the process ends, in a thread of its own."""
        self.grace_seconds: float | None = None
        """How long the process may take after the first signal; None: as long as it needs."""
        self._signals = 0
        self._timers: list[threading.Timer] = []

    def signalled(self) -> None:
        """In a signal handler."""
        self._signals += 1
        if self._signals == 1 and self.grace_seconds is not None:
            self._end_after(self.grace_seconds + HARD_END_SECONDS)
        elif self._signals == 2:
            self._end_after(HARD_END_SECONDS)

    def cancel(self) -> None:
        """Everything has ended."""
        self._signals = 2  # later signals start nothing
        for timer in self._timers:
            timer.cancel()

    def _end_after(self, seconds: float) -> None:
        timer = threading.Timer(seconds, self._end)
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def _end(self) -> None:
        # Not by logging: the code that blocks may hold a lock of it.
        with suppress(OSError):
            os.write(2, LAST_LINE.encode())
        if self.last_write is not None:
            writer = threading.Thread(target=self.last_write, daemon=True)
            writer.start()
            writer.join(LAST_WRITE_SECONDS)
        os._exit(EXIT_CODE)


_GC_DEFAULTS = frozenset({(700, 10), (2_000, 10)})
_GC_THRESHOLDS = (10_000, 20, 50)
"""Of our own processes. Thousands of attempts in flight are many objects and no cycles: the starts and ends of
10,000 steps took 1.0 s with Python's thresholds and 0.7 s with these."""


@contextmanager
def gone_with_parent() -> Generator[None]:
    """Ends the process at once if the other end of standard input closes: while user code is imported
    nobody else reads it, and nothing runs yet."""
    over = threading.Event()

    def watch() -> None:
        poll = select.poll()
        poll.register(0, select.POLLHUP)
        while not over.is_set():
            if any(
                event & (select.POLLHUP | select.POLLERR)
                for _, event in poll.poll(PARENT_POLL_MILLISECONDS)
            ):
                if not over.is_set():
                    os._exit(0)
                return

    threading.Thread(target=watch, name="locktender-parent", daemon=True).start()
    try:
        yield
    finally:
        over.set()


class Told:
    """How often this process was asked to end, and by what."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.why: str = ""
        self.hard_end: HardEnd = HardEnd()
        self._clock = clock or SystemClock()
        self._first_us: int | None = None
        self._first = asyncio.Event()
        self._second = asyncio.Event()

    def listen(self, *, with_parent: bool) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.end, signal.Signals(number).name)
            # In the place of asyncio's own, which does nothing: the loop reads the signal from a pipe.
            signal.signal(number, self._signalled)
            signal.siginterrupt(number, False)
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
        if self._first_us is None:
            self._first_us = self._clock.monotonic()
        self.hard_end.signalled()

    def grace_left(self, grace_us: int) -> int:
        """Of `grace`, which begins with the first signal."""
        first = self._first_us
        passed = 0 if first is None else self._clock.monotonic() - first
        return max(0, grace_us - passed)

    def end(self, why: str) -> None:
        if self._first.is_set():
            self._second.set()
        else:
            self.why = why
            self._first.set()

    def _read(self) -> None:
        if not os.read(0, 4096):
            asyncio.get_running_loop().remove_reader(0)
            self.by_itself("the process that started it has ended")

    def by_itself(self, why: str) -> None:
        """No signal: it never counts as the second, which would not wait."""
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
    told.hard_end.grace_seconds = settings.grace_us / SECOND
    if gc.get_threshold()[:2] in _GC_DEFAULTS:  # else the user's code has set its own
        gc.set_threshold(*_GC_THRESHOLDS)
    core = await Core.open(settings, engine=True, lead=lead, work=work, more=more, ends_itself=True)
    if core.engine is not None and (membership := core.engine.membership) is not None:
        told.hard_end.last_write = membership.ends_hard
    beside = [asyncio.create_task(_hurry(core, told)), asyncio.create_task(_outlive(core, told))]
    try:
        await ready(core)
        await told.once()
    finally:
        try:
            await core.close(told.grace_left(settings.grace_us))
            await end_tasks(beside)
        finally:
            told.hard_end.cancel()


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
