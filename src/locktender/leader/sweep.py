"""What a leader does once a second: workers that are stalled or dead, overdue runs, demand, upkeep."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable

from locktender.base.background import BackgroundTasks
from locktender.base.clock import SECOND, Clock, SystemClock
from locktender.base.config import Settings
from locktender.base.durations import spoken
from locktender.base.errors import LocktenderError
from locktender.base.states import TERMINAL_RUNS, RunState
from locktender.kernel.demand import Demand
from locktender.kernel.explain_runs import DEFAULT_RUNS
from locktender.kernel.ledger import Ledger
from locktender.kernel.liveness import LeaseWatch, set_stalled
from locktender.kernel.scheduler import Scheduler
from locktender.kernel.timeouts import still_queued
from locktender.leader.continuous_audit import ContinuousAudit
from locktender.leader.own_worker import OwnWorker
from locktender.leader.queue_reader import QueueReader
from locktender.leader.retention import Retention
from locktender.leader.schedules import ScheduleKeeper
from locktender.observe.metrics import Metrics
from locktender.provision.controller import ProvisionController
from locktender.store.limit_rows import pause_seq
from locktender.store.protocol import BoundCache, Expire, Lost, RemoveUnused, SetLimit, Store

log: logging.Logger = logging.getLogger(__name__)
REMOVE_UNUSED_EVERY_US = 60 * SECOND
RESUME_ENDED_EVERY_US = 5 * SECOND
OFFER_AGAIN_US = SECOND
MAX_OVERDUE_RUNS = 1_000
"""Per sweep."""


LACKING_US = 60 * SECOND
"""How long tasks must have lacked a worker until the default that ends them is named."""
MAX_WARNED_POOLS = 20
_warned_pools: set[str] = set()
_warned: set[str] = set()
"""Defaults that this process has named in its log: each once, over all its terms."""


class DefaultWarnings:
    """Says once per process where a default decides that was not chosen: in the log, because nothing fails."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._default_deadline = "dispatch_deadline" not in settings.sources
        self._deadline_us = settings.dispatch_deadline_us
        self._clock = clock
        self._lacking_since: int | None = None

    def warn(self, ledger: Ledger, demand: Demand) -> None:
        gate = ledger.run_gate
        full = ledger.default_runs and gate.used >= gate.limit
        if full and "runs" not in _warned and any(head.lane for head in ledger.heads.values()):
            _warned.add("runs")
            log.warning("runs wait: %s of %s execute (%s)", gate.used, gate.limit, DEFAULT_RUNS)
        # Of a keyed pool there may be thousands: the first are enough to know it by.
        for name in itertools.islice(ledger.slot_gates, 1_000):
            base, keyed, _ = name.partition("[")
            pool = f"{base}[*]" if keyed else base
            if pool not in _warned_pools and ledger.limits.pool(name) is None:
                if len(_warned_pools) == MAX_WARNED_POOLS:
                    break
                _warned_pools.add(pool)
                log.warning(
                    "pool %r is in use and was never set: it is unlimited."
                    " Set it: locktender pools set '%s' N; or refuse such steps: strict_pools",
                    pool,
                    pool,
                )
        now = self._clock.monotonic()
        since = self._lacking_since
        self._lacking_since = None if not demand.total else now if since is None else since
        if "deadline" in _warned or not self._default_deadline or self._lacking_since is None:
            return
        if now - self._lacking_since >= LACKING_US:
            _warned.add("deadline")
            log.warning(
                "%s tasks lack a worker: each fails after %s without one, the default of"
                " dispatch_deadline",
                demand.total,
                spoken(self._deadline_us),
            )


MAX_RUNS_LOOKED_AT = 1_000
"""Per sweep."""


class UnadvancedRuns:
    """Executing runs of which nothing is requested, in flight or waiting: their successors were not requested.

    A cycle closes such a run or goes on with it, so each sweep should find none. One that is found twice counts.
    """

    def __init__(self) -> None:
        self._to_look_at: list[int] = []
        self._found: set[int] = set()

    def count(self, ledger: Ledger) -> int:
        if not self._to_look_at:
            self._to_look_at = list(ledger.runs)
        some = self._to_look_at[-MAX_RUNS_LOOKED_AT:]
        del self._to_look_at[-MAX_RUNS_LOOKED_AT:]
        still = {run for run in self._found if _is_idle(ledger, run)}
        self._found = still | {run for run in some if _is_idle(ledger, run)}
        return len(still)


def _is_idle(ledger: Ledger, run: int) -> bool:
    entry = ledger.runs.get(run)
    return entry is not None and not (entry.tasks or entry.pending or entry.in_flight)


