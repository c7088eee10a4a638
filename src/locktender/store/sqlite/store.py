"""The SQLite store: one file, any number of processes on one machine.

Files beside `<file>`: `-wal` and `-shm` (SQLite's own), `-q.lock` and `-w.lock`
(the write lock), `-live/` (a lock per live leader and worker), `-wake/` (sockets
of waiting processes), `-blobs/` (large values).

Verbs run on threads: one writer, one reader for the leader's and the workers'
reads, one for all other reads, so that a long listing never delays a cycle.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from locktender.base.changes import Order, TaskRow
from locktender.base.clock import SECOND, Clock, SystemClock
from locktender.base.commits import Commit
from locktender.base.errors import StoreError
from locktender.base.events import EventRow
from locktender.base.limits import Limits
from locktender.base.model import (
    HeldUp,
    LimitChange,
    LimitRow,
    Request,
    RunRow,
    WorkerLife,
    WorkerRow,
)
from locktender.store.forked_children import check_process
from locktender.store.migrate import no_store
from locktender.store.protocol import (
    FOREVER_US,
    Accept,
    Answer,
    ChangeNotice,
    Committed,
    CountedTasks,
    Counts,
    Elect,
    EventFilter,
    Expire,
    Finish,
    Follow,
    Followed,
    Gather,
    Gathered,
    Heads,
    Heartbeat,
    HoldRuns,
    Leadership,
    Lost,
    OfferNotice,
    OpenRuns,
    Provision,
    ProvisionState,
    QueueEntry,
    QueuePlace,
    QueueView,
    ReassignLanes,
    Rejections,
    RemoveUnused,
    Renewed,
    RunFilter,
    RunsEnded,
    SetLimit,
    Snapshot,
    Started,
    Store,
    Submit,
    Submitted,
    TaskFilter,
    Traffic,
    Withdraw,
)
from locktender.store.sqlite import (
    client_verbs,
    faults,
    leader_verbs,
    reads,
    recovery,
    worker_verbs,
)
from locktender.store.sqlite.blobs import Blobs
from locktender.store.sqlite.companions import create_database
from locktender.store.sqlite.examining import SqliteExamining
from locktender.store.sqlite.mailing import SqliteMailing
from locktender.store.sqlite.named_flows import SqliteNaming
from locktender.store.sqlite.opening import OpenFile
from locktender.store.sqlite.outbox import SqliteOutbox
from locktender.store.sqlite.pruning import SqliteUpkeep
from locktender.store.sqlite.result_cache import SqliteResultCache
from locktender.store.sqlite.session import SqliteSession, resolved
from locktender.store.sqlite.tokens import SqliteTokens
from locktender.store.sqlite.wake import SqliteWaiting
from locktender.store.sqlite.write_lock import held_up

T = TypeVar("T")

BUSY_TIMEOUT_US = 5 * SECOND
POLL_SECONDS = 0.05


class SqliteStore(
    SqliteUpkeep,
    SqliteResultCache,
    SqliteNaming,
    SqliteWaiting,
    SqliteMailing,
    SqliteOutbox,
    SqliteTokens,
    SqliteExamining,
    Store,
):
    """Implements `locktender.store.protocol.Store`; its docstrings are there."""

    def __init__(
        self,
        path: str | Path,
        clock: Clock | None = None,
        *,
        busy_timeout_us: int = BUSY_TIMEOUT_US,
    ) -> None:
        if str(path).startswith((":memory:", "file:")) or not str(path):
            raise faults.no_file(str(path))
        # Resolved: all names of one file must lead to the same companions.
        self.path: Path = resolved(path)
        self._clock: Clock = SystemClock() if clock is None else clock
        self._busy_timeout_us = busy_timeout_us
        self._state: OpenFile | None = None
        self._blobs = Blobs(self.path, self._clock)
        self._stale = 0
        self.rejections: Rejections = Rejections()
        self._workers_seen: tuple[str, int] = "", -1
        self._looked_at = 0
        self._waited_to: dict[str, int] = {}
        self._ends_seen: int | None = None
        self._changes_seen: int | None = None

    # -- opening

    async def open(
        self, *, migrates: bool = True, creates: bool = True, brief: bool = False
    ) -> None:
        if self._state is not None:
            return
        try:
            if self.path.is_dir():
                raise faults.directory(self.path)
            if not creates and not self.path.exists():
                raise no_store(str(self.path))
            # Before SQLite sees it: it would leave read-only companions that outlast the fix.
            if self.path.exists() and not os.access(self.path, os.W_OK):
                raise faults.read_only(self.path)
            # A client that only connects must not leave folders where a path was mistyped.
            create_database(self.path, folders=migrates)
            state = OpenFile(
                self.path, self._clock, self._busy_timeout_us, migrates=migrates, brief=brief
            )
        except OSError as error:
            raise faults.translate(error, self.path) from error
        try:
            await state.start()
        except BaseException:
            await state.stop()
            raise
        self._state = state
        self._workers_seen = "", -1
        self._looked_at = state.wake.mark

    def twin(self) -> SqliteStore:
        return SqliteStore(self.path, self._clock, busy_timeout_us=self._busy_timeout_us)

    async def close(self) -> None:
        state, self._state = self._state, None
        if state is not None and state.pid == os.getpid():
            await state.stop()

    async def now(self) -> int:
        return self._clock.now()

    def steady(self) -> int:
        return self._clock.monotonic()

    def live_fd(self, owner: str) -> int | None:
        """The lock that says `owner` is alive, for children that do its work to inherit."""
        return self._opened.live.fd(owner)

    @property
    def _opened(self) -> OpenFile:
        if self._state is None:
            raise StoreError("the store is not open.", hint="Call open() first.")
        check_process(self._state.pid)
        return self._state

    def _write(self, verb: Callable[[SqliteSession], T]) -> Awaitable[T]:
        return self._opened.writer.call(verb)

    def _read(self, verb: Callable[[SqliteSession], T]) -> Awaitable[T]:
        return self._opened.work.call(verb)

    def _query(self, verb: Callable[[SqliteSession], T]) -> Awaitable[T]:
        return self._opened.query.call(verb)

    async def identity(self) -> str:
        """Of `blobs_elsewhere.RowStore`."""
        return f"sqlite {os.uname().nodename} {self.path}"

    # -- clients

    async def submit(self, submit: Submit) -> list[Submitted]:
        return self.rejections.count(await self._write(lambda tx: client_verbs.submit(tx, submit)))

    async def retry(
        self, run_ids: list[str], again: Sequence[int] = (), who: str = ""
    ) -> list[Submitted]:
        return await self._write(lambda tx: client_verbs.retry(tx, run_ids, again, who))

    async def ask(self, requests: list[Request]) -> None:
        await self._write(lambda tx: client_verbs.ask(tx, requests))

    async def set_limit(self, changes: list[SetLimit]) -> None:
        await self._write(lambda tx: client_verbs.set_limits(tx, changes))

    # -- the leader

    async def elect(self, elect: Elect) -> Leadership:
        live = self._opened.live
        if not elect.term:
            # A renewal comes from another thread's store, which cannot hold it too.
            live.hold(elect.owner)
        return await self._write(lambda tx: leader_verbs.elect(tx, elect, live.dead))

    async def resign(self, owner: str, term: int) -> None:
        await self._write(lambda tx: leader_verbs.resign(tx, owner, term))
        self._opened.live.drop(owner)

    async def load(self, *, lost: bool = True) -> Snapshot:
        return await self._read(lambda tx: reads.load(tx, lost=lost))

    async def gather(self, gather: Gather) -> Gathered:
        actor, version = self._workers_seen
        seen = version if actor == gather.actor else -1
        gathered, version = await self._read(lambda tx: reads.gather(tx, gather, seen))
        self._workers_seen = gather.actor, version
        return gathered

    async def heads(self, heads: Heads) -> list[RunRow]:
        return await self._read(lambda tx: reads.heads(tx, heads))

    async def arrivals(self, runs: list[int]) -> list[RunRow]:
        return await self._read(lambda tx: reads.arrivals(tx, runs))

    async def overdue(self, limit: int) -> list[RunRow]:
        return await self._read(lambda tx: reads.overdue(tx, limit))

    async def commit(self, commit: Commit, *, dry_run: bool = False) -> Committed:
        verb = leader_verbs.dry_run if dry_run else leader_verbs.commit
        return await self._write(lambda tx: verb(tx, commit))

    async def hold_runs(self, hold: HoldRuns) -> None:
        await self._write(lambda tx: leader_verbs.hold_runs(tx, hold))

    async def claim_requests(self, term: int, requests: list[int]) -> None:
        await self._write(lambda tx: leader_verbs.claim_requests(tx, term, requests))

    async def answer(self, answer: Answer) -> None:
        await self._write(lambda tx: leader_verbs.answer(tx, answer))

    async def withdraw(self, withdraw: Withdraw) -> list[tuple[int, int]]:
        return await self._write(lambda tx: recovery.withdraw(tx, withdraw))

    async def lives(self) -> list[WorkerLife]:
        proof = self._opened.live.proof
        return await self._read(lambda tx: recovery.lives(tx, proof))

    async def expire(self, expire: Expire) -> list[Lost]:
        lost = await self._write(lambda tx: recovery.expire(tx, expire))
        for worker in lost:
            self._opened.live.forget(worker.worker)
        return lost

    async def reassign_lanes(self, reassign: ReassignLanes) -> int:
        return await self._write(lambda tx: recovery.reassign_lanes(tx, reassign))

    async def remove_unused(self, remove: RemoveUnused) -> int:
        after, owners = await self._write(lambda tx: recovery.remove_unused(tx, remove))
        if not remove.after:
            await asyncio.to_thread(self._opened.live.remove_stale, owners)
        return after

    # -- workers

    async def heartbeat(self, heartbeat: Heartbeat) -> Renewed:
        self._opened.live.hold(heartbeat.worker.id)
        return await self._write(lambda tx: worker_verbs.heartbeat(tx, heartbeat))

    async def leave(self, worker: str) -> None:
        try:
            await self._write(lambda tx: worker_verbs.leave(tx, worker))
        finally:
            # Also if it was not written: else the worker would count as stalled, with all it holds.
            self._opened.live.drop(worker)

    async def orders(self, worker: str) -> list[Order]:
        return await self._read(lambda tx: worker_verbs.orders(tx, worker))

    async def accept(self, accept: Accept) -> list[Started]:
        started, stale = await self._write(lambda tx: worker_verbs.accept(tx, accept))
        self._stale += stale
        return started

    async def finish(self, finish: Finish) -> list[tuple[int, int]]:
        stale = await self._write(lambda tx: worker_verbs.finish(tx, finish))
        self._stale += len(stale)
        return stale

    # -- values

    async def put_blob(self, data: bytes) -> str:
        return await self._query(lambda _: self._blobs.put(data))

    async def get_blob(self, digest: str) -> bytes:
        return await self._query(lambda _: self._blobs.get(digest))

    async def graph(self, digest: str) -> bytes:
        return await self._read(lambda tx: reads.graph(tx, digest))

    # -- reads

    async def run(self, run_id: str) -> RunRow | None:
        return await self._read(lambda tx: reads.run(tx, run_id))

    async def run_states(self, runs: Sequence[int]) -> dict[int, str]:
        return await self._read(lambda tx: reads.run_states(tx, runs))

    async def runs(self, where: RunFilter) -> list[RunRow]:
        return await self._query(lambda tx: reads.runs(tx, where))

    async def tasks(self, run: int) -> list[TaskRow]:
        return await self._read(lambda tx: reads.tasks(tx, run))

    async def task_page(self, where: TaskFilter) -> CountedTasks:
        return await self._query(lambda tx: reads.task_page(tx, where))

    async def events(self, where: EventFilter) -> list[EventRow]:
        return await self._query(lambda tx: reads.events(tx, where))

    async def follow(self, follow: Follow) -> Followed:
        return await self._query(lambda tx: reads.follow(tx, follow))

    async def held_up(self) -> HeldUp:
        return await held_up(self.path)

    async def queue(self, limit: int, after: QueuePlace | None = None) -> list[QueueEntry]:
        return await self._query(lambda tx: reads.queue(tx, limit, after))

    async def traffic(
        self, lanes: int, runs: int, queued_us: int = FOREVER_US, moved_us: int = FOREVER_US
    ) -> Traffic:
        return await self._query(lambda tx: reads.traffic(tx, lanes, runs, queued_us, moved_us))

    async def beside(self, run: int, most: int) -> QueueView | None:
        return await self._query(lambda tx: reads.beside(tx, run, most))

    async def executing_tasks(self, most: int) -> int:
        return await self._query(lambda tx: reads.executing_tasks(tx, most))

    async def answer_to(self, question: str) -> bytes | None:
        return await self._query(lambda tx: reads.answer_to(tx, question))

    async def workers(self) -> list[WorkerRow]:
        return await self._read(reads.workers)

    async def leader(self) -> str | None:
        dead = self._opened.live.dead
        return await self._read(lambda tx: reads.leader(tx, dead))

    async def limits(self) -> tuple[Limits, list[LimitRow]]:
        return await self._read(reads.limits_in_force)

    async def limit_history(self, limit: int) -> list[LimitChange]:
        return await self._query(lambda tx: reads.limit_history(tx, limit))

    async def counts(self) -> Counts:
        return await self._query(reads.counts)

    async def open_runs(self) -> OpenRuns:
        return await self._query(reads.open_runs)

    async def stale_writes(self) -> int:
        return self._stale

    # -- workers that are asked for

    async def provision(self, provision: Provision) -> None:
        await self._write(lambda tx: leader_verbs.provision(tx, provision))

    async def forget_asked(self, names: list[str]) -> None:
        await self._write(lambda tx: leader_verbs.forget(tx, names))

    async def provisioned(self) -> ProvisionState:
        return await self._query(leader_verbs.provisioned)

    # -- waking

    async def wait_for_offers(self, worker: str, timeout_us: int) -> OfferNotice:
        # A byte says no more than *look*. The first time there may be something already.
        seen = self._waited_to.get(worker)
        self._waited_to[worker] = await self.wait(0 if seen is None else timeout_us, seen or 0)
        return OfferNotice([], look=True)

    async def wait_for_ends(self, timeout_us: int) -> RunsEnded:
        # As above: a byte says no more than *look*, and the first time there may be some already.
        seen = self._ends_seen
        self._ends_seen = await self.wait(0 if seen is None else timeout_us, seen or 0)
        return RunsEnded([], look=True)

    @property
    def listens(self) -> bool:
        return False

    async def offer_again(self, offers: list[Order]) -> None:
        """All offers are stored."""

    async def wait_for_changes(self, timeout_us: int) -> ChangeNotice:
        seen = self._changes_seen
        self._changes_seen = await self.wait(0 if seen is None else timeout_us, seen or 0)
        return ChangeNotice(look=True)

    async def wait(self, timeout_us: int, since: int = -1) -> int:
        state = self._opened
        wake = state.wake
        seen = self._looked_at if since < 0 else since
        if wake.listen():
            await state.notice_foreign()
        wake.drain()
        # Real time, not the store's: a test's clock does not make anybody wait longer.
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_us / SECOND
        while wake.mark <= seen and (left := until - loop.time()) > 0:
            await wake.wait(min(left, POLL_SECONDS))
            if wake.mark <= seen:
                await state.notice_foreign()
        self._looked_at = wake.mark
        return wake.mark
