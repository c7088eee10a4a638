"""How commands end: interrupts of `run` and `dev`, signals of `server` and `worker`.

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
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from importlib import import_module
from types import FrameType
from typing import Any, Self

from locktender.base.background import end_tasks, start_task, start_thread
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
_GC_WITHOUT_BODIES = (100_000, 20, 50)
"""Of a process that runs no bodies: what it makes for a run is freed without a collection."""


def freeze_own_objects() -> None:
    """What is imported by now lives as long as the process: no collection looks at it again.

    Called before user code is imported, so that what that code leaves is still collected at the end.
    The collections at the interpreter's end took 0.13 s of CPU, in a worker that is paid by the second.
    """
    import_module("locktender.engine")  # it is needed anyway: so it is frozen too
    gc.freeze()


@contextmanager
def end_with_parent() -> Generator[None]:
    """Ends the process at once if the other end of standard input closes: while user code is imported
    nothing else reads it, and nothing runs yet."""
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

    start_thread(watch, "locktender-parent", failed=lambda _: os._exit(1))
    try:
        yield
    finally:
        over.set()


class StopRequests:
    """How often this process was asked to end, and by what."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.reason: str = ""
        """Of the first request."""
        self.hard_end: HardEnd = HardEnd()
        self._clock = clock or SystemClock()
        self._first_us: int | None = None
        self._first = asyncio.Event()
        self._second = asyncio.Event()

    def listen(self, *, with_parent: bool) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.request, signal.Signals(number).name)
            # In the place of asyncio's own, which does nothing: the loop reads the signal from a pipe.
            signal.signal(number, self._signalled)
            signal.siginterrupt(number, False)
        if with_parent:
            try:
                loop.add_reader(0, self._read)
            except PermissionError:  # a file or /dev/null: it does not end with the parent
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

    def request(self, reason: str) -> None:
        if self._first.is_set():
            self._second.set()
        else:
            self.reason = reason
            self._first.set()

    def _read(self) -> None:
        if not os.read(0, 4096):
            asyncio.get_running_loop().remove_reader(0)
            self.request_once("the process that started it has ended")

    def request_once(self, reason: str) -> None:
        """Not by a signal: it never counts as the second request, which would not wait."""
        if not self._first.is_set():
            self.request(reason)

    async def first(self) -> None:
        await self._first.wait()

    async def second(self) -> None:
        await self._second.wait()


async def serve(
    settings: Settings,
    stop: StopRequests,
    ready: Callable[[Core], Awaitable[None]],
    *,
    lead: bool,
    work: bool,
    more: MoreWorkers | None = None,
) -> None:
    """Open, say so with `ready`, serve until a stop is requested, drain.

    While the store cannot be reached it waits, as it does when the store goes away later.
    """
    stop.hard_end.grace_seconds = settings.grace_us / SECOND
    if gc.get_threshold()[:2] in _GC_DEFAULTS:  # else the user's code has set its own
        gc.set_threshold(*(_GC_THRESHOLDS if work else _GC_WITHOUT_BODIES))
    opening = Core.open(
        settings, engine=True, lead=lead, work=work, more=more, ends_itself=True, waits=True
    )
    core = await _unless_stopped(opening, stop)
    if core is None:
        if more is not None:
            await more.close(0)
        stop.hard_end.cancel()
        return
    if core.engine is not None and (membership := core.engine.membership) is not None:
        stop.hard_end.last_write = membership.ends_hard
    beside = [
        start_task(_hurry(core, stop), "end at once"),
        start_task(
            _end_when_idle_or_old(core, stop),
            "end when idle or old",
            failed=lambda: stop.request_once("its lifetime is not watched any more"),
        ),
    ]
    try:
        await ready(core)
        await stop.first()
    finally:
        try:
            await core.close(stop.grace_left(settings.grace_us))
            await end_tasks(beside)
        finally:
            stop.hard_end.cancel()


async def _unless_stopped(opening: Coroutine[Any, Any, Core], stop: StopRequests) -> Core | None:
    """The result of `opening`; None: a stop was requested first, and it was cancelled."""
    task = asyncio.create_task(opening)
    stopped = asyncio.create_task(stop.first())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        # Read before they are ended: a cancelled task is done too.
        done = task.done()
        await end_tasks([stopped] if done else [stopped, task])
    return await task if done else None


async def _hurry(core: Core, stop: StopRequests) -> None:
    await stop.second()
    core.hurry()


async def _end_when_idle_or_old(core: Core, stop: StopRequests) -> None:
    """A worker that was idle for too long, is too old, or ran enough tasks ends itself, when nothing runs."""
    member = None if core.engine is None else core.engine.membership
    if member is not None and member.lifetime.bounded:
        why = await member.lifetime.passed(lambda: member.worker.in_flight)
        log.info("%s: the worker ends when none of its tasks runs", why)
        # First: a task that outlasts the grace would be handed back by every worker it comes to.
        await member.retire()
        stop.request_once(why)


class Interrupts:
    """Counts Ctrl-C and SIGTERM while it is entered, so that they never end a write in its middle."""

    def __init__(self) -> None:
        self.count: int = 0
        self.signal: signal.Signals = signal.SIGINT
        self._wake = threading.Event()
        self._before: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        return 128 + self.signal

    def wake(self) -> None:
        """Ends the wait, from any thread."""
        self._wake.set()

    def wait(self, seconds: float) -> None:
        """Until something happens, or `seconds` have passed."""
        self._wake.wait(seconds)
        self._wake.clear()

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._count)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _count(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self.signal = signal.Signals(number)
        self._wake.set()
