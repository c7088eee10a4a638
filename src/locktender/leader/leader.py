"""The coordinator: one leader's term, from the rebuild of its ledger to the loss of its lease.

Who runs this: any process that may lead; the store's lease row lets one win.
It gathers what changed, lets the conductor judge, writes one commit, and only
then acts on it: bodies start, offers go out, runs are told as ended. While a
commit is on its way the next batch gathers by itself, so there are no timers
in the hot path. A leader whose term is over learns it from its next write,
which changes nothing: what it had decided since is void, and the ends of
attempts that were to be written with it go back to the worker to be written by it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from locktender.base import codec
from locktender.base.background import end_tasks
from locktender.base.clock import SECOND, SystemClock
from locktender.base.config import Settings
from locktender.base.errors import LocktenderError, NotLeader, StoreError
from locktender.base.graph import Graph
from locktender.base.ids import run_of
from locktender.base.limits import Limits
from locktender.base.model import LimitRow
from locktender.base.states import RunState, TaskState
from locktender.kernel.demand import Demand
from locktender.kernel.lifecycle import Defaults
from locktender.kernel.scheduler import Cycle, Scheduler
from locktender.kernel.timeouts import still_queued
from locktender.leader.change_reader import ChangeReader
from locktender.leader.commit_pipeline import CommitPipeline, lost_cycle
from locktender.leader.queue_reader import QueueReader
from locktender.leader.retention import Retention
from locktender.leader.steady_clock import SteadyClock
from locktender.observe.metrics import Metrics
from locktender.provision.controller import ProvisionController, placed
from locktender.store import blob_values
from locktender.store.protocol import (
    Elect,
    Expire,
    Gathered,
    Lost,
    Recut,
    Store,
    Tidy,
    Withdraw,
)
from locktender.worker.worker import End, Launch, LocalWorker

log: logging.Logger = logging.getLogger(__name__)
_graph = msgspec.json.Decoder(Graph).decode
SWEEP_SECONDS = 1.0
TIDY_EVERY_US = 60 * SECOND
MOST_OVERDUE = 1_000


class Leader:
    def __init__(
        self,
        store: Store,
        owner: str,
        settings: Settings,
        local: LocalWorker | None,
        on_ended: Callable[[list[int]], None],
        metrics: Metrics,
        overflow: ProvisionController | None = None,
    ) -> None:
        self.owner = owner
        self.demand: Demand = Demand()
        self.demand_at: int = 0
        """When it was found, in the store's time; 0: not yet in this term."""
        self._store = store
        self._settings = settings
        self._local = local
        self._on_ended = on_ended
        self._metrics = metrics
        self._overflow = overflow
        self._conductor: Scheduler | None = None
        self._feed = QueueReader(store)
        self._news = ChangeReader(store, self._feed, local, metrics)
        self._wake = asyncio.Event()
        self._ends: list[End] = []
        self._taken: list[End] = []
        """Ends that go with the cycle being decided."""
        self._writing = CommitPipeline(store, self._act, self._wake.set, metrics)
        self._foreign = True
        self._sweep_due = True
        self._closing = False
        self._told = 0.0
        self._background: set[asyncio.Task[object]] = set()
        self._clock = SystemClock()
        self._steady = SteadyClock(settings.worker_lease_us)
        self._retention = Retention(store, settings, owner)
        self._tidy_at = 0

    # -- from the same process ---------------------------------------------------------------------

    def ended(self, end: End) -> None:
        """An attempt of the worker in this process ended."""
        self._ends.append(end)
        self._wake.set()

    @property
    def cycles(self) -> int:
        return self._writing.written

    def look(self) -> None:
        """Somebody committed something: gather it."""
        self._foreign = True
        self._wake.set()

    def describe_local(self) -> None:
        """The worker in this process has changed (new steps, draining)."""
        if self._conductor is not None and self._local is not None:
            self._put_local(self._conductor, self._local)
            self._wake.set()

    def _put_local(self, conductor: Scheduler, local: LocalWorker) -> None:
        known = conductor.ledger.floor.workers.get(local.id)
        if known is not None:  # else it was declared lost, and joins again under another name
            row = local.describe_own(known.given, self._writing.unstarted())
            conductor.put_worker(row, local=True)

    def close(self) -> None:
        self._closing = True
        self._wake.set()

    async def settle(self) -> None:
        """Returns when every end handed in so far has been written."""
        while self._ends or self._taken or not self._writing.idle:
            self._wake.set()
            await asyncio.sleep(0.005)

    def unwritten(self) -> list[End]:
        return self._writing.unwritten() + self._taken + self._ends

    def unstarted(self) -> list[tuple[int, int]]:
        """Attempts of this process that may be written as running and were not started."""
        return self._writing.unstarted()

    # -- the term ----------------------------------------------------------------------------------

    async def lead(self, term: int) -> list[End]:
        """Lead until the term is over; returns ends of attempts that were not written."""
        keeper = asyncio.create_task(self._keep_lease(term))
        sweeper = asyncio.create_task(self._sweep_regularly())
        try:
            conductor = await self._rebuild(term)
            while not self._closing:
                await self._turn(conductor)
            self._writing.close()
            await self._writing.drain()
        except NotLeader as error:
            log.warning("term %s of %s is over: %s", term, self.owner, error)
        finally:
            self._conductor = None
            self._metrics.led()
            await self._writing.stop()
            await end_tasks([keeper, sweeper, *self._background])
        return self.unwritten()

    async def _rebuild(self, term: int) -> Scheduler:
        snapshot = await self._store.load()
        settings = self._settings
        defaults = Defaults(
            settings.queue_timeout_us, settings.dispatch_deadline_us, settings.offer_ttl_us
        )
        limits = self._placed(snapshot.limits, snapshot.limit_rows)
        conductor = Scheduler(limits, term, self.owner, defaults)
        conductor.graphs.update({key: _graph(body) for key, body in snapshot.graphs.items()})
        conductor.begin(snapshot.limit_rows)
        runs = [await blob_values.open_values(self._store, row) for row in snapshot.runs]
        graphs = {row.seq: conductor.graphs[row.graph] for row in runs}
        tasks = [
            await blob_values.open_output(self._store, graphs[run_of(row.id)], row)
            for row in snapshot.tasks
        ]
        local = None if self._local is None else self._local.id
        workers = [row for row in snapshot.workers if row.id != local]
        if self._local is not None:
            workers.append(self._local.describe())
        conductor.restore(
            runs, tasks, workers, snapshot.buckets, snapshot.now, local, snapshot.lingers
        )
        if self._local is not None:
            self._put_local(conductor, self._local)  # again: what it runs already is counted now
        self._feed.lanes(snapshot.lanes)
        self._news.begin(snapshot.seq)
        self._conductor = conductor
        self._metrics.leads(term, conductor.ledger)
        await self._news.requests(conductor, snapshot.requests, snapshot.now)
        return conductor

    async def _turn(self, conductor: Scheduler) -> None:
        """One cycle: what changed → decide → send its commit off; then wait for the next change."""
        self._writing.check()
        began = asyncio.get_running_loop().time()
        if self._foreign or self._sweep_due or self._feed.hungry:
            # What is read from the store must not be older than what was decided here.
            await self._writing.drain()
        idle = self._writing.idle
        sweeps = idle and self._sweep_due
        news: list[Gathered] = []
        lost: list[Lost] = []
        # Before the ends that wait here are taken: if our own worker is declared lost now, its rows say
        # so, and what it ended since is stale.
        if idle and self._foreign:
            self._foreign = False
            news.append(await self._gather(conductor))
        if sweeps:
            self._sweep_due = False
            lost = await self._expire(conductor)
            # A store that was away meanwhile has let others go on: what was read before that is old.
            news.append(await self._gather(conductor))
        now = await self._store.now()
        for gathered in news:
            await self._hear(conductor, gathered, lost, now)
        if sweeps:
            await self._sweep(conductor, lost, now)
        self._taken, self._ends = self._ends, []
        for task, token, state, output, error, reason, _ in self._taken:
            value = None
            if output is not None and codec.is_blob(output):
                value = await self._feed.value_of(conductor, task, output)
            conductor.ended(task, token, state, now, output, error, reason, local=True, value=value)
        if idle:
            await self._feed.fill(conductor)
        self._wake.clear()
        # One instant for all facts and decisions of a cycle: rows, events and clocks then agree.
        cycle = conductor.cycle(now)
        for gone in (*cycle.commit.runs_started, *cycle.commit.runs_ended):
            self._feed.left(gone.run)
        ends, self._taken = self._taken, []
        await self._writing.send(cycle, ends, began)
        if not (cycle.unfinished or self._feed.hungry or self._ends or self._foreign):
            await self._rest(cycle.next_wake)

    async def _act(self, cycle: Cycle) -> None:
        conductor = self._conductor
        if conductor is None:
            return
        if self._local is not None and cycle.starts:
            self._metrics.claimed()
            self._local.launch(
                [
                    Launch(
                        entry.id,
                        entry.token,
                        entry.attempt,
                        entry.run.row.id,
                        entry.spec,
                        conductor.calls.of(entry),
                        entry.run.row.flow,
                        entry.run.row.trace,
                    )
                    for entry in cycle.starts
                ]
            )
        if self._local is not None:
            for _, token, _ in cycle.stops:
                self._local.stop(token, "cancel")
            own = [order for order in cycle.commit.orders if order.worker == self._local.id]
            if own:
                self._local.on_orders(own)
        for to in (TaskState.REQUESTED, TaskState.CANCELLED):
            wanted = [(task, token) for task, token, target in cycle.withdrawals if target == to]
            if wanted:
                withdraw = Withdraw(
                    conductor.term,
                    conductor.journal.next_cycle(),
                    conductor.journal.actor,
                    wanted,
                    to,
                    "not accepted in time" if to == TaskState.REQUESTED else "the run is ending",
                )
                done = await self._store.withdraw(withdraw)
                self._metrics.offer_answered("withdrawn", len(done))
                conductor.withdrawn(done, to, await self._store.now())
                self._wake.set()
        if cycle.ended:
            self._on_ended(cycle.ended)
        self._summary(cycle)

    def _summary(self, cycle: Cycle) -> None:
        """One line per busy cycle, at most one a second."""
        now = asyncio.get_running_loop().time()
        commit = cycle.commit
        if now - self._told < 1.0 or commit.empty:
            return
        self._told = now
        log.info(
            "cycle %s: %s runs and %s tasks started, %s runs ended, blocked %s, demand %s",
            commit.cycle,
            len(commit.runs_started),
            len(cycle.starts) + sum(order.kind == "offer" for order in commit.orders),
            len(commit.runs_ended),
            cycle.found_waiting or "none",
            self.demand.total,
        )

    async def _rest(self, next_wake: int | None) -> None:
        seconds = SWEEP_SECONDS
        if next_wake is not None:
            seconds = min(seconds, max(0.0, (next_wake - await self._store.now()) / SECOND))
        # Cheaper than `asyncio.timeout`: this stands between any two cycles.
        timer = asyncio.get_running_loop().call_later(seconds, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    # -- what changed ------------------------------------------------------------------------------

    async def _gather(self, conductor: Scheduler) -> Gathered:
        before = self._clock.monotonic()
        gathered = await self._news.gather(conductor)
        self._steady.saw(gathered.now, before, self._clock.monotonic())
        self._foreign = self._foreign or self._news.more
        return gathered

    async def _hear(
        self, conductor: Scheduler, gathered: Gathered, lost: list[Lost], now: int
    ) -> None:
        if gathered.limits_changed:
            await self._new_limits(conductor, now)
        # Who is lost is told after what it did: here it has not left.
        await self._news.tell(conductor, gathered, now, {each.worker for each in lost})

    async def _new_limits(self, conductor: Scheduler, now: int) -> None:
        before = conductor.ledger.limits
        limits, rows = await self._store.limits()
        limits = self._placed(limits, rows)
        conductor.set_limits(limits, rows, now)
        if (limits.tags, limits.fair, limits.age_boost_us) != (
            before.tags,
            before.fair,
            before.age_boost_us,
        ):
            self._behind(self._recut(conductor.term))

    def _behind(self, work: Coroutine[Any, Any, object]) -> None:
        """Work that no cycle waits for; it ends with the term."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _placed(self, limits: Limits, rows: list[LimitRow]) -> Limits:
        """Where workers are spawned for work, the last ones should drain: packed, unless it was set."""
        return limits if self._overflow is None else placed(limits, rows)

    async def _recut(self, term: int) -> None:
        """Queued runs get the lanes the new limits ask for, behind our back and in small batches."""
        after = 0
        try:
            while after := await self._store.recut(Recut(term, after)):
                pass
            self._feed.lanes((await self._store.load()).lanes)
            self._wake.set()
        except LocktenderError as error:
            log.warning("lanes are not recut: %s", error)

    async def _tidy(self, term: int) -> None:
        """Lanes that nobody stands in go; if not now, then the next time."""
        after = 0
        try:
            while after := await self._store.tidy(Tidy(term, after)):
                pass
        except LocktenderError as error:
            log.warning("lanes are not tidied: %s", error)

    # -- time --------------------------------------------------------------------------------------

    async def _keep_lease(self, term: int) -> None:
        settings = self._settings
        while True:
            await asyncio.sleep(settings.leader_renew_us / SECOND)
            try:
                elect = Elect(self.owner, settings.leader_lease_us, term)
                answered = self._writing.answered
                led = await self._store.elect(elect)
                # Either way the next commit would tell the same; this only saves the wait for it.
                if led.term != term:
                    self.close()
                    return
                if led.cycle < answered:
                    log.warning("%s", lost_cycle(answered))
                    self.close()
                    return
            except StoreError as error:
                log.warning("the leader's lease is not renewed: %s", error)

    async def _sweep_regularly(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            # The net under every lost wake-up: look at everything once a second.
            self._sweep_due = self._foreign = True
            self.describe_local()
            self._wake.set()

    async def _sweep(self, conductor: Scheduler, lost: list[Lost], now: int) -> None:
        for each in lost:
            log.warning("worker %s is lost (%s)", each.worker, each.reason)
            self._metrics.offer_answered("withdrawn", len(each.withdrawn))
            conductor.worker_lost(
                each.worker,
                each.reason,
                each.abandoned,
                each.withdrawn,
                now,
                each.lease_until,
                each.handed_back,
            )
        for row in await self._store.overdue(MOST_OVERDUE):
            conductor.end_queued(row, RunState.TIMED_OUT, still_queued(row, now), now)
            self._feed.left(row.seq)
        self.demand, self.demand_at = conductor.sweep(now), now
        self._metrics.wanted(self.demand)
        if self._retention.due():
            self._behind(self._retention.work())
        if self._clock.monotonic() >= self._tidy_at:
            self._tidy_at = self._clock.monotonic() + TIDY_EVERY_US
            self._behind(self._tidy(conductor.term))
        if self._overflow is not None:
            workers = [worker.row for worker in conductor.ledger.floor.workers.values()]
            self._overflow.sees(self.demand, workers, self._store, conductor.term)

    async def _expire(self, conductor: Scheduler) -> list[Lost]:
        if not self._steady.trusted(self._clock.monotonic()):
            return []
        journal = conductor.journal
        return await self._store.expire(Expire(conductor.term, journal.next_cycle(), journal.actor))
