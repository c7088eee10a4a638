"""The PostgreSQL store: one schema, any number of processes on any number of machines.

A store has at most five connections, each opened when it is first needed: one for
the leader's writes, one for all other writes, one for the leader's and the workers'
reads, one for all other reads, so that a long listing never delays a cycle, and one
that listens. A process that renews leases has a second store, `twin`, with at most three.

Everything but the listener works through a pooler in transaction mode (`?pooled=true`):
no statement outlasts its transaction, no setting does, and every name has its schema.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from locktender.base.changes import Order
from locktender.base.clock import SECOND, Clock, SystemClock
from locktender.base.errors import StoreBusy, StoreError
from locktender.base.model import (
    LogRow,
    Request,
    RunRow,
    WorkerLife,
)
from locktender.store import postgres
from locktender.store.forked_children import check_process
from locktender.store.postgres import event_order, opening, reads
from locktender.store.postgres.composed_sql import Dialect, columns
from locktender.store.postgres.connection import Connection
from locktender.store.postgres.examining import PostgresExamining
from locktender.store.postgres.listener import Listener
from locktender.store.postgres.mailing import PostgresMailing
from locktender.store.postgres.named_flows import PostgresNaming
from locktender.store.postgres.opening import CONNECTIONS, TWIN_CONNECTIONS, PostgresConnections
from locktender.store.postgres.options import Options, parse
from locktender.store.postgres.outbox import PostgresOutbox
from locktender.store.postgres.pruning import PostgresUpkeep
from locktender.store.postgres.reading import PostgresReading
from locktender.store.postgres.requests import ask
from locktender.store.postgres.result_cache import PostgresResultCache
from locktender.store.postgres.server_clock import ServerClock
from locktender.store.postgres.session import SQL, KnownStatements, PostgresSession
from locktender.store.postgres.tokens import PostgresTokens
from locktender.store.postgres.wake import PostgresWaiting
from locktender.store.protocol import (
    Accept,
    Answer,
    BoundCache,
    ChangeNotice,
    Committed,
    Elect,
    Expire,
    Finish,
    Gather,
    Gathered,
    Heads,
    Heartbeat,
    HoldRuns,
    Leadership,
    Lost,
    OfferNotice,
    Provision,
    ProvisionState,
    ReassignLanes,
    Rejections,
    RemoveUnused,
    Renewed,
    RunsEnded,
    SetLimit,
    Snapshot,
    Started,
    Store,
    Submit,
    Submitted,
    Withdraw,
)

if TYPE_CHECKING:
    from locktender.base.commits import Commit

T = TypeVar("T")

CLEAR_EVERY_US = SECOND
"""How often a leader looks for connections that are stuck."""
REMOVE_UNUSED_TRIES, REMOVE_UNUSED_PAUSE_SECONDS = 40, 0.05


class PostgresStore(
    PostgresResultCache,
    PostgresNaming,
    PostgresUpkeep,
    PostgresWaiting,
    PostgresMailing,
    PostgresOutbox,
    PostgresReading,
    PostgresTokens,
    PostgresExamining,
    Store,
):
    """Implements `locktender.store.protocol.Store`; its docstrings are there."""

    def __init__(self, url: str, clock: Clock | None = None, *, schema: str | None = None) -> None:
        """`clock` is for tests: it takes the place of the server's time, for all who use the schema."""
        self._made_of = url, clock, schema
        self._most = CONNECTIONS
        """Connections that this store may open."""
        self._commits_by: PostgresStore = self
        """The store whose connection writes the leader's commits: a twin only renews its lease."""
        self.options: Options = parse(url, schema)
        self._clock = clock
        self._frozen_at: int | None = None
        """What the schema's clock was last set to; None while there may be no schema."""
        self._boot = SystemClock()
        self._time = ServerClock(clock)
        self._sql = Dialect(SQL, self.options.quoted_schema)
        self._state: PostgresConnections | None = None
        self._stale = self._looked_at = 0
        self.rejections: Rejections = Rejections()
        self._workers_seen: tuple[str, int] = "", -1
        self._cleared_at = -CLEAR_EVERY_US

    # -- opening

    def twin(self) -> PostgresStore:
        url, clock, schema = self._made_of
        twin = PostgresStore(url, clock, schema=schema)
        # One listener per process is enough.
        twin.options = msgspec.structs.replace(self.options, listen="off")
        twin._most = TWIN_CONNECTIONS
        twin._commits_by = self
        return twin

    async def open(
        self, *, migrates: bool = True, creates: bool = True, brief: bool = False
    ) -> None:
        if self._state is not None:
            return
        known = KnownStatements(f"{os.getpid()}-{os.urandom(6).hex()}")
        before = None if self._clock is None else self._freeze
        make = partial(Connection, self.options, self._sql, known, before)
        listener = Listener(self.options, known.origin)
        state = PostgresConnections(make, listener, self._time, shared=brief)
        most = 1 if brief else self._most
        self._frozen_at = None
        if not brief:
            postgres.load_verbs()
        try:
            if not await state.work.call(lambda tx: opening.is_current(tx, most), read=True):
                await state.work.call(lambda tx: opening.check_server(tx, most), read=True)
                await state.work.call(partial(opening.migrate, migrates=migrates, creates=creates))
                await state.work.call(event_order.keep_order)
            if not brief:
                # From here on no foreign commit is missed.
                await listener.start()
        except BaseException:
            await state.stop()
            raise
        self._frozen_at = -1
        self._state = state
        self._workers_seen = "", -1
        self._looked_at = 0

    async def close(self) -> None:
        state, self._state = self._state, None
        if state is not None and state.pid == os.getpid():
            await state.stop()

    async def now(self) -> int:
        async def ask() -> int:
            return (await self._read(lambda tx: tx.row("now")))[0]

        return await self._time.now(ask)

    def steady(self) -> int:
        return self._time.steady()

    async def _freeze(self, tx: PostgresSession) -> None:
        clock = self._clock
        if clock is None or self._frozen_at is None:
            return
        if (now := clock.now()) != self._frozen_at:
            await tx.run("freeze_clock", now)
            self._frozen_at = now

    @property
    def _opened(self) -> PostgresConnections:
        if self._state is None:
            raise StoreError("the store is not open.", hint="Call open() first.")
        check_process(self._state.pid)
        return self._state

    def _lead(self, verb: Callable[[PostgresSession], Awaitable[T]]) -> Awaitable[T]:
        return self._opened.lead.call(verb)

    def _write(self, verb: Callable[[PostgresSession], Awaitable[T]]) -> Awaitable[T]:
        return self._opened.write.call(verb)

    def _read(self, verb: Callable[[PostgresSession], Awaitable[T]]) -> Awaitable[T]:
        return self._opened.work.call(verb, read=True)

    def _query(self, verb: Callable[[PostgresSession], Awaitable[T]]) -> Awaitable[T]:
        return self._opened.query.call(verb, read=True)

    # -- clients

    async def submit(self, submit: Submit) -> list[Submitted]:
        return self.rejections.count(await self._opened.batcher.submit(submit))

    async def retry(
        self, run_ids: list[str], again: Sequence[int] = (), who: str = ""
    ) -> list[Submitted]:
        return await self._write(
            lambda tx: postgres.client_verbs.retry(tx, run_ids, again, who, self._time)
        )

    async def ask(self, requests: list[Request]) -> None:
        await self._write(lambda tx: ask(tx, requests))

    async def set_limit(self, changes: list[SetLimit]) -> None:
        await self._write(lambda tx: postgres.client_verbs.set_limits(tx, changes))

    # -- the leader

    async def elect(self, elect: Elect) -> Leadership:
        if not elect.term:
            return await self._lead(lambda tx: postgres.leader_verbs.elect(tx, elect))
        await self._clear_the_way()
        opened = self._opened
        backend = self._commits_by._opened.lead.backend
        # Not behind the commits that wait for their turn; and not behind a submission that waits for its.
        free = next((each for each in (opened.write, opened.work) if not each.busy), opened.write)
        return await free.call(lambda tx: postgres.leader_verbs.renew(tx, elect, backend))

    async def _clear_the_way(self) -> None:
        """At most once a second, on a connection on which nothing ever waits for a lock."""
        if (now := self._boot.monotonic()) - self._cleared_at >= CLEAR_EVERY_US:
            self._cleared_at = now
            await self._query(postgres.stuck.end_stuck)

    async def resign(self, owner: str, term: int) -> None:
        await self._lead(lambda tx: tx.run("leader_resign", owner, term))

    async def load(self, *, lost: bool = True) -> Snapshot:
        return await self._read(lambda tx: reads.load(tx, lost=lost))

    async def gather(self, gather: Gather) -> Gathered:
        actor, version = self._workers_seen
        seen = version if actor == gather.actor else -1
        gathered, version = await self._read(lambda tx: reads.gather_changes(tx, gather, seen))
        self._workers_seen = gather.actor, version
        self._time.sync(gathered.now)
        return gathered

    async def heads(self, heads: Heads) -> list[RunRow]:
        return await self._read(lambda tx: reads.heads(tx, heads))

    async def arrivals(self, runs: list[int]) -> list[RunRow]:
        return await self._read(lambda tx: reads.arrivals(tx, runs))

    async def overdue(self, limit: int) -> list[RunRow]:
        return await self._read(lambda tx: reads.overdue(tx, limit))

    async def commit(self, commit: Commit, *, dry_run: bool = False) -> Committed:
        verb = postgres.commits.dry_run if dry_run else postgres.commits.commit
        committed = await self._lead(lambda tx: verb(tx, commit))
        self._time.sync(committed.now)
        return committed

    async def hold_runs(self, hold: HoldRuns) -> None:
        await self._lead(lambda tx: postgres.recovery.hold_runs(tx, hold))

    async def claim_requests(self, term: int, requests: list[int]) -> None:
        await self._lead(lambda tx: postgres.recovery.claim_requests(tx, term, requests))

    async def answer(self, answer: Answer) -> None:
        await self._lead(lambda tx: postgres.recovery.answer(tx, answer))

    async def withdraw(self, withdraw: Withdraw) -> list[tuple[int, int]]:
        return await self._lead(lambda tx: postgres.recovery.withdraw(tx, withdraw))

    async def lives(self) -> list[WorkerLife]:
        await self._clear_the_way()
        return await self._read(postgres.recovery.lives)

    async def expire(self, expire: Expire) -> list[Lost]:
        return await self._lead(lambda tx: postgres.recovery.expire(tx, expire))

    async def reassign_lanes(self, reassign: ReassignLanes) -> int:
        return await self._lead(lambda tx: postgres.recovery.reassign_lanes(tx, reassign))

    async def remove_unused(self, remove: RemoveUnused) -> int:
        for _ in range(REMOVE_UNUSED_TRIES):
            after = await self._lead(lambda tx: postgres.recovery.remove_unused(tx, remove))
            if after is not None:
                return after
            await asyncio.sleep(REMOVE_UNUSED_PAUSE_SECONDS)
        raise StoreBusy(
            "removing empty lanes timed out: submissions hold the lock.",
            hint="The leader tries again later.",
        )

    async def bound_cache(self, bound: BoundCache) -> bool:
        return await self._lead(lambda tx: postgres.recovery.bound_cache(tx, bound))

    # -- workers

    async def heartbeat(self, heartbeat: Heartbeat) -> Renewed:
        return await self._write(lambda tx: postgres.worker_verbs.heartbeat(tx, heartbeat))

    async def leave(self, worker: str) -> None:
        await self._write(lambda tx: postgres.worker_verbs.leave(tx, worker))

    async def orders(self, worker: str) -> list[Order]:
        return await self._read(lambda tx: postgres.worker_verbs.orders(tx, worker))

    async def accept(self, accept: Accept) -> list[Started]:
        started, stale = await self._write(lambda tx: postgres.worker_verbs.accept(tx, accept))
        self._stale += stale
        return started

    async def finish(self, finish: Finish) -> list[tuple[int, int]]:
        stale = await self._write(lambda tx: postgres.worker_verbs.finish(tx, finish))
        self._stale += len(stale)
        return stale

    async def keep_logs(self, rows: list[LogRow]) -> None:
        await self._write(lambda tx: tx.run("log_add", *columns(sorted(rows), 6)))

    # -- values

    async def put_blob(self, data: bytes) -> str:
        # Content has one name: writing it twice is writing it once.
        return await self._query(lambda tx: reads.put_blob(tx, data))

    async def get_blob(self, digest: str) -> bytes:
        return await self._query(lambda tx: reads.get_blob(tx, digest))

    async def graph(self, digest: str) -> bytes:
        return await self._read(lambda tx: reads.graph(tx, digest))

    async def identity(self) -> str:
        """Of `blobs_elsewhere.RowStore`."""
        row = await self._query(lambda tx: tx.one("store_identity"))
        return str(row[0]) if row else ""

    # -- reads: the others are in reading.py

    async def stale_writes(self) -> int:
        return self._stale

    @property
    def listener_replaced(self) -> int:
        """How often the connection that listens was lost and made anew."""
        return 0 if self._state is None else self._state.listener.replaced

    async def provision(self, provision: Provision) -> None:
        await self._write(lambda tx: postgres.leader_verbs.provision(tx, provision))

    async def forget_asked(self, names: list[str]) -> None:
        await self._write(lambda tx: postgres.leader_verbs.forget(tx, names))

    async def provisioned(self) -> ProvisionState:
        return await self._query(postgres.leader_verbs.provisioned)

    # -- waking

    async def wait_for_offers(self, worker: str, timeout_us: int) -> OfferNotice:
        return await self._opened.listener.wait_for_offers(worker, timeout_us / SECOND)

    async def wait_for_ends(self, timeout_us: int) -> RunsEnded:
        return await self._opened.listener.ended_runs(timeout_us / SECOND)

    async def forget_ends(self) -> bool:
        return self._opened.listener.forget_ends()

    @property
    def listens(self) -> bool:
        return (
            self._state is not None and self.options.offers_channel in self._state.listener.channels
        )

    async def offer_again(self, offers: list[Order]) -> None:
        await self._lead(lambda tx: postgres.commits.offer_again(tx, offers))

    async def wait_for_changes(self, timeout_us: int) -> ChangeNotice:
        return await self._opened.listener.changes(timeout_us / SECOND)

    async def wait(self, timeout_us: int, since: int = -1) -> int:
        listener = self._opened.listener
        # Real time, not the store's: a test's clock does not make anybody wait longer.
        seen = self._looked_at if since < 0 else since
        self._looked_at = mark = await listener.wait(seen, timeout_us / SECOND)
        return mark
