"""News: what others committed since the leader last looked, told to the conductor.

The history is followed by its numbers: runs that arrived, attempts that were
accepted or ended, workers that came and went, and what clients ask for. What
the leader wrote itself is left out.
"""

from __future__ import annotations

from collections.abc import Set

from locktender.base.events import unpack
from locktender.base.model import Failure, StoredRequest
from locktender.base.states import EXECUTING_RUNS, RunState, TaskState
from locktender.kernel.scheduler import Scheduler
from locktender.leader.queue_reader import QueueReader
from locktender.observe.metrics import Metrics
from locktender.store import blob_values
from locktender.store.protocol import Gather, Gathered, Store
from locktender.worker.worker import LocalWorker

PAGE = 5_000


class ChangeReader:
    def __init__(
        self, store: Store, feed: QueueReader, local: LocalWorker | None, metrics: Metrics
    ) -> None:
        self.more: bool = False
        """The last look found a full page: there is more to read."""
        self._store = store
        self._feed = feed
        self._local = local
        self._metrics = metrics
        self._cursor = 0

    def begin(self, seq: int) -> None:
        """All up to `seq` is known."""
        self._cursor = seq

    async def gather(self, conductor: Scheduler) -> Gathered:
        gathered = await self._store.gather(Gather(self._cursor, conductor.journal.actor, PAGE))
        self._cursor = gathered.seq
        self.more = len(gathered.events) >= PAGE
        return gathered

    async def tell(
        self, conductor: Scheduler, gathered: Gathered, now: int, lost: Set[str] = frozenset()
    ) -> None:
        """`lost`: workers without a row that did not leave."""
        self._feed.brought(gathered.queued)
        await self._learn(conductor, gathered, now)
        if gathered.workers is not None:
            self._meet(conductor, gathered, lost)
        await self.requests(conductor, gathered.requests, now)

    async def _learn(self, conductor: Scheduler, gathered: Gathered, now: int) -> None:
        rows = {row.id: row for row in gathered.tasks}
        for row in gathered.events:
            for event in unpack(row):
                if event.subject == "run" and event.after == RunState.QUEUED:
                    self._feed.arrived(event)
                elif event.subject == "task" and row.actor.startswith("worker:"):
                    if event.after == TaskState.RUNNING:
                        conductor.accepted(event.task, event.token, event.at)
                        self._metrics.offer_answered("accepted")
                        continue
                    ended = rows.get(event.task)
                    if ended is None or ended.token != event.token:
                        continue
                    if event.before == TaskState.SCHEDULED:
                        self._metrics.offer_answered("declined")
                    conductor.ended(
                        event.task,
                        event.token,
                        event.after,
                        now,
                        ended.output,
                        ended.error,
                        str(event.data.get("reason", "")),
                        local=False,
                        value=await self._feed.value_of(conductor, event.task, ended.output),
                        at=event.at,
                    )

    def _meet(self, conductor: Scheduler, gathered: Gathered, lost: Set[str]) -> None:
        local = None if self._local is None else self._local.id
        present = {local, *lost}
        for row in gathered.workers or ():
            present.add(row.id)
            if row.id != local:
                conductor.put_worker(row)
        for known in list(conductor.ledger.floor.workers):
            if known not in present:
                conductor.worker_left(known, "it left")

    async def requests(self, conductor: Scheduler, requests: list[StoredRequest], now: int) -> None:
        for stored in requests:
            request = stored.request
            conductor.journal.commit.requests_done.append(stored.seq)
            if request.kind == "drain":
                if self._local is not None and self._local.id == request.subject:
                    self._local.draining = True
                    conductor.put_worker(self._local.describe(), local=True)
                else:
                    conductor.drain_worker(request.subject, stored.seq)
                continue
            row = await self._store.run(request.subject)
            if row is None:
                continue
            if request.kind == "cancel" and row.state in EXECUTING_RUNS:
                conductor.cancel_run(row.seq, now, request.reason, force=request.force)
            elif request.kind == "cancel" and row.state == RunState.QUEUED:
                failure = Failure("cancelled", request.reason or "cancelled on request")
                conductor.end_queued(row, RunState.CANCELLED, failure, now)
                self._feed.left(row.seq)
            elif request.kind == "reprioritise" and row.state == RunState.QUEUED:
                row = await blob_values.open_values(self._store, row)
                conductor.reprioritise(row, request.priority or 0)
                # It may stand before what its lane has at hand: read again once this is written.
                self._feed.lanes([row.lane])
