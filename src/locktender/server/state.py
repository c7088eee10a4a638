"""What a server or worker answers about its state: `/health` and `/api/v1/demand`.

`/health` is *degraded*, with status 503, when the store does not answer or the
worker has no lease: a supervisor may restart the process. That there is no
leader is reported too, but does not make this process unhealthy.

`/api/v1/demand` says how many tasks lack only a worker, and what they need of
one. The leader has the figure from its sweep of every second. Another server
rebuilds the ledger from rows and asks it by the same rules; it writes nothing.
That takes as long as a take-over: it is done in a thread with a loop and a store
of its own, at most once in some seconds, so that `/health` and the server's own
part in the election do not wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

import msgspec

from locktender.base import version
from locktender.base.clock import SECOND
from locktender.base.config import Settings
from locktender.base.errors import RoleRefused, StoreError
from locktender.base.model import BlockingSession, HeldUp
from locktender.client.views import instant
from locktender.engine import Engine
from locktender.kernel.demand import Demand
from locktender.observe.rebuilt import rebuild
from locktender.observe.store_notes import provisioner_words, troubles
from locktender.store.open import store_for

STORE_SECONDS = 1.0
"""How long the store may take to answer."""
LEADER_KEPT_SECONDS = 0.2
TROUBLES_KEPT_SECONDS = 2.0


class WorkerHealth(msgspec.Struct, frozen=True):
    id: str
    lease: Literal["held", "lost"]
    draining: bool
    in_flight: int


class Health(msgspec.Struct, frozen=True):
    status: Literal["ok", "degraded"]
    problems: tuple[str, ...]
    role: Literal["server", "worker"]
    leads: bool
    term: int | None
    """While it leads."""
    leader: str | None
    """The leader, by the store; None: there is none, or the store did not answer."""
    store: Literal["ok", "unreachable"]
    worker: WorkerHealth | None
    version: str
    since: datetime
    history_lag_seconds: float = 0.0
    """How far audit, checkpoints and pruning lag behind an open transaction. Runs do not wait for it."""
    held_up_by: tuple[BlockingSession, ...] = ()
    """Sessions of the database server that delay the store."""


class HealthAnswers:
    def __init__(self, engine: Engine, since: int, held_up: Fresh[HeldUp]) -> None:
        self._engine = engine
        self._held_up = held_up
        self._since = since
        self._leader = Fresh(engine.store.leader, LEADER_KEPT_SECONDS)
        self._troubles = Fresh(lambda: troubles(engine.store), TROUBLES_KEPT_SECONDS)

    async def answer(self) -> tuple[Health, bool]:
        """The answer, and whether the process can go on."""
        problems: list[str] = []
        term = self._engine.metrics.term
        leader: str | None = None
        reachable = True
        held_up = HeldUp()
        try:
            leader = await self._leader.get(STORE_SECONDS)
            if term and self._engine.election is not None:
                # The store's answer is a moment old: this process may have been elected since.
                leader = self._engine.election.owner
            if leader is None:
                problems.append("there is no leader")
            held_up = await self._held_up.get(STORE_SECONDS)
            problems += [
                each.text() for each in held_up.sessions if each.holds in ("lock", "write")
            ]
            with suppress(
                RoleRefused
            ):  # a worker's role reads no history: the servers' answers have these
                problems += await self._troubles.get(STORE_SECONDS)
            problems += self._engine.metrics.audit.problems()
        except TimeoutError:
            reachable = False
            problems.append(f"the store does not answer within {STORE_SECONDS:g} s")
        except StoreError:
            reachable = False
            problems.append("the store cannot be read; the log says why")
        worker = self._worker()
        lost = worker is not None and worker.lease == "lost"
        if lost:
            problems.append("the worker has lost its lease")
        found = Health(
            status="degraded" if problems else "ok",
            problems=tuple(problems),
            role="server" if worker is None else "worker",
            leads=term > 0,
            term=term or None,
            leader=leader,
            store="ok" if reachable else "unreachable",
            worker=worker,
            version=version.installed(),
            since=instant(self._since),
            history_lag_seconds=held_up.lag_us / SECOND,
            held_up_by=held_up.sessions,
        )
        return found, reachable and not lost

    async def close(self) -> None:
        await self._leader.close()
        await self._troubles.close()

    def _worker(self) -> WorkerHealth | None:
        if self._engine.membership is None:
            return None
        worker = self._engine.worker
        lease = "lost" if self._engine.lost else "held"
        return WorkerHealth(worker.id, lease, worker.draining, worker.in_flight)


T = TypeVar("T")
SHARE = 10
"""A slow answer is made less often: at most one part in this many of the time is spent on it."""


class Fresh(Generic[T]):
    """One answer for all requests within a while: the store is read at most once at a time.

    A client that disconnects does not cancel the answer of the others.
    """

    def __init__(self, make: Callable[[], Awaitable[T]], seconds: float) -> None:
        """An answer of `make` serves for `seconds`, or longer if it took long."""
        self._make = make
        self._seconds = seconds
        self._task: asyncio.Task[T] | None = None
        self._good_until = 0.0

    async def get(self, timeout_seconds: float) -> T:
        """The answer, or what `make` raised. `TimeoutError`: there is none yet; it is still being made."""
        task = self._task
        if task is None or (task.done() and self._now() >= self._good_until):
            task = self._task = asyncio.create_task(self._made())
            task.add_done_callback(_seen)
        await asyncio.wait({task}, timeout=timeout_seconds)
        if not task.done():
            raise TimeoutError
        return task.result()

    def drop(self) -> None:
        """The next one who asks gets a new answer: something was changed here."""
        self._good_until = 0.0

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _made(self) -> T:
        began = self._now()
        try:
            return await self._make()
        finally:
            took = self._now() - began
            self._good_until = self._now() + max(self._seconds, took * SHARE)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _seen(task: asyncio.Task[Any]) -> None:
    """Reads the error of an answer whose clients have all disconnected, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


