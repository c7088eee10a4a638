"""Reads what other processes committed since the last read, and passes it to the scheduler.

The history is followed by a cursor of the store: runs that arrived, attempts that were accepted or ended,
workers that came and went, and what clients ask for. What this leader wrote itself is left out.
"""

from __future__ import annotations

from collections.abc import Set

import msgspec

from locktender.base import codec
from locktender.base.changes import End
from locktender.base.errors import NotLeader
from locktender.base.events import NO_RUN, Change, Event, EventRow, event_of, read_changes
from locktender.base.model import Failure, Request, StoredRequest
from locktender.base.states import EXECUTING_RUNS, TERMINAL_RUNS, RunState, TaskState
from locktender.kernel.scheduler import Scheduler
from locktender.leader.isolation import RequestFault, ordered, refusal
from locktender.leader.own_worker import OwnWorker
from locktender.leader.questions import Questions
from locktender.leader.queue_reader import QueueReader
from locktender.leader.waiting_runs import WaitingRuns
from locktender.observe.metrics import Metrics
from locktender.store import blob_values
from locktender.store.protocol import BEGINNING, Cursor, EndedTask, Gather, Gathered, Store
from locktender.store.readable import is_fault

PAGE_EVENTS = 5_000
_NOT_EXECUTING = (RunState.QUEUED, RunState.WAITING)
MAX_TAKEN = 3
"""Leaders that may begin to carry out a request; then it is refused."""


