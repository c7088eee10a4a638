"""One term of a leader, from the rebuild of its ledger to the loss of its lease.

Who runs this: any process that may lead; the store's lease row lets one win. The leader reads what changed,
lets the scheduler decide, writes one commit, and only then acts on it: bodies start, offers go out, waiting
clients learn which runs ended. While a commit is being written the next batch collects by itself, so there are
no timers in the hot path. A leader whose term is over learns it from its next write, which changes nothing:
what it had decided since is void, and the worker writes the ends of attempts that were to go with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from locktender.base import codec
from locktender.base.background import BackgroundTasks, end_tasks, repeat_forever
from locktender.base.changes import End
from locktender.base.clock import SECOND, SystemClock
from locktender.base.commits import RunEnd
from locktender.base.config import Settings
from locktender.base.errors import HistoryReplaced, NotLeader
from locktender.base.ids import run_of
from locktender.base.limits import Limits
from locktender.base.model import Failure, LimitRow
from locktender.base.states import TaskState
from locktender.kernel import clock_jump, lanes
from locktender.kernel.commit_builder import Cycle
from locktender.kernel.entries import TaskEntry
from locktender.kernel.lifecycle import Defaults
from locktender.kernel.scheduler import Scheduler
from locktender.leader.change_reader import ChangeReader
from locktender.leader.commit_pipeline import CommitPipeline, CommitRefused, CycleSummary
from locktender.leader.isolation import Isolation, RequestFault, RunFault, log_unreadable
from locktender.leader.outbox import OutboxMover
from locktender.leader.own_worker import OwnWorker
from locktender.leader.questions import Questions
from locktender.leader.queue_reader import QueueReader
from locktender.leader.sweep import Sweep
from locktender.leader.waiting_runs import WaitingRuns
from locktender.observe.metrics import Metrics
from locktender.provision.controller import ProvisionController, placed
from locktender.store.decode import encode
from locktender.store.protocol import (
    ChangeNotice,
    Gathered,
    Lost,
    Snapshot,
    Store,
    Withdraw,
)
from locktender.store.readable import is_fault, readable, reason_of

log: logging.Logger = logging.getLogger(__name__)
SWEEP_EVERY_SECONDS = 1.0
SETTLE_POLL_SECONDS = 0.005


class Leader:
    def __init__(
        self,
        store: Store,
        owner: str,
        settings: Settings,
        own: OwnWorker | None,
        on_runs_ended: Callable[[list[RunEnd]], None],
        metrics: Metrics,
        overflow: ProvisionController | None = None,
    ) -> None:
        self.owner = owner
        self._store = store
        self._settings = settings
        self._own = own
        self._on_runs_ended = on_runs_ended
        self._metrics = metrics
        self._spawns_workers = overflow is not None
        self._scheduler: Scheduler | None = None
        self._queue = QueueReader(store)
        self._waits = WaitingRuns(store, self._queue, metrics)
        self._questions = Questions(store, settings.labels, self.wake)
        self._changes = ChangeReader(store, self._queue, self._waits, own, metrics, self._questions)
        self._isolation = Isolation(store, self._queue, own, metrics)
        self._awake = asyncio.Event()
        self._ends: list[End] = []
        self._taken: list[End] = []
        """Ends that go with the cycle being decided."""
        self._pipeline = CommitPipeline(store, self._act, self._take_back, self._awake.set, metrics)
        self._outbox = OutboxMover(store, settings, self.wake)
        self._foreign = True
        self._sweep_due = True
        self._closing = False
        self._summary = CycleSummary()
        self._background = BackgroundTasks()
        self._clock = SystemClock()
        self._clock_watch = clock_jump.ClockWatch()
        self._loop_seen_us = self._clock.monotonic()
        self.sweep: Sweep = Sweep(
            store, settings, owner, own, self._queue, metrics, self._background, overflow, self.wake
        )

    # -- from the same process ---------------------------------------------------------------------

    def ended(self, end: End) -> None:
        """An attempt of the worker in this process ended."""
        self._ends.append(end)
        self._awake.set()

    def wake(self) -> None:
        """Another process, or a client in this one, committed something: read it."""
        self._foreign = True
        self._awake.set()

    def notice(self, told: ChangeNotice) -> None:
        """Other processes committed something."""
        if told.outbox:
            self._outbox.notified()
        # An acceptance alone changes nothing, unless the worker could get more offers by it.
        known = self._scheduler
        if told.look or not known or any(map(known.ledger.workers.awaits_answer, told.accepted_by)):
            self.wake()
        elif told.queued or told.mailed:
            self._queue.notified(told.queued, told.carried)
            self._waits.notified(told.mailed, known, is_behind=self._foreign)
            self._awake.set()

    def worker_changed(self) -> None:
        """The worker in this process has changed (new steps, draining)."""
        if self._scheduler is not None and self._own is not None:
            self._put_own(self._scheduler, self._own)
            self._awake.set()

    def _put_own(self, scheduler: Scheduler, own: OwnWorker) -> None:
        known = scheduler.ledger.workers.by_id.get(own.id)
        if known is not None:  # else it was declared lost, and joins again under another id
            row = own.describe_own(known.given, self._pipeline.unstarted())
            scheduler.put_worker(row, local=True)

    @property
    def last_written(self) -> int:
        """The last cycle whose commit the store has answered. Called from any thread."""
        return self._pipeline.answered

    def blocked_longer_than(self, us: int) -> bool:
        """Its loop has not run for so long, and no rebuild keeps it: it cannot decide. Called from any thread."""
        allowed_us = us + round(SWEEP_EVERY_SECONDS * SECOND)
        blocked_us = self._clock.monotonic() - self._loop_seen_us
        return self._scheduler is not None and blocked_us > allowed_us

    def close(self) -> None:
        self._closing = True
        self._awake.set()

    async def settle(self) -> None:
        """Returns when every end handed in so far has been written."""
        while self._ends or self._taken or not self._pipeline.idle:
            self._awake.set()
            await asyncio.sleep(SETTLE_POLL_SECONDS)

    def unwritten(self) -> list[End]:
        """Ends of this process that no commit has written. Called from any thread."""
        return self._pipeline.unwritten() + self._taken + self._ends

    def unstarted(self) -> list[tuple[int, int]]:
        """Attempts of this process that may be written as running and were not started. From any thread."""
        return self._pipeline.unstarted()

    # -- the term ----------------------------------------------------------------------------------

    async def lead(self, term: int) -> list[End]:
        """Lead until the term is over; returns ends of attempts that were not written."""
        sweeps = repeat_forever(self._sweep_soon, "begin a sweep", SWEEP_EVERY_SECONDS)
        sweeper = asyncio.create_task(sweeps, name="locktender-sweep")
        try:
            scheduler = await self._rebuild(term)
            self._background.start(self._outbox.keep(term), "take up submissions of applications")
            try:
                while not self._closing:
                    await self._cycle(scheduler)
                self._pipeline.close()
                await self._pipeline.drain()
            except (RunFault, CommitRefused, RequestFault) as fault:
                await self._pipeline.stop()
                await self._isolation.isolate(scheduler, fault)
            except Exception as error:
                if not scheduler.lifecycle.at_run or not is_fault(error):
                    raise
                log.exception("failed to decide on run %s", scheduler.lifecycle.at_run)
                await self._pipeline.stop()
                fault = RunFault(scheduler.lifecycle.at_run, error)
                await self._isolation.isolate(scheduler, fault)
        except (NotLeader, HistoryReplaced) as error:
            log.warning("term %s of %s is over: %s", term, self.owner, error)
        finally:
            self._scheduler = None
            await self._questions.end()
            self._metrics.led()
            await self._pipeline.stop()
            await end_tasks([sweeper])
            await self._background.end()
        return self.unwritten()

    async def _rebuild(self, term: int) -> Scheduler:
        settings = self._settings
        defaults = Defaults(
            settings.queue_timeout_us, settings.dispatch_deadline_us, settings.offer_ttl_us
        )
        cycles = 0
        while True:
            snapshot = await self._store.load()
            limits = self._placed(snapshot.limits, snapshot.limit_rows)
            scheduler = Scheduler(limits, term, self.owner, defaults)
            scheduler.commit_builder.cycles = cycles
            faults = await self._restore(scheduler, snapshot)
            if not faults:
                break
            # From the start: what was restored of a run before it failed is in the ledger.
            cycles += 1
            await self._isolation.hold(term, cycles, scheduler.commit_builder.actor, faults)
        log_unreadable(snapshot.limit_rows, snapshot.workers)
        if self._own is not None:
            self._put_own(scheduler, self._own)  # again: what it runs already is counted now
        self._queue.begin(snapshot.lanes, snapshot.last_run)
        self._changes.begin(snapshot.cursor)
        await self._waits.begin()
        self._loop_seen_us = self._clock.monotonic()
        self._scheduler = scheduler
        self._questions.begin(scheduler)
        self._metrics.leads(term, scheduler.ledger, scheduler.held.rows)
        return scheduler

    async def _restore(self, scheduler: Scheduler, snapshot: Snapshot) -> dict[int, str]:
        """The runs that cannot be restored, and why."""
        found = await readable(self._store, snapshot)
        if found.faults:
            return found.faults
        scheduler.graphs.update(found.graphs)
        scheduler.begin(snapshot.limit_rows)
        own = None if self._own is None else self._own.id
        workers = [row for row in snapshot.workers if row.id != own]
        if self._own is not None:
            workers.append(self._own.describe_own(0, ()))
        try:
            restored = clock_jump.restore(
                scheduler,
                found.runs,
                found.tasks,
                workers,
                snapshot.buckets,
                snapshot.now,
                own,
                snapshot.lingers,
                snapshot.unplaced,
                snapshot.kept,
            )
            for _ in restored:
                await asyncio.sleep(0)
        except Exception as error:
            if not scheduler.lifecycle.at_run or not is_fault(error):
                raise
            log.exception("failed to restore run %s", scheduler.lifecycle.at_run)
            return {scheduler.lifecycle.at_run: reason_of(error)}
        clock_jump.restore_held(
            scheduler, snapshot.held, snapshot.held_tasks, found.graphs, snapshot.now
        )
        return {}

    async def _cycle(self, scheduler: Scheduler) -> None:
        """One cycle: what changed → decide → send its commit off; then wait for the next change."""
        self._pipeline.check()
        began = asyncio.get_running_loop().time()
        wakes = await self._waits.due()
        mail = self._waits.has_mail(scheduler)
        if self._foreign or self._sweep_due or self._queue.needs_reading or wakes or mail:
            # What is read from the store must not be older than what was decided here.
            await self._pipeline.drain()
        idle = self._pipeline.idle
        if idle and wakes:
            # Before anything is decided here: what is woken by the store must not be ended as waiting.
            await self._waits.wake(scheduler)
        sweeps = idle and self._sweep_due
        changes: list[Gathered] = []
        lost: list[Lost] = []
        # Before the ends that wait here are taken: if our own worker is declared lost now, its rows say
        # so, and the attempts that it ended since are stale.
        if idle and self._foreign:
            self._foreign = False
            self._questions.reading()
            changes.append(await self._gather(scheduler))
        if sweeps:
            self._sweep_due = False
            lost = await self.sweep.expire(scheduler)
            # The store may have been away meanwhile, and others have gone on: the first read is old then.
            changes.append(await self._gather(scheduler))
        now = await self._now(scheduler)
        for gathered in changes:
            await self._apply(scheduler, gathered, lost, now)
        if sweeps:
            await self.sweep.run(scheduler, lost, now)
        self._taken, self._ends = self._ends, []
        self._taken = await self._isolation.finish_held(scheduler, self._taken, now)
        for end in self._taken:
            task, output = end.task, end.output
            scheduler.lifecycle.at_run = run_of(task)
            value = None
            if output is not None and codec.is_blob(output):
                value = await self._queue.value_of(scheduler, task, output)
            scheduler.ended(end, now, local=True, value=value)
        scheduler.lifecycle.at_run = 0
        if idle:
            await self._queue.fill(scheduler, is_behind=self._foreign)
            await self._isolation.hold_queued(scheduler, now)
            if self._waits.has_mail(scheduler):
                await self._waits.deliver(scheduler, now)
        if self._closing:
            return  # its own worker may have lost its lease while this turn read: nothing is decided any more
        self._awake.clear()
        # One instant for all facts and decisions of a cycle: rows, events and clocks then agree.
        cycle = scheduler.cycle(now)
        if not self._changes.more:
            self._questions.answer(scheduler, now)
        gone = (*cycle.commit.runs_started, *cycle.commit.runs_ended)
        cycle.commit.as_carried = self._queue.leave(each.run for each in gone)
        for _, wake_at in cycle.commit.runs_waiting:
            self._waits.wait_for(wake_at)
        ends, self._taken = self._taken, []
        await self._pipeline.send(cycle, ends, began)
        more = cycle.unfinished or self._waits.busy(scheduler)
        if not (more or self._queue.needs_reading or self._ends or self._foreign):
            await self._rest(self._waits.first(cycle.next_wake))

    async def _now(self, scheduler: Scheduler) -> int:
        """The store's time. If that clock was set, what is to come is moved by as much."""
        before = self._store.steady()
        now = await self._store.now()
        jump = self._clock_watch.observe(now, before, self._store.steady())
        if jump:
            log.warning("the store's clock jumped by %+.1f s", jump / SECOND)
            clock_jump.move_instants(scheduler, jump)
        return self._waits.not_before_woken(now)

    def _act(self, cycle: Cycle) -> None:
        """Its commit is written: what it starts, stops and ends is passed on."""
        scheduler = self._scheduler
        if scheduler is None:
            return
        if cycle.commit.runs_ended:
            self._on_runs_ended(cycle.commit.runs_ended)
        own = self._own
        if own is not None:
            if cycle.starts:
                self._metrics.claimed(len(cycle.starts))
            for entry in cycle.starts:
                self._start(scheduler, own, entry)
            for _, token, _ in cycle.stops:
                own.stop(token, "cancel")
            if orders := [order for order in cycle.commit.orders if order.worker == own.id]:
                own.receive(orders)
        self._summary.log(cycle, self.sweep.demand.total)

    async def _take_back(self, cycle: Cycle) -> None:
        """Offers that it withdraws."""
        scheduler = self._scheduler
        if scheduler is None:
            return
        for to in (TaskState.REQUESTED, TaskState.CANCELLED):
            wanted = [(task, token) for task, token, target in cycle.withdrawals if target == to]
            if wanted:
                why = "not accepted in time" if to == TaskState.REQUESTED else "the run is ending"
                builder = scheduler.commit_builder
                done = await self._store.withdraw(
                    Withdraw(scheduler.term, builder.next_cycle(), builder.actor, wanted, to, why)
                )
                self._metrics.offer_answered("withdrawn", len(done))
                now = await self._store.now()
                try:
                    scheduler.withdrawn(done, to, now)
                except Exception as error:
                    if not scheduler.lifecycle.at_run or not is_fault(error):
                        raise
                    raise RunFault(scheduler.lifecycle.at_run, error) from error
                self._awake.set()

    def _start(self, scheduler: Scheduler, own: OwnWorker, entry: TaskEntry) -> None:
        row = entry.run.row
        try:
            call = scheduler.calls.of(entry)
        except Exception as error:
            # Its row says that it runs: the attempt fails, and others start.
            log.exception("failed to start task %s", entry.id)
            failure = Failure("internal", f"failed to start: {error!r}", retryable=False)
            self.ended(
                End(entry.id, entry.token, TaskState.FAILED, None, encode(failure), worker=own.id)
            )
            return
        own.start(
            *(entry.id, entry.token, entry.attempt, row.id, entry.spec, call, row.flow, row.trace)
        )

    async def _rest(self, next_wake: int | None) -> None:
        seconds = SWEEP_EVERY_SECONDS
        if next_wake is not None:
            seconds = min(seconds, max(0.0, (next_wake - await self._store.now()) / SECOND))
        # Cheaper than `asyncio.timeout`: this stands between any two cycles.
        timer = asyncio.get_running_loop().call_later(seconds, self._awake.set)
        try:
            await self._awake.wait()
        finally:
            timer.cancel()

    # -- what changed ------------------------------------------------------------------------------

    async def _gather(self, scheduler: Scheduler) -> Gathered:
        gathered = await self._changes.gather(scheduler)
        self._foreign = self._foreign or self._changes.more
        return gathered

    async def _apply(
        self, scheduler: Scheduler, gathered: Gathered, lost: list[Lost], now: int
    ) -> None:
        if gathered.limits_changed:
            await self._new_limits(scheduler, now)
        # A lost worker has not left: what it did comes first, its loss after that.
        await self._changes.apply(scheduler, gathered, now, {each.worker for each in lost})

    async def _new_limits(self, scheduler: Scheduler, now: int) -> None:
        before = scheduler.ledger.limits
        limits, rows = await self._store.limits()
        limits = self._placed(limits, rows)
        log_unreadable(rows)
        scheduler.set_limits(limits, rows, now)
        paused = before.paused_runs.keys() ^ limits.paused_runs.keys()
        if lanes.rules(limits) != lanes.rules(before) or paused - scheduler.ledger.runs.keys():
            moved = self._queue.reassign_lanes(scheduler.term, self._awake.set)
            self._background.start(moved, "reassign queue lanes")

    def _placed(self, limits: Limits, rows: list[LimitRow]) -> Limits:
        """Where workers are started on demand, placement is `pack` unless it was set: idle ones can end."""
        return placed(limits, rows) if self._spawns_workers else limits

    # -- time --------------------------------------------------------------------------------------

    async def _sweep_soon(self) -> None:
        began_us = self._loop_seen_us = self._clock.monotonic()
        await asyncio.sleep(SWEEP_EVERY_SECONDS)
        late_us = self._clock.monotonic() - began_us - round(SWEEP_EVERY_SECONDS * SECOND)
        self._metrics.loop_lag.add(max(0, late_us))
        # Everything is read once a second, in case a wake-up was lost.
        self._sweep_due = self._foreign = True
        self._awake.set()
        self.worker_changed()
