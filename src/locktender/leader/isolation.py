"""Isolation: what cannot be read, decided or written is traced to its run, and that run alone is held.

A commit that the store refuses for its data is never split: one half could grant what the other half releases.
Each run's part of it is tried alone and rolled back; the runs whose part is refused are held, and the leader reads
everything again without them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from locktender.base.changes import End
from locktender.base.commits import Commit, RunEvents
from locktender.base.errors import NotLeader
from locktender.base.events import NO_RUN, Change
from locktender.base.ids import run_of
from locktender.base.model import Failure, LimitRow, Request, StoredRequest, WorkerRow
from locktender.base.states import RunState
from locktender.kernel.scheduler import Scheduler
from locktender.leader.commit_pipeline import CommitRefused
from locktender.leader.own_worker import OwnWorker
from locktender.leader.queue_reader import QueueReader
from locktender.observe.metrics import Metrics
from locktender.store.carried_runs import not_as_carried
from locktender.store.decode import encode
from locktender.store.protocol import Finish, HoldRuns, Store
from locktender.store.readable import is_fault, reason_of

log: logging.Logger = logging.getLogger(__name__)


class RunFault(Exception):
    """Something of one run raised: it is to be held, and everything is read again."""

    def __init__(self, run: int, cause: Exception) -> None:
        super().__init__(f"run {run}: {cause}")
        self.runs: dict[int, str] = {run: reason_of(cause)}


class RequestFault(Exception):
    """To carry out a request raised, and no run is to blame: it is refused, and everything is read again."""

    def __init__(self, stored: StoredRequest, cause: Exception) -> None:
        super().__init__(f"request {stored.seq}: {cause}")
        self.stored = stored
        self.cause = cause


def log_unreadable(rules: Iterable[LimitRow], workers: Iterable[WorkerRow] = ()) -> None:
    """Rows of no run that cannot be read: everything goes on without them."""
    for rule in rules:
        if rule.unreadable:
            log.error("%s", rule.unreadable)
    for worker in workers:
        if worker.unreadable:
            log.error("worker %s is left out: %s", worker.id, worker.unreadable)


class Isolation:
    def __init__(
        self, store: Store, queue: QueueReader, own: OwnWorker | None, metrics: Metrics
    ) -> None:
        self._store = store
        self._queue = queue
        self._own = own
        self._metrics = metrics

    async def hold(self, term: int, cycle: int, actor: str, runs: dict[int, str]) -> None:
        for run, why in runs.items():
            log.error("run %s is held: %s", run, why)
        await self._store.hold_runs(HoldRuns(term, cycle, actor, runs))
        self._metrics.runs_held += len(runs)

    async def isolate(
        self, scheduler: Scheduler, fault: RunFault | CommitRefused | RequestFault
    ) -> None:
        """Hold what is to blame. The ledger may be half changed: the next term reads everything again."""
        builder = scheduler.commit_builder
        place = scheduler.term, builder.next_cycle(), builder.actor
        if isinstance(fault, RequestFault):
            told = RunEvents(NO_RUN, [refusal(fault.stored, reason_of(fault.cause))])
            done = [fault.stored.seq]
            await self._store.commit(Commit(*place, requests_done=done, events=[told]))
        elif isinstance(fault, RunFault):
            if not all(map(self._queue.has_read, fault.runs)):
                raise NotLeader(
                    f"{fault}: it was known from the notification of its submission alone"
                )
            await self.hold(*place, fault.runs)
        else:
            log.error("%s", fault)
            runs = await refused_runs(self._store, fault.commit)
            for row in fault.commit.as_carried:
                runs.pop(row.seq, None)  # it may be what a notification said that is refused
            if fault.commit.as_carried and not runs:
                raise not_as_carried(fault.commit)
            if not runs:
                fault.parts = await refused_parts(self._store, fault.commit)
                raise fault
            await self.hold(*place, runs)

    async def hold_queued(self, scheduler: Scheduler, now: int) -> None:
        """Queued runs that could not be read. Nothing of them is in the ledger yet, so the term goes on."""
        faults, self._queue.faults = self._queue.faults, []
        if not faults:
            return
        builder = scheduler.commit_builder
        reasons = {row.seq: why for row, why in faults}
        await self.hold(scheduler.term, builder.next_cycle(), builder.actor, reasons)
        for row, why in faults:
            scheduler.ledger.drop_head(row.seq)
            self._queue.left(row.seq)
            error = encode(Failure("held", why, retryable=False))
            held = msgspec.structs.replace(row, state=RunState.HELD, error=error)
            scheduler.held.restore([held], (), scheduler.graphs, now)

    async def finish_held(self, scheduler: Scheduler, ends: list[End], now: int) -> list[End]:
        """Write the ends of attempts of held runs: nothing follows from them, so no cycle does. The others."""
        if not scheduler.held.attempts or self._own is None:
            return ends
        held = [end for end in ends if scheduler.held.attempt(end.task, end.token) is not None]
        if not held:
            return ends
        await self._store.finish(Finish(self._own.id, held))
        for end in held:
            scheduler.held.ended(end.task, end.token, now)
        return [end for end in ends if end not in held]


def refusal(stored: StoredRequest, why: str = "") -> Change:
    """The event of a request that is not carried out."""
    request = stored.request
    data: dict[str, object] = {"request": stored.seq}
    if request is None:
        why = why or "it cannot be read"
    else:
        why = why or f"{stored.taken} leaders began to carry it out, and none ended it"
        data |= {"kind": request.kind, "subject": request.subject, "who": request.who}
    log.error("request %s is refused: %s", stored.seq, why)
    return Change("request", 0, "", "refused", 0, {**data, "reason": why})


def ordered(seq: int, request: Request) -> Change:
    """Who asked for it: the events of what is changed do not say that."""
    data = {"request": seq, "kind": request.kind, "subject": request.subject, "who": request.who}
    return Change("request", 0, "", "ordered", 0, data)


async def refused_runs(store: Store, commit: Commit) -> dict[int, str]:
    """The runs whose part of `commit` the store refuses, each with its reason."""
    found: dict[int, str] = {}
    for run, part in sorted(parts_by_run(commit).items()):
        try:
            await store.commit(part, dry_run=True)
        except Exception as error:
            if not is_fault(error):
                raise
            found[run] = reason_of(error)
    return found


_OF_NO_RUN = (
    *("buckets", "reservations", "lingers", "placed", "unplaced", "silences", "requests_done"),
    *("kept", "orders", "cache_cleared", "events"),
)


async def refused_parts(store: Store, commit: Commit) -> list[str]:
    """Which parts of `commit` the store refuses that belong to no run."""
    found: list[str] = []
    for name in _OF_NO_RUN:
        part = Commit(commit.term, commit.cycle, commit.actor, at=commit.at)
        setattr(part, name, getattr(commit, name))
        try:
            await store.commit(part, dry_run=True)
        except Exception as error:
            if not is_fault(error):
                raise
            found.append(name)
    return found or ["all of it together"]


def parts_by_run(commit: Commit) -> dict[int, Commit]:
    """What `commit` writes of each run."""
    parts: dict[int, Commit] = {}

    def part(run: int) -> Commit:
        if run not in parts:
            parts[run] = Commit(commit.term, commit.cycle, commit.actor, at=commit.at)
        return parts[run]

    for start in commit.runs_started:
        part(start.run).runs_started.append(start)
    for mark in commit.runs_marked:
        part(mark.run).runs_marked.append(mark)
    for unfolded in commit.runs_unfolded:
        part(unfolded.run).runs_unfolded.append(unfolded)
    for end in commit.runs_ended:
        part(end.run).runs_ended.append(end)
    for row in commit.tasks_new:
        part(run_of(row.id)).tasks_new.append(row)
    for row in commit.tasks_again:
        part(run_of(row.id)).tasks_again.append(row)
    for save in commit.tasks_saved:
        part(run_of(save.id)).tasks_saved.append(save)
    for end in commit.tasks_ended:
        part(run_of(end.id)).tasks_ended.append(end)
    for shared in commit.node_inputs:
        part(shared.run).node_inputs.append(shared)
    for wait in commit.waits_opened:
        part(wait.run).waits_opened.append(wait)
    for task in commit.waits_over:
        part(run_of(task)).waits_over.append(task)
    for taken in commit.mail_taken:
        part(taken.run).mail_taken.append(taken)
    for cached in commit.cache_stored:
        part(run_of(cached.task)).cache_stored.append(cached)
    for order in commit.orders:
        if order.task > 0:
            part(run_of(order.task)).orders.append(order)
    for run, priority in commit.reprioritised:
        part(run).reprioritised.append((run, priority))
    for events in commit.events:
        if events.run > 0:
            part(events.run).events.append(events)
    return parts
