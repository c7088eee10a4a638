"""The audit that goes on while a leader leads: it follows the history and counts what breaks a promise.

It runs in a thread with a loop and a store of its own, so nothing of it stands on the leader's loop. The thread
works in slices of a millisecond and rests after each one 49 times as long: it takes a fiftieth of one core
at most, and the leader's thread waits for the interpreter no longer than one slice. A busy leader may write faster
than that: then the audit lags behind (`locktender_audit_lag_seconds`) and catches up later.

It begins where the last audit ended (`observe/history_reader.py`), and stores its own state now and then: the
next leader goes on there. What it finds is logged once, counted (`locktender_limit_violations_total`) and shown by
`/health` until an operator has seen it (`locktender db prune --force`).

Its memory is that of the checker: one page, what is open, and 20,000 of the runs that wait. Above
`MAX_OPEN_TASKS` it pauses for a while.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from locktender.base.background import start_thread, until_done
from locktender.base.clock import SECOND, Clock, SystemClock, thread_cpu_us
from locktender.observe.checkpoint import SLACK_US, HistoryMarks, marks
from locktender.observe.history_reader import HistoryReading
from locktender.observe.metrics import AuditNumbers
from locktender.store.protocol import Store

log: logging.Logger = logging.getLogger(__name__)
START_SECONDS = 10.0
"""After the beginning of a term: a short one is not burdened with it."""
EVERY_SECONDS = 5.0
SLICE_US = 1_000
RESTS_PER_SLICE = 49
ROWS_PER_ROUND = 10_000
STORE_STATE_EVERY_US = 600 * SECOND
MAX_OPEN_TASKS = 100_000
"""That the checker keeps in memory, about 1 kB each."""
MAX_VIOLATIONS = 1_000
"""With more it stops: the history is broken, and `locktender audit` says where."""
PAUSE_SECONDS = 600.0
END_SECONDS = 1.0


class Pace:
    """Rests after each slice of work."""

    def __init__(self, computed_us: Callable[[], int] = thread_cpu_us) -> None:
        self._computed_us = computed_us
        self._began = computed_us()

    async def rest(self) -> None:
        worked_us = self._computed_us() - self._began
        if worked_us >= SLICE_US:
            await asyncio.sleep(RESTS_PER_SLICE * worked_us / SECOND)
            self._began = self._computed_us()


class ContinuousAudit:
    """One term's audit. `run` is a background task of the leader; all else happens in the thread."""

    def __init__(self, store: Store, numbers: AuditNumbers, clock: Clock | None = None) -> None:
        self._store = store
        self._numbers = numbers
        self._clock = SystemClock() if clock is None else clock
        self._reading: HistoryReading | None = None
        self._batches = 0
        self._stored_at = self._clock.monotonic()
        self._seen = 0
        """Violations of `_reading` that were counted, or were known before."""

    async def run(self) -> None:
        """Until it is cancelled, at the end of the term."""
        await asyncio.sleep(START_SECONDS)
        here, over = asyncio.get_running_loop(), asyncio.Event()
        working = _Working()

        def work() -> None:
            try:
                working.run(self)
            finally:
                with suppress(RuntimeError):  # that loop has ended meanwhile
                    here.call_soon_threadsafe(over.set)

        start_thread(work, "locktender-audit")
        try:
            await over.wait()
        finally:
            working.stop()
            # A store that does not answer must not keep the leader: the thread ends when its call does.
            with suppress(TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    await over.wait()

    async def follow(self) -> None:
        """Round after round, until it is cancelled or has found too much."""
        store = self._store.twin()
        await until_done(lambda: store.open(migrates=False), "open the audit's store", 1.0)
        try:
            while True:
                pause_seconds = await until_done(
                    lambda: self._guarded_round(store), "audit the history", EVERY_SECONDS
                )
                if pause_seconds is None:
                    return
                await asyncio.sleep(pause_seconds)
        finally:
            await store.close()

    async def _guarded_round(self, store: Store) -> float | None:
        try:
            return await self.round(store)
        except BaseException:
            # A page may be half read: go on from the stored state.
            self._reading = None
            raise

    async def round(self, store: Store) -> float | None:
        """Reads some rows; how long to pause then, in seconds. None: it ends."""
        known = await marks(store)
        reading = await self._ready(store, known)
        before = reading.replaying.world.last_seq
        whole = await reading.read(ROWS_PER_ROUND)
        after = await marks(store)
        if not whole or (after.batches != self._batches and before < after.checked):
            # Runs went while they were read: what is left of them looks broken.
            self._reading = None
            return 0.0
        self._batches = after.batches
        if reading.caught_up:
            reading.replaying.close_commit()
        if await self._publish(store, reading, after):
            await reading.keep()  # the next leader knows of it, and does not log it again
        if len(reading.replaying.violations) >= MAX_VIOLATIONS:
            log.error(
                "the audit stopped after %s broken promises. Run: locktender audit", self._seen
            )
            return None
        world = reading.replaying.world
        if sum(len(run.tasks) for run in world.runs.values()) > MAX_OPEN_TASKS:
            log.warning("the audit pauses: more than %s tasks are open", MAX_OPEN_TASKS)
            self._reading = None
            return PAUSE_SECONDS
        await self._store_state(reading)
        return EVERY_SECONDS if reading.caught_up else 0.0

    async def _ready(self, store: Store, known: HistoryMarks) -> HistoryReading:
        """The reading of the last round, unless runs were pruned that it had not read to their end."""
        reading = self._reading
        pruned = known.batches != self._batches
        if reading is None or (pruned and reading.replaying.world.last_seq < known.checked):
            pace = Pace()
            reading = HistoryReading(
                store, known.batches, known.checked, known.thinned, SLACK_US, pace.rest
            )
            await reading.resume()
            self._reading = reading
            self._seen = len(reading.replaying.violations)
        self._batches = known.batches
        return reading

    async def _publish(self, store: Store, reading: HistoryReading, known: HistoryMarks) -> bool:
        """Whether something was found that was not known."""
        found, numbers = reading.replaying.violations, self._numbers
        new = [each for each in found[self._seen :] if each.seq > known.passed_over]
        self._seen = len(found)
        for each in new:
            if numbers.note(str(each)):
                numbers.violations[each.rule] += 1
                log.error("the history breaks a promise: %s Run: locktender audit", each)
        unseen = [each for each in found if each.seq > known.passed_over]
        numbers.first_broken = str(min(unseen, key=lambda each: each.seq)) if unseen else ""
        numbers.broken = len(unseen)
        world = reading.replaying.world
        numbers.events = world.events
        behind = 0 if reading.caught_up else await store.now() - world.commit.at
        numbers.lag_us = max(0, behind)
        return bool(new)

    async def _store_state(self, reading: HistoryReading) -> None:
        if self._clock.monotonic() - self._stored_at >= STORE_STATE_EVERY_US:
            self._stored_at = self._clock.monotonic()
            await reading.keep()


class _Working:
    """The thread's loop, as its owner can end it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def run(self, audit: ContinuousAudit) -> None:
        with suppress(asyncio.CancelledError):
            asyncio.run(self._follow(audit))

    async def _follow(self, audit: ContinuousAudit) -> None:
        with self._lock:
            if self._stopped:
                return
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        try:
            await audit.follow()
        finally:
            with self._lock:
                self._task = None

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            if self._loop is not None and self._task is not None:
                self._loop.call_soon_threadsafe(self._task.cancel)
