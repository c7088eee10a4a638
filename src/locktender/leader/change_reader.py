"""Reads what other processes committed since the last read, and passes it to the scheduler.

The history is followed by a cursor of the store: runs that arrived, attempts that were accepted or ended,
workers that came and went, and what clients ask for. What this leader wrote itself is left out.
"""

from __future__ import annotations

from collections.abc import Set

from locktender.base.events import unpack
from locktender.base.model import Failure, StoredRequest
from locktender.base.states import EXECUTING_RUNS, RunState, TaskState
from locktender.kernel.scheduler import Scheduler
from locktender.leader.own_worker import OwnWorker
from locktender.leader.queue_reader import QueueReader
from locktender.observe.metrics import Metrics
from locktender.store import blob_values
from locktender.store.protocol import BEGINNING, Cursor, Gather, Gathered, Store

PAGE_EVENTS = 5_000


class ChangeReader:
    def __init__(
        self, store: Store, queue: QueueReader, own: OwnWorker | None, metrics: Metrics
    ) -> None:
        self.more: bool = False
        """The last read found a full page: there is more to read."""
        self._store = store
        self._queue = queue
        self._own = own
        self._metrics = metrics
        self._cursor = BEGINNING

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
        if gathered.workers is not None:
            self._apply_workers(scheduler, gathered, lost)
        await self.requests(scheduler, gathered.requests, now)

    async def _apply_events(self, scheduler: Scheduler, gathered: Gathered, now: int) -> None:
        rows = {row.id: row for row in gathered.tasks}
        for row in gathered.events:
            for event in unpack(row):
                if event.subject == "run" and event.after == RunState.QUEUED:
                    self._queue.arrived(event)
                elif event.subject == "task" and row.actor.startswith("worker:"):
                    if event.after == TaskState.RUNNING:
                        scheduler.accepted(event.task, event.token, event.at)
                        self._metrics.offer_answered("accepted")
                        continue
                    ended = rows.get(event.task)
                    if ended is None or ended.token != event.token:
                        continue
                    if event.before == TaskState.SCHEDULED:
                        self._metrics.offer_answered("declined")
                    scheduler.ended(
                        event.task,
                        event.token,
                        event.after,
                        now,
                        ended.output,
                        ended.error,
                        str(event.data.get("reason", "")),
                        local=False,
                        value=await self._queue.value_of(scheduler, event.task, ended.output),
                        at=event.at,
                    )

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
        for stored in requests:
            request = stored.request
            scheduler.commit_builder.commit.requests_done.append(stored.seq)
            if request.kind == "drain":
                if self._own is not None and self._own.id == request.subject:
                    self._own.draining = True
                    scheduler.put_worker(self._own.describe_own(0, ()), local=True)
                else:
                    scheduler.drain_worker(request.subject, stored.seq)
                continue
            row = await self._store.run(request.subject)
            if row is None:
                continue
            if request.kind == "cancel" and row.state in EXECUTING_RUNS:
                scheduler.cancel_run(row.seq, now, request.reason, force=request.force)
            elif request.kind == "cancel" and row.state == RunState.QUEUED:
                failure = Failure("cancelled", request.reason or "cancelled on request")
                scheduler.end_queued(row, RunState.CANCELLED, failure, now)
                self._queue.left(row.seq)
            elif request.kind == "reprioritise" and row.state == RunState.QUEUED:
                row = await blob_values.open_values(self._store, row)
                scheduler.reprioritise(row, request.priority or 0)
                # It may go before the runs of its lane that are held here: read the lane again after this commit.
                self._queue.lanes([row.lane])