DEMAND_KEPT_SECONDS = 3.0
DEMAND_TIMEOUT_SECONDS = 5.0
MAX_CYCLES = 100
MAX_NEEDS = 1_000
"""Entries in one answer, those that have waited longest; the total counts all."""


class Need(msgspec.Struct, frozen=True):
    """Tasks that ask the same of a worker."""

    executor: str
    needs: dict[str, str]
    """Labels that a worker must have."""
    step: str
    signature: str
    """The version of the step: a worker matches if it has this one."""
    tasks: int
    matching_workers: int
    since: datetime
    """Since when the one that has waited longest has lacked only a worker."""


class DemandAnswer(msgspec.Struct, frozen=True):
    total: int
    by_need: tuple[Need, ...]
    workers: int
    as_of: datetime
    leader: str | None
    provisioner: str | None = None
    """What the leader's provisioner last did, or why it does nothing; None where it has none."""


class DemandAnswers:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._from_rows = Fresh(self._rebuilt, DEMAND_KEPT_SECONDS)

    async def answer(self) -> DemandAnswer:
        leader, overflow = self._engine.leader, self._engine.overflow
        if leader is None or not leader.sweep.demand_at:
            return await self._from_rows.get(DEMAND_TIMEOUT_SECONDS)
        found = _answer(leader.sweep.demand, leader.sweep.demand_at, leader.owner)
        said = None if overflow is None else overflow.describe()
        return msgspec.structs.replace(found, provisioner=said)

    async def close(self) -> None:
        await self._from_rows.close()

    async def _rebuilt(self) -> DemandAnswer:
        # A store that cannot be read is found out here, without another connection to it.
        leader = await self._engine.store.leader()
        settings = self._engine.settings
        return await asyncio.to_thread(lambda: asyncio.run(_from_rows(settings, leader)))


async def _from_rows(settings: Settings, leader: str | None) -> DemandAnswer:
    store = store_for(settings)
    await store.open()
    try:
        scheduler, snapshot = await rebuild(store)
        said = await provisioner_words(store)
    finally:
        await store.close()
    # What a worker would get at once is no demand: it is granted first, in this copy alone.
    for _ in range(MAX_CYCLES):
        if not scheduler.cycle(snapshot.now).unfinished:
            break
    found = _answer(scheduler.sweep(snapshot.now), snapshot.now, leader)
    return msgspec.structs.replace(found, provisioner=said)


def _answer(demand: Demand, at: int, leader: str | None) -> DemandAnswer:
    needs = tuple(
        Need(
            want.executor,
            dict(want.needs),
            want.step,
            want.signature,
            want.tasks,
            want.workers,
            instant(want.since or at),
        )
        for want in demand.wants[:MAX_NEEDS]
    )
    return DemandAnswer(demand.total, needs, demand.workers, instant(at), leader)
