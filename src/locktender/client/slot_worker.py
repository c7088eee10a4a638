"""Slot workers: they run no code. They accept the slots that `slots()` asks for and keep them until released.

Who meets here: the leader, which offers a held task to the one slot worker that its label names, and this
process, which accepts, renews and finishes. The rules are those of every worker. A hold is ours from a committed
acceptance until its finish or until the lease has passed. If the lease cannot be renewed in time the hold is
declared lost *before* that, so that no other process gets the slots while the body still relies on them.

A slot worker has a store of its own, beside the client's: what an engine in this process commits wakes it like
any other process's commit. The lease thread renews its lease: a body that blocks the loop does not lose it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable

import msgspec

from locktender.base.background import end_tasks, repeat_forever, start_task
from locktender.base.changes import End
from locktender.base.clock import SECOND, Clock
from locktender.base.errors import LeaseLost, StoreError
from locktender.base.model import WorkerRow
from locktender.base.names import UNLIMITED
from locktender.base.states import TaskState
from locktender.store.lease_thread import Lease, LeaseThread
from locktender.store.protocol import Accept, Finish, Heartbeat, Started, Store
from locktender.store.retry import repeated

log: logging.Logger = logging.getLogger(__name__)

LABEL = "holder"
RENEWALS_PER_LEASE = 5
MARGIN_PART = 10
"""A hold is given up when a tenth of its lease is left and it could not be renewed."""
RETRY_SECONDS = 0.1


class Hold(msgspec.Struct):
    """Slots that are ours, or were: `lost` says why they are not any more."""

    task: int
    token: int
    on_lost: list[Callable[[], None]] = msgspec.field(default_factory=list[Callable[[], None]])
    lost: str | None = None
    stopped: bool = False
    """Cancelled by the leader: it still counts as ours until it is finished."""

    def lose(self, why: str) -> None:
        if self.lost is None:
            self.lost = why
            for callback in self.on_lost:
                callback()


class SlotWorker(Lease):
    def __init__(self, store: Store, clock: Clock, leases: LeaseThread, lease_us: int) -> None:
        renew_us, margin_us = lease_us // RENEWALS_PER_LEASE, lease_us // MARGIN_PART
        super().__init__("the lease of held slots", lease_us, renew_us, margin_us)
        self.id: str = f"hold-{socket.gethostname()}-{os.getpid()}-{os.urandom(6).hex()}"
        self.gone: bool = False
        """Its lease is lost or it was closed: ask for slots with a new one."""
        self._store = store
        self._clock = clock
        self._leases = leases
        self._joined = False
        self._mark = -1
        self._expected: dict[str, asyncio.Future[Hold]] = {}
        self._held: dict[int, Hold] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        await self._leases.add(self)
        watch = repeat_forever(self._watch, "read the offers of held slots", RETRY_SECONDS)
        self._tasks = [asyncio.create_task(watch, name="locktender-slots")]

    def expect(self, run_id: str) -> asyncio.Future[Hold]:
        """To be called before the run is submitted: its offer may come at once."""
        future: asyncio.Future[Hold] = asyncio.get_running_loop().create_future()
        self._expected[run_id] = future
        return future

    def forget(self, run_id: str) -> None:
        """The caller waits no more; an offer that still comes is given back."""
        self._expected.pop(run_id, None)

    async def release(self, hold: Hold) -> None:
        """Gives the slots back. Repeated while the lease lives: after that the leader takes them itself."""
        self._held.pop(hold.token, None)
        state = TaskState.CANCELLED if hold.stopped else TaskState.COMPLETED
        end = End(hold.task, hold.token, state, b"null", reason=hold.lost or "")
        finish = Finish(self.id, [end])
        try:
            self._check_lease()
            stale = await repeated(
                lambda: self._store.finish(finish),
                "the release of slots",
                self._clock,
                self._check_lease,
                self.lease_us / SECOND,
            )
        except (LeaseLost, StoreError):
            if self.gone and not self._held:
                # No body relies on them any more. While one does, the proof that this process lives keeps them.
                await self._leases.remove(self)
            return
        if stale:
            hold.lose("it had been given to others")

    def _check_lease(self) -> None:
        if self.gone:
            raise LeaseLost("the lease of these slots is over.")

    async def close(self) -> None:
        """Gives everything back; bodies that still rely on their slots learn that they lost them."""
        await end_tasks(self._tasks)
        for hold in list(self._held.values()):
            hold.stopped = True
            hold.lose("the client was closed")
            await self.release(hold)
        self.gone = True
        await self._leases.remove(self)

    # -- offers and stops --------------------------------------------------------------------------

    async def _watch(self) -> None:
        self._mark = await self._store.wait(SECOND, self._mark)
        if not self.gone and (self._expected or self._held):
            await self._read_offers()

    async def _read_offers(self) -> None:
        orders = await self._store.orders(self.id)
        offers = [(order.task, order.token) for order in orders if order.kind == "offer"]
        if offers:
            for started in await self._store.accept(Accept(self.id, offers)):
                await self._start(started)
        for order in orders:
            hold = self._held.get(order.token)
            if order.kind == "stop" and hold is not None:
                hold.stopped = True
                hold.lose(f"it was cancelled{f': {order.reason}' if order.reason else ''}")

    async def _start(self, started: Started) -> None:
        hold = Hold(started.task, started.token)
        future = self._expected.pop(started.run_id, None)
        if future is None or future.done():
            hold.stopped = True
            await self.release(hold)
            return
        self._held[hold.token] = hold
        future.set_result(hold)

    # -- the lease ---------------------------------------------------------------------------------

    async def renew(self, store: Store) -> str | None:
        renewed = await store.heartbeat(Heartbeat(self._row(), self.lease_us, renews=self._joined))
        self._joined = True
        return None if renewed.lease_until else "it was declared lost"

    async def leave(self, store: Store) -> None:
        await store.leave(self.id)

    def lost(self, why: str) -> None:
        if self.gone:
            return
        self.gone = True
        log.error("slot worker %s lost its slots: %s", self.id, why)
        for hold in list(self._held.values()):
            hold.lose(why)
        if not self._held:
            self._tasks.append(start_task(self._leases.remove(self), "leave with lost slots"))

    def _row(self) -> WorkerRow:
        return WorkerRow(
            id=self.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            version="hold",
            permits={"hold": UNLIMITED},
            total=UNLIMITED,
            claim=UNLIMITED,
            labels={LABEL: self.id},
            in_flight=len(self._held),
        )


class SlotWorkers:
    """The slot workers of one client: one for each length of lease, made when first asked for."""

    def __init__(
        self, make_store: Callable[[], Store], clock: Clock, leases: LeaseThread | None
    ) -> None:
        """`leases`: the thread of the engine in this process, if there is one."""
        self._make_store = make_store
        self._clock = clock
        self._leases = leases or LeaseThread(self._twin, clock)
        self._own_thread = leases is None
        self._store: Store | None = None
        self._workers: dict[int, SlotWorker] = {}
        self._lock = asyncio.Lock()

    async def get(self, lease_us: int) -> SlotWorker:
        async with self._lock:
            worker = self._workers.get(lease_us)
            if worker is None or worker.gone:
                if worker is not None:
                    await worker.close()
                worker = SlotWorker(await self._opened(), self._clock, self._leases, lease_us)
                await worker.open()
                self._workers[lease_us] = worker
            return worker

    async def _opened(self) -> Store:
        if self._store is None:
            store = self._make_store()
            await store.open(migrates=False)
            self._store = store
        return self._store

    def _twin(self) -> Store:
        if self._store is None:
            raise RuntimeError("a slot worker has a store before it has a lease.")
        return self._store.twin()

    async def close(self) -> None:
        for worker in self._workers.values():
            await worker.close()
        if self._own_thread:
            await self._leases.close()
        if self._store is not None:
            await self._store.close()
