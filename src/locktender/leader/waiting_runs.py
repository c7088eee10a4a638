"""Wakes runs that wait for their time.

Waiting runs are rows: the leader knows only when the first of them is to be woken. It learns of earlier ones by
the events of their submission. What is woken is queued, and read like any queued run.
"""

from __future__ import annotations

import logging

from locktender.base.events import Event
from locktender.kernel.scheduler import Scheduler
from locktender.leader.queue_reader import QueueReader
from locktender.store.protocol import Store, Wake

log: logging.Logger = logging.getLogger(__name__)
MAX_WOKEN = 1_000
"""At a time: others may submit and be decided about in between."""


class WaitingRuns:
    def __init__(self, store: Store, queue: QueueReader) -> None:
        self._store = store
        self._queue = queue
        self.next_at: int | None = None
        """When the first waiting run is to be woken; None: none waits."""

    async def begin(self) -> None:
        """A new term."""
        self.next_at = await self._store.next_wake()

    def arrived(self, event: Event) -> None:
        """A run waits from now on."""
        at = event.data.get("wake_at")
        if isinstance(at, int) and (self.next_at is None or at < self.next_at):
            self.next_at = at

    def first(self, at: int | None) -> int | None:
        """The earlier one of `at` and the next time to wake a run."""
        return at if self.next_at is None else min(at or self.next_at, self.next_at)

    async def due(self) -> bool:
        """Whether one is to be woken, by the store's time. Asked before a cycle, so cheap where none waits."""
        return self.next_at is not None and await self._store.now() >= self.next_at

    async def wake(self, scheduler: Scheduler) -> None:
        """Not while a commit is on its way, nor when something is decided that is not committed yet."""
        builder = scheduler.commit_builder
        woken = await self._store.wake(
            Wake(scheduler.term, builder.next_cycle(), builder.actor, MAX_WOKEN)
        )
        self.next_at = woken.next_at
        for run, lane, rank in woken.runs:
            self._queue.put(run, lane, rank)
        for run_id in woken.held:
            if (row := await self._store.run(run_id)) is not None:
                log.error("run %s is held: the time it waits for cannot be read", run_id)
                now = await self._store.now()
                scheduler.held.restore([row], (), scheduler.graphs, now)
