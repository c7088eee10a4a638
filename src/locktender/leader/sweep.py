"""What a leader does once a second: workers whose lease has passed, overdue runs, demand, upkeep.

Leases are instants of the store's time. If that clock is set forward, every lease seems to have passed at
once, though every worker is alive. The boot-time clock of the process does not jump, so the leader compares
how far both have come. After a jump no worker is declared lost until every worker has had the time of a
lease to renew. A clock that is set back only makes leases longer.
"""

from __future__ import annotations

import logging

from locktender.base.background import BackgroundTasks
from locktender.base.clock import SECOND, SystemClock
from locktender.base.config import Settings
from locktender.base.errors import LocktenderError
from locktender.base.states import RunState
from locktender.kernel.demand import Demand
from locktender.kernel.scheduler import Scheduler
from locktender.kernel.timeouts import still_queued
from locktender.leader.queue_reader import QueueReader
from locktender.leader.retention import Retention
from locktender.observe.metrics import Metrics
from locktender.provision.controller import ProvisionController
from locktender.store.protocol import Expire, Lost, Store, Tidy

log: logging.Logger = logging.getLogger(__name__)
CLOCK_JUMP_US = 2 * SECOND
TIDY_EVERY_US = 60 * SECOND
MAX_OVERDUE_RUNS = 1_000
"""Per sweep."""


class SteadyClock:
    """Whether the store's time may end leases."""

    def __init__(self, lease_us: int) -> None:
        self._lease_us = lease_us
        self._seen: tuple[int, int] | None = None
        self._distrusted_until = 0

    def saw(self, store_us: int, before_us: int, boot_us: int) -> None:
        """The store's clock was read between these two instants of the boot-time clock.

        Only a jump that is certain counts: a leader that was paused between question and answer must
        not take its own delay for one.
        """
        if self._seen is not None:
            ahead = (store_us - self._seen[0]) - (boot_us - self._seen[1])
            if ahead > CLOCK_JUMP_US:
                log.warning(
                    "the store's clock jumped ahead by %.1f s: no worker is declared lost for %.0f s",
                    ahead / SECOND,
                    self._lease_us / SECOND,
                )
                self._distrusted_until = boot_us + self._lease_us
        self._seen = store_us, before_us

    def trusted(self, boot_us: int) -> bool:
        return boot_us >= self._distrusted_until


class Sweep:
    def __init__(
        self,
        store: Store,
        settings: Settings,
        owner: str,
        queue: QueueReader,
        metrics: Metrics,
        background: BackgroundTasks,
        overflow: ProvisionController | None,
    ) -> None:
        self.demand: Demand = Demand()
        self.demand_at: int = 0
        """When it was found, in the store's time; 0: not yet in this term."""
        self._store = store
        self._queue = queue
        self._metrics = metrics
        self._background = background
        self._overflow = overflow
        self._clock = SystemClock()
        self._steady = SteadyClock(settings.worker_lease_us)
        self._retention = Retention(store, settings, owner)
        self._tidy_at = 0

    def saw_clock(self, store_us: int, before_us: int) -> None:
        """The store's clock was read after `before_us` of the boot-time clock."""
        self._steady.saw(store_us, before_us, self._clock.monotonic())

    async def expire(self, scheduler: Scheduler) -> list[Lost]:
        if not self._steady.trusted(self._clock.monotonic()):
            return []
        builder = scheduler.commit_builder
        return await self._store.expire(Expire(scheduler.term, builder.next_cycle(), builder.actor))

    async def run(self, scheduler: Scheduler, lost: list[Lost], now: int) -> None:
        for each in lost:
            log.warning("worker %s is lost (%s)", each.worker, each.reason)
            self._metrics.offer_answered("withdrawn", len(each.withdrawn))
            scheduler.worker_lost(
                each.worker,
                each.reason,
                each.abandoned,
                each.withdrawn,
                now,
                each.lease_until,
                each.handed_back,
            )
        for row in await self._store.overdue(MAX_OVERDUE_RUNS):
            scheduler.end_queued(row, RunState.TIMED_OUT, still_queued(row, now), now)
            self._queue.left(row.seq)
        self.demand, self.demand_at = scheduler.sweep(now), now
        self._metrics.wanted(self.demand)
        if self._retention.due():
            self._background.start(self._retention.work(), "delete runs past their retention")
        if self._clock.monotonic() >= self._tidy_at:
            self._tidy_at = self._clock.monotonic() + TIDY_EVERY_US
            self._background.start(self._tidy(scheduler.term), "remove empty queue lanes")
        if self._overflow is not None:
            workers = [worker.row for worker in scheduler.ledger.workers.by_id.values()]
            self._overflow.observe(self.demand, workers, self._store, scheduler.term)

    async def _tidy(self, term: int) -> None:
        after = 0
        try:
            while after := await self._store.tidy(Tidy(term, after)):
                pass
        except LocktenderError as error:
            log.warning("failed to remove empty queue lanes: %s", error)
