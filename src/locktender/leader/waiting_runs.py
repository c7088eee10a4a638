"""Wakes runs that wait for their time or for an event, and looks up what tasks wait for.

Waiting runs are rows: the leader knows only when the first of them is to be woken. It learns of earlier ones by
the events of their submission. What is woken is queued, and read like any queued run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from locktender.base.clock import MILLISECOND, SECOND
from locktender.base.events import NO_RUN, Event
from locktender.kernel.entries import TaskEntry
from locktender.kernel.scheduler import Scheduler
from locktender.kernel.waiting_runs import put_cached
from locktender.leader.queue_reader import QueueReader
from locktender.observe.metrics import Metrics
from locktender.store.protocol import Store, Wake
from locktender.store.readable import is_fault

log: logging.Logger = logging.getLogger(__name__)
MAX_WOKEN = 1_000
"""At a time: others may submit and be decided about in between."""
COME_BACK_US = 20 * MILLISECOND
PATIENT_AFTER = 3
"""Where submitters are in the way the leader goes on with its cycles and comes back. Behind a line of them it
would find the lock taken every time: after so many times it waits in that line, for a quarter of a second."""


class WaitingRuns:
    def __init__(self, store: Store, queue: QueueReader, metrics: Metrics) -> None:
        self._store = store
        self._queue = queue
        self._metrics = metrics
        self.next_at: int | None = None
        """When the first waiting run is to be woken; None: none waits."""
        self.woken_at: int = 0
        """The store's time when runs were last woken."""
        self._mailed: set[int] | None = set()
        """Runs that an event was sent to while they were not in memory. None: it may be any."""
        self._known: set[int] = set()
        """Events that notifications named, and whose history was not read yet."""
        self._topics: list[int] = []
        """Events of topics that are not announced to waiting runs yet."""
        self._turned_away = 0
        """How often in a row submitters were in the way."""
        self._again_at = 0
        """Then it is tried again."""

    async def begin(self) -> None:
        """A new term."""
        self.next_at = await self._store.next_wake()
        self.woken_at = 0
        self._mailed, self._topics = None, []
        self._known.clear()
        self._turned_away = self._again_at = 0

    def arrived(self, event: Event) -> None:
        """A run waits from now on."""
        at = event.data.get("wake_at")
        if isinstance(at, int):
            self.wait_for(at)

    def sent(self, event: Event, scheduler: Scheduler) -> None:
        """A client has sent an event."""
        number = int(event.data.get("n") or 0)
        if event.run == NO_RUN:
            self._topics.append(number)
        elif number not in self._known:
            self._to_run(event.run, scheduler)

    def notified(
        self, mailed: Iterable[tuple[int, int]], scheduler: Scheduler, *, is_behind: bool
    ) -> None:
        """These events, (run, number), were just sent: they are looked for before the history tells of them.

        `is_behind`: the history is read next. It tells of them too, and of older runs, which come first.
        """
        for run, number in () if is_behind else mailed:
            self._known.add(number)
            self._to_run(run, scheduler)

    def history_read(self) -> None:
        """Everything was read of the history that was there when the notifications came."""
        self._known.clear()

    def _to_run(self, run: int, scheduler: Scheduler) -> None:
        if run not in scheduler.ledger.runs:
            if self._mailed is not None:
                self._mailed.add(run)
        elif run in scheduler.lifecycle.asleep:
            scheduler.lifecycle.mail.wanted.add(run)

    async def deliver(self, scheduler: Scheduler, now: int) -> None:
        """Not while a commit is on its way: what it opens and takes is in the rows then."""
        if self._topics:
            topics, self._topics = self._topics, []
            for run in await self._store.topic_waiters(topics):
                if run in scheduler.ledger.runs:
                    scheduler.lifecycle.mail.wanted.add(run)
                elif self._mailed is not None:
                    self._mailed.add(run)
        if wanted := scheduler.lifecycle.mail.take_wanted(MAX_WOKEN):
            scheduler.put_mail(await self._store.mail_ready(wanted), now)
        if asked := scheduler.lifecycle.cache.asked():
            await self._look_up(scheduler, asked, now)

    async def _look_up(self, scheduler: Scheduler, asked: list[TaskEntry], now: int) -> None:
        """Results that are kept for these tasks. What is read is not older than the last commit."""
        keys = {entry.cache_key for entry in asked if entry.cache_key is not None}
        found = {each.key: each for each in await self._store.find_cached(sorted(keys))}
        values: dict[str, bytes] = {}
        for entry in asked:
            result = found.get(entry.cache_key or "")
            if result is None or result.key in values:
                continue
            try:
                value = await self._queue.value_of(scheduler, entry.id, result.output)
            except Exception as error:
                if not is_fault(error):
                    raise
                log.warning("failed to read cached result %s: %s", result.key, error)
                del found[result.key]
                continue
            values |= {} if value is None else {result.key: value}
        self._metrics.looked_up(*put_cached(scheduler.lifecycle, asked, found, values, now))

    def has_mail(self, scheduler: Scheduler) -> bool:
        """Whether something is to be read: events that runs wait for, or results that are kept."""
        lifecycle = scheduler.lifecycle
        return bool(self._topics or lifecycle.mail.wanted or lifecycle.cache.wanted)

    def busy(self, scheduler: Scheduler) -> bool:
        """Whether events are to be delivered, or runs woken by them."""
        wakes = not self._again_at and (self._mailed is None or bool(self._mailed))
        return wakes or self.has_mail(scheduler)

    def wait_for(self, at: int) -> None:
        """A run is to be woken then."""
        if self.next_at is None or at < self.next_at:
            self.next_at = at

    def not_before_woken(self, now: int) -> int:
        """What is reckoned between two answers may lag: a run woken by the store's time would sleep again."""
        return self.woken_at if 0 < self.woken_at - now < SECOND else now

    def first(self, at: int | None) -> int | None:
        """The earlier one of `at` and the next time to wake a run."""
        wakes = self._again_at or self.next_at
        return at if wakes is None else min(at or wakes, wakes)

    async def due(self) -> bool:
        """Whether one is to be woken, by the store's time. Asked before a cycle, so cheap where none waits."""
        if self._again_at:
            return await self._store.now() >= self._again_at
        if self._mailed is None or self._mailed:
            return True
        return self.next_at is not None and await self._store.now() >= self.next_at

    async def wake(self, scheduler: Scheduler) -> None:
        """Not while a commit is on its way, nor when something is decided that is not committed yet."""
        builder = scheduler.commit_builder
        # Those that notifications name meanwhile are for the next time.
        mailed, self._mailed = self._mailed, set()
        runs = None if mailed is None else sorted(mailed)
        patient = self._turned_away >= PATIENT_AFTER
        woken = await self._store.wake(
            Wake(scheduler.term, builder.next_cycle(), builder.actor, MAX_WOKEN, runs, patient)
        )
        if woken.busy:
            self._mailed = None if mailed is None else mailed | self._mailed
            self._turned_away = 0 if patient else self._turned_away + 1
            self._again_at = await self._store.now() + COME_BACK_US
            return
        self._turned_away = self._again_at = 0
        self.next_at = woken.next_at
        self.woken_at = max(self.woken_at, woken.now)
        for run, lane, rank in woken.runs:
            self._queue.put(run, lane, rank)
        if woken.read is not None:
            self._queue.put_woken(woken.read)
        for run_id in woken.held:
            if (row := await self._store.run(run_id)) is not None:
                log.error("run %s is held: failed to read the time it waits for", run_id)
                now = await self._store.now()
                scheduler.held.restore([row], (), scheduler.graphs, now)
