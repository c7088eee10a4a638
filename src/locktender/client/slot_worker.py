"""Holders: workers that run no code. They accept the slots that `slots()` asks for and keep them until told.

Who meets here: the leader, which offers a held task to the one holder its label
names, and this process, which accepts, beats and finishes. The rules are those
of every worker. A hold is ours from a committed acceptance until its finish or
until the holder's lease has passed; if the lease cannot be renewed in time the
hold is declared lost *before* that, so that nobody else gets the slots while
the body still believes in them.

A holder has a store of its own, beside the client's: what an engine in this
very process commits then wakes it like any other process's commit.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from locktender.base.background import end_tasks
from locktender.base.clock import SECOND, Clock
from locktender.base.errors import LocktenderError, StoreError
from locktender.base.model import WorkerRow
from locktender.base.names import UNLIMITED
from locktender.base.states import TaskState
from locktender.store.protocol import Accept, Beat, Ended, Finish, Started, Store
from locktender.store.retry import retry_while_away

log: logging.Logger = logging.getLogger(__name__)

LABEL = "holder"
BEATS_PER_LEASE = 5
MARGIN = 10
"""A hold is given up when a tenth of its lease is left and it could not be renewed."""
WRITE_AGAIN_SECONDS = 0.1
LATE = "its lease could not be renewed in time"


@dataclass(slots=True)
class Hold:
    """Slots that are ours, or were: `lost` says why they are not any more."""

    task: int
    token: int
    on_lost: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    lost: str | None = None
    stopped: bool = False
    """Told to end by the leader: it still counts as ours until it is finished."""

    def lose(self, why: str) -> None:
        if self.lost is None:
            self.lost = why
            for tell in self.on_lost:
                tell()


class SlotWorker:
    def __init__(self, store: Store, clock: Clock, lease_us: int) -> None:
        host = socket.gethostname()
        self.id: str = f"hold-{host}-{os.getpid()}-{os.urandom(6).hex()}"
        self.gone: bool = False
        """Its lease is lost or it was closed: ask for slots with a new one."""
        self._store = store
        self._clock = clock
        self._lease_us = lease_us
        self._lease_ends = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._expected: dict[str, asyncio.Future[Hold]] = {}
        self._held: dict[int, Hold] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        await self._beat()
        self._tasks = [
            asyncio.create_task(self._keep_beating(), name="locktender-hold-beat"),
            asyncio.create_task(self._watch(), name="locktender-hold-watch"),
        ]

    def expect(self, run_id: str) -> asyncio.Future[Hold]:
        """To be called before the run is submitted: its offer may come at once."""
        future: asyncio.Future[Hold] = asyncio.get_running_loop().create_future()
        self._expected[run_id] = future
        return future

    def forget(self, run_id: str) -> None:
        """Nobody waits for it any more; an offer that still comes is given back."""
        self._expected.pop(run_id, None)

    async def release(self, hold: Hold) -> None:
        """Gives the slots back. Repeated while the lease lives: after that the leader takes them itself."""
        self._held.pop(hold.token, None)
        state = TaskState.CANCELLED if hold.stopped else TaskState.COMPLETED
        ended = Ended(hold.task, hold.token, state, b"null", reason=hold.lost or "")
        if self.gone:
            return
        with suppress(StoreError):
            if await retry_while_away(
                lambda: self._store.finish(Finish(self.id, [ended])),
                f"giving back the slots of task {hold.task}",
                lambda _: not self.gone,
            ):
                hold.lose("it had been given to others")

    async def close(self) -> None:
        """Gives everything back; bodies that still believe in their slots are told."""
        await end_tasks(self._tasks)
        if self._alarm is not None:
            self._alarm.cancel()
        for hold in list(self._held.values()):
            hold.stopped = True
            hold.lose("the client was closed")
            with suppress(LocktenderError):
                await self.release(hold)
        if not self.gone:
            self.gone = True
            with suppress(LocktenderError):
                await self._store.leave(self.id)

    # -- offers and orders -------------------------------------------------------------------------

    async def _watch(self) -> None:
        mark = -1
        while not self.gone:
            try:
                mark = await self._store.wait(SECOND, mark)
                if self._expected or self._held:
                    await self._carry_out()
            except StoreError as error:
                log.warning("orders of holder %s are not read: %s", self.id, error)
                await asyncio.sleep(WRITE_AGAIN_SECONDS)

    async def _carry_out(self) -> None:
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
        hold = Hold(started.task.id, started.task.token)
        future = self._expected.pop(started.run_id, None)
        if future is None or future.done():
            hold.stopped = True
            await self.release(hold)
            return
        self._held[hold.token] = hold
        future.set_result(hold)

    # -- the lease ---------------------------------------------------------------------------------

    async def _beat(self) -> None:
        sent = self._clock.monotonic()
        beaten = await self._store.beat(Beat(self._row(), self._lease_us))
        if beaten.lease_until == 0:
            self._lose("its lease had passed")
            return
        # Counted from before the renewal was sent: never later than the store's own end.
        self._lease_ends = sent + self._lease_us
        self._set_alarm()

    def _set_alarm(self) -> None:
        """Nothing may delay giving up: not the next beat, not a store that does not answer."""
        if self._alarm is not None:
            self._alarm.cancel()
        left = self._lease_ends - self._lease_us // MARGIN - self._clock.monotonic()
        loop = asyncio.get_running_loop()
        self._alarm = loop.call_later(max(0, left) / SECOND, self._lose, LATE)

    async def _keep_beating(self) -> None:
        every = self._lease_us / BEATS_PER_LEASE / SECOND
        while not self.gone:
            await asyncio.sleep(every)
            try:
                async with asyncio.timeout(every):
                    await self._beat()
            except (StoreError, TimeoutError) as error:
                log.warning("the lease of holder %s is not renewed: %s", self.id, error)
            # The loop's own clock may stand still while the machine sleeps; this one does not.
            if self._clock.monotonic() > self._lease_ends:
                self._lose(LATE)

    def _lose(self, why: str) -> None:
        if self.gone:
            return
        self.gone = True
        log.error("the slots of holder %s are lost: %s", self.id, why)
        for hold in list(self._held.values()):
            hold.lose(why)

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
    """The holders of one client: one for each length of lease, made when first asked for."""

    def __init__(self, make_store: Callable[[], Store], clock: Clock) -> None:
        self._make_store = make_store
        self._clock = clock
        self._store: Store | None = None
        self._holders: dict[int, SlotWorker] = {}
        self._lock = asyncio.Lock()

    async def get(self, lease_us: int) -> SlotWorker:
        async with self._lock:
            holder = self._holders.get(lease_us)
            if holder is None or holder.gone:
                holder = SlotWorker(await self._opened(), self._clock, lease_us)
                await holder.open()
                self._holders[lease_us] = holder
            return holder

    async def _opened(self) -> Store:
        if self._store is None:
            store = self._make_store()
            await store.open()
            self._store = store
        return self._store

    async def close(self) -> None:
        for holder in self._holders.values():
            await holder.close()
        if self._store is not None:
            await self._store.close()