class ChangeReader:
    def __init__(
        self,
        store: Store,
        queue: QueueReader,
        waits: WaitingRuns,
        own: OwnWorker | None,
        metrics: Metrics,
        questions: Questions,
    ) -> None:
        self.more: bool = False
        """The last read found a full page: there is more to read."""
        self._store = store
        self._queue = queue
        self._waits = waits
        self._own = own
        self._metrics = metrics
        self._questions = questions
        self._cursor = BEGINNING
        self._taken: set[int] = set()
        """Requests that this leader has begun to carry out."""

    def begin(self, cursor: Cursor) -> None:
        """Everything up to `cursor` is known."""
        self._cursor = cursor

    async def gather(self, scheduler: Scheduler) -> Gathered:
        gathered = await self._store.gather(
            Gather(self._cursor, scheduler.commit_builder.actor, PAGE_EVENTS)
        )
        self._cursor = gathered.cursor
        self.more = len(gathered.events) >= PAGE_EVENTS
        return gathered

    async def apply(
        self, scheduler: Scheduler, gathered: Gathered, now: int, lost: Set[str] = frozenset()
    ) -> None:
        """`lost`: workers without a row that did not leave."""
        self._queue.put_rows(gathered.queued)
        await self._apply_events(scheduler, gathered, now)
        if not self.more:
            self._queue.history_read()
            self._waits.history_read()
        if gathered.workers is not None:
            self._apply_workers(scheduler, gathered, lost)
        await self.requests(scheduler, gathered.requests, now)

    async def _apply_events(self, scheduler: Scheduler, gathered: Gathered, now: int) -> None:
        rows = {row.id: row for row in gathered.tasks}
        for row in gathered.events:
            by_worker = row.actor.startswith("worker:")
            run, accepted, ends = max(0, row.run), 0, 0
            for change in _changes(row):
                scheduler.lifecycle.at_run = run
                if change.subject != "task":
                    self._arrived(scheduler, event_of(row, change))
                elif not by_worker:
                    continue
                elif change.after == TaskState.RUNNING:
                    scheduler.accepted(change.task, change.token, row.at)
                    accepted += 1
                else:
                    ends += 1
                    ended = rows.get(change.task)
                    if ended is not None and ended.token == change.token:
                        value = None
                        if ended.output is not None and codec.is_blob(ended.output):
                            value = await self._queue.value_of(scheduler, ended.id, ended.output)
                        self._ended(scheduler, row, change, ended, value, now)
            self._metrics.offer_answered("accepted", accepted)
            self._metrics.changes_read(now - row.at, accepted + ends)
        scheduler.lifecycle.at_run = 0

    def _arrived(self, scheduler: Scheduler, event: Event) -> None:
        if event.subject == "run" and event.after == RunState.QUEUED:
            self._queue.arrived(event)
        elif event.subject == "run" and event.after == RunState.WAITING:
            self._waits.arrived(event)
        elif event.subject == "mail" and event.after == "sent":
            self._waits.sent(event, scheduler)

    def _ended(
        self,
        scheduler: Scheduler,
        row: EventRow,
        change: Change,
        ended: EndedTask,
        value: bytes | None,
        now: int,
    ) -> None:
        if change.before == TaskState.SCHEDULED:
            self._metrics.offer_answered("declined")
        reason = str(change.data.get("reason", "")) if change.data else ""
        end = End(change.task, change.token, change.after, ended.output, ended.error, reason)
        scheduler.ended(end, now, local=False, value=value, at=row.at)

    def _apply_workers(self, scheduler: Scheduler, gathered: Gathered, lost: Set[str]) -> None:
        own = None if self._own is None else self._own.id
        present = {own, *lost}
        for row in gathered.workers or ():
            present.add(row.id)
            if row.id != own:
                scheduler.put_worker(row)
        for known in list(scheduler.ledger.workers.by_id):
            if known not in present:
                scheduler.worker_left(known, "it left")

    async def requests(self, scheduler: Scheduler, requests: list[StoredRequest], now: int) -> None:
        requests = [each for each in requests if not self._questions.put(each)]
        if new := [each.seq for each in requests if each.seq not in self._taken]:
            # Before any is carried out: one that ends the process is not tried for ever.
            await self._store.claim_requests(scheduler.term, new)
        for stored in requests:
            request = stored.request
            scheduler.commit_builder.commit.requests_done.append(stored.seq)
            if request is None or (stored.taken >= MAX_TAKEN and stored.seq not in self._taken):
                scheduler.commit_builder.record(NO_RUN, refusal(stored))
                continue
            # Once: it is read again until the commit that ends it is written.
            is_new = stored.seq not in self._taken
            if is_new and request.kind in ("drain", "undrain", "cache_clear"):
                scheduler.commit_builder.record(NO_RUN, ordered(stored.seq, request))
            self._taken.add(stored.seq)
            try:
                await self._carry_out(scheduler, stored.seq, request, now, is_new=is_new)
            except Exception as error:
                if not is_fault(error) or scheduler.lifecycle.at_run:
                    raise
                raise RequestFault(stored, error) from error

    async def _carry_out(
        self, scheduler: Scheduler, seq: int, request: Request, now: int, *, is_new: bool
    ) -> None:
        if request.kind == "drain" or request.kind == "undrain":
            own = self._own
            if own is not None and own.id == request.subject and request.kind == "drain":
                own.draining = True
                scheduler.put_worker(own.describe_own(0, ()), local=True)
            else:
                scheduler.order_drain(request.subject, seq, request.kind)
            return
        if request.kind == "cache_clear":
            scheduler.lifecycle.cache.clear(request.subject or None, request.flow or None)
            return
        row = await self._store.run(request.subject)
        if row is None:
            return
        scheduler.lifecycle.at_run = row.seq
        if is_new and request.who and row.state not in TERMINAL_RUNS:
            scheduler.commit_builder.record(row.seq, ordered(seq, request))
        if request.kind == "cancel" and (
            row.state in EXECUTING_RUNS or row.seq in scheduler.held.rows
        ):
            scheduler.cancel_run(row.seq, now, request.reason, force=request.force)
        elif request.kind == "cancel" and row.started_at and row.state in _NOT_EXECUTING:
            await self._queue.take_up(scheduler, row, now)
            scheduler.cancel_run(row.seq, now, request.reason, force=request.force)
        elif (
            request.kind in ("cancel", "drop")
            and row.state in _NOT_EXECUTING
            and not row.started_at
        ):
            kind = "cancelled" if request.kind == "cancel" else "dropped"
            failure = Failure(kind, request.reason or f"{kind} on request")
            scheduler.end_queued(row, RunState.CANCELLED, failure, now)
            self._queue.left(row.seq)
        elif request.kind == "reprioritise" and row.state == RunState.QUEUED:
            row = await blob_values.open_values(self._store, row)
            scheduler.reprioritise(row, request.priority or 0)
            self._queue.moved(row)
        scheduler.lifecycle.at_run = 0


def _changes(row: EventRow) -> list[Change]:
    try:
        return read_changes(row.body)
    except (msgspec.MsgspecError, UnicodeError, TypeError) as error:
        # What it told stands in rows too.
        raise NotLeader(
            f"event {row.seq} of run {row.run} cannot be read: the leader reads everything again"
        ) from error