class Sweep:
    def __init__(
        self,
        store: Store,
        settings: Settings,
        owner: str,
        own: OwnWorker | None,
        queue: QueueReader,
        metrics: Metrics,
        background: BackgroundTasks,
        overflow: ProvisionController | None,
        on_submitted: Callable[[], None],
    ) -> None:
        """`on_submitted`: a schedule has made a run."""
        self.demand: Demand = Demand()
        self.demand_at: int = 0
        """When it was found, in the store's time; 0: not yet in this term."""
        self._store = store
        self._own = own
        self._offered_again = False
        self._queue = queue
        self._metrics = metrics
        self._background = background
        self._overflow = overflow
        self._clock = SystemClock()
        self._watch = LeaseWatch(settings.stall_grace_us)
        self._stalled: dict[str, int] = {}
        self._defaults = DefaultWarnings(settings, self._clock)
        self._retention = Retention(store, settings, owner)
        self._retention_us = settings.retention_us
        self._audit = ContinuousAudit(store, metrics.audit) if settings.continuous_audit else None
        self._unadvanced = UnadvancedRuns()
        self._remove_unused_at = 0
        self._resume_ended_at = 0
        self._schedules = ScheduleKeeper(store, on_submitted)

    async def expire(self, scheduler: Scheduler) -> list[Lost]:
        """Declares dead workers lost, and finds those that are stalled."""
        asked_us = self._clock.monotonic()
        lives = await self._store.lives()
        answered_us = self._clock.monotonic()
        judged = self._watch.judge(lives, await self._store.now(), asked_us, answered_us)
        self._stalled = judged.stalled
        if not judged.dead:
            return []
        builder = scheduler.commit_builder
        return await self._store.expire(
            Expire(scheduler.term, builder.next_cycle(), builder.actor, judged.dead)
        )

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
        for worker in self._stalled.keys() - self._metrics.stalled:
            log.warning(
                "worker %s is stalled: its lease has passed, but its process is alive", worker
            )
        self._metrics.stalled = set(self._stalled)
        set_stalled(scheduler, self._stalled, now)
        for row in await self._store.overdue(MAX_OVERDUE_RUNS):
            if row.unreadable:
                self._queue.fault(row, row.unreadable)
                continue
            if row.started_at:
                await self._queue.put_begun(scheduler, row)
                continue
            scheduler.end_queued(row, RunState.TIMED_OUT, still_queued(row, now), now)
            self._queue.left(row.seq)
        await self._offer_again(scheduler, now)
        await self._schedules.run(scheduler.term, now)
        self.demand, self.demand_at = scheduler.sweep(now), now
        unadvanced = self._unadvanced.count(scheduler.ledger)
        self._metrics.swept(scheduler.ledger, self.demand, unadvanced, now)
        self._defaults.warn(scheduler.ledger, self.demand)
        if self._audit is not None:
            self._background.start(self._audit.run(), "audit the history")
            self._audit = None
        if self._retention.due():
            self._background.start(self._retention.work(), "delete runs past their retention")
        if self._clock.monotonic() >= self._remove_unused_at:
            self._remove_unused_at = self._clock.monotonic() + REMOVE_UNUSED_EVERY_US
            self._background.start(
                self._remove_unused(scheduler.term, now), "remove empty queue lanes"
            )
        if scheduler.ledger.limits.paused_runs and self._clock.monotonic() >= self._resume_ended_at:
            self._resume_ended_at = self._clock.monotonic() + RESUME_ENDED_EVERY_US
            self._background.start(self._resume_ended(scheduler.ledger), "forget pauses")
        if self._overflow is not None:
            workers = [worker.row for worker in scheduler.ledger.workers.by_id.values()]
            self._overflow.observe(self.demand, workers, self._store, scheduler.term)

    async def _offer_again(self, scheduler: Scheduler, now: int) -> None:
        """Offers without an answer: a notification may be lost, and the last leader's may not have been sent."""
        offers = scheduler.ledger.unanswered_offers(
            now - OFFER_AGAIN_US if self._offered_again else now
        )
        self._offered_again = True
        own = None if self._own is None else self._own.id
        if self._own is not None and (given := [each for each in offers if each.worker == own]):
            self._own.receive(given)
        if sent := [each for each in offers if each.worker != own]:
            await self._store.offer_again(sent)

    async def _remove_unused(self, term: int, now: int) -> None:
        after = 0
        before = 0 if self._retention_us is None else now - self._retention_us
        try:
            while after := await self._store.remove_unused(
                RemoveUnused(term, after, before=before)
            ):
                pass
            while await self._store.bound_cache(BoundCache(term)):
                pass
        except LocktenderError as error:
            log.warning("failed to remove empty queue lanes: %s", error)

    async def _resume_ended(self, ledger: Ledger) -> None:
        """Pauses of runs that have ended, or are gone, are removed."""
        try:
            _, rows = await self._store.limits()
            pauses = {
                seq: row.name
                for row in rows
                if row.kind == "run" and (seq := pause_seq(row)) not in ledger.runs
            }
            states = await self._store.run_states(list(pauses))
            ended = [
                name
                for seq, name in pauses.items()
                if states.get(seq, RunState.CANCELLED) in TERMINAL_RUNS
            ]
            if ended:
                why = "the run has ended"
                await self._store.set_limit(
                    [SetLimit("run", name, None, "leader", reason=why) for name in ended]
                )
        except LocktenderError as error:
            log.warning("failed to remove the pauses of ended runs: %s", error)
