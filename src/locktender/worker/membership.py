"""The membership of this process's worker: its lease, its offers, the ends of its attempts, its drain.

The lease is renewed by a thread (`store/lease_thread.py`). If it is lost, attempts are stopped before it ends, so
that no other worker starts them beside us. A thread cannot be stopped: if one still runs then, a worker's
process ends; in a process that is the user's own (embedded) the worker can write nothing and takes no work
until that thread has ended. Then it joins again, under a new id.

The worker accepts offers and writes the ends of those attempts itself, in batches. What a leader in this process
starts without an offer, it also ends with its own commits; an attempt that crosses from one to the
other is fenced by its token.

From the moment a worker is asked to end, each renewal of its lease carries its *drain list* (`WorkerRow.leaves`):
the attempts that it still has. If it is then declared lost, they are handed back and not abandoned.
"""

from __future__ import annotations

import asyncio
import logging
import os
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Protocol

import msgspec

from locktender.base.background import BackgroundTasks, end_tasks, repeat_forever, until_done
from locktender.base.changes import End, Order
from locktender.base.clock import Clock
from locktender.base.config import Settings
from locktender.base.errors import LocktenderError
from locktender.base.model import WorkerRow
from locktender.flows.registry import Registry
from locktender.observe.metrics import Metrics
from locktender.store.lease_thread import LeaseThread
from locktender.store.protocol import Finish, Store
from locktender.worker.lease import WorkerLease
from locktender.worker.lifetime import Lifetime
from locktender.worker.offers import OfferHandler
from locktender.worker.worker import LocalWorker

log: logging.Logger = logging.getLogger(__name__)
MAX_ENDS_PER_WRITE = 500
RETRY_FINISH_SECONDS = 0.2
RETRY_JOIN_SECONDS = 0.5
PRESSURE_EVERY_SECONDS = 0.25
PRESSURE_DELAY_SECONDS = 0.005
"""After an attempt began or ended: many begin and end in that time, and one reading serves them all."""
LAST_ACCEPT_SECONDS = LAST_ENDS_SECONDS = 5.0
"""How long a worker that ends waits for the answer to its last acceptance, and until its last ends are written."""
DRAIN_LIST_SECONDS = 3.0
"""How long a process that ends hard waits until its drain list is written."""
MAX_DRAIN_LIST = 1_000
"""With so many attempts named a row stays below 64 kB."""
FLUSH_POLL_SECONDS = 0.005


class OwnLeader(Protocol):
    """The leader in this process, while it leads."""

    def ended(self, end: End) -> None:
        """An attempt of the worker ended: the leader's next commit writes it."""
        ...

    def wake(self) -> None:
        """The worker wrote something that the leader should read."""
        ...

    def worker_changed(self) -> None:
        """The worker describes itself differently now."""
        ...

    async def settle(self) -> None:
        """Returns when every end handed in so far has been written."""
        ...

    def unwritten(self) -> list[End]:
        """Called from any thread."""
        ...

    def unstarted(self) -> list[tuple[int, int]]:
        """Attempts that may be written as running and were not started. Called from any thread."""
        ...

    def close(self) -> None:
        """Its term must end: the worker has lost its lease."""
        ...


class Membership:
    def __init__(
        self,
        store: Store,
        settings: Settings,
        clock: Clock,
        known: Registry,
        metrics: Metrics,
        leases: LeaseThread,
        *,
        ends_itself: bool = False,
    ) -> None:
        self.lost: asyncio.Event = asyncio.Event()
        """Set while the worker has no lease: it was lost, and what it ran has not ended yet."""
        self._store = store
        self._settings = settings
        self._clock = clock
        self._registry = known
        self._leader: OwnLeader | None = None
        self._metrics = metrics
        self._leases = leases
        self._unwritten: list[End] = []
        self._finish_wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._background = BackgroundTasks()
        self._pressure_due = False
        self._published_names = 0
        self._closing = False
        self._draining = False
        self._retiring = False
        self._ending = False
        self.lifetime: Lifetime = Lifetime(settings, clock, awaited=ends_itself)
        """Of the process's worker, under whichever id it has joined."""
        self.worker: LocalWorker = self._new_worker()
        self._lease = self._new_lease()
        self.offers: OfferHandler = OfferHandler(store, settings, metrics, self)

    @property
    def has_lease(self) -> bool:
        return not self.lost.is_set()

    # -- the leader in this process ----------------------------------------------------------------

    @property
    def leads(self) -> bool:
        return self._leader is not None

    def led_by(self, leader: OwnLeader | None) -> None:
        """From here on this process leads, or does not any more."""
        self._leader = leader

    def take_back(self, ends: list[End], unstarted: list[tuple[int, int]]) -> None:
        """What a term of this process left open: `ends` to write, `unstarted` attempts to accept again."""
        if ends:
            self._write(ends)
        if unstarted:
            self.offers.add_unanswered(unstarted)

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join. Returns when the worker has its lease."""
        self.worker.joins(await self._store.now())
        await self._leases.add(self._lease)
        self.worker.watch_loop()
        finish = repeat_forever(self._finish, "write ends of attempts", RETRY_FINISH_SECONDS)
        pressure = repeat_forever(
            self._check_pressure, "read the pressure on this worker", PRESSURE_EVERY_SECONDS
        )
        self._tasks = [
            asyncio.create_task(self.offers.run(), name="locktender-offers"),
            asyncio.create_task(finish, name="locktender-finish"),
            asyncio.create_task(pressure, name="locktender-pressure"),
        ]

    async def drain(self) -> None:
        """Take no more tasks; what runs may finish."""
        if not self.worker.draining:
            log.info("worker %s drains: %s tasks may finish", self.worker.id, self.worker.in_flight)
        self._draining = True
        self.worker.draining = True
        if self._leader is not None:
            self._leader.worker_changed()
        await self.publish()

    async def undrain(self) -> bool:
        """Take tasks again; whether it does. A process that was told to end goes on with that."""
        if self._ends:
            log.info("failed to undrain worker %s: its process is ending", self.worker.id)
            return False
        self._draining = self.worker.draining = False
        if self._ends:
            # A thread said so in between (`end_requested`).
            self.worker.draining = True
            return False
        log.info("worker %s takes tasks again", self.worker.id)
        if self._leader is not None:
            self._leader.worker_changed()
        await self.publish()
        return True

    @property
    def _ends(self) -> bool:
        return self._retiring or self._closing or self._ending

    async def retire(self) -> None:
        """Take no more tasks. Returns when all that runs has finished, however long it takes.

        An attempt that was asked to stop and does not is not waited for: it might never end.
        """
        self._retiring = True
        await self._take_no_more()
        if self._leader is not None:
            await self._leader.settle()  # what its commits on their way start here
        while self.worker.in_flight > self.worker.stopping():
            with suppress(TimeoutError):
                async with asyncio.timeout(PRESSURE_EVERY_SECONDS):
                    await self.worker.emptied()

    async def finish(self, grace_us: int) -> list[int]:
        """What runs may end within the grace, the rest is handed back. Returns what cannot be ended."""
        self._closing = self._ending = True
        await self._take_no_more()
        left = await self.worker.close(grace_us)
        await self._flush()
        return left

    async def _take_no_more(self) -> None:
        # A store that does not answer does not keep the process: its lease ends by itself.
        with suppress(LocktenderError, TimeoutError):
            async with asyncio.timeout(LAST_ACCEPT_SECONDS):
                await self.drain()
        # An offer that is being accepted right now is ours when the answer comes: it starts, and may finish.
        await self.offers.settled(LAST_ACCEPT_SECONDS)

    async def leave(self, left: list[int]) -> None:
        await end_tasks(self._tasks)
        await self._background.end()
        if left and self._settings.exit_when_stuck:
            # They end only with this process. Their tasks are handed back when it is certainly gone: other
            # workers would start them within milliseconds.
            log.critical("failed to stop %s step bodies: this process ends, to end them", len(left))
            with suppress(LocktenderError, TimeoutError):
                async with asyncio.timeout(DRAIN_LIST_SECONDS):
                    await self.publish()
            self.worker.empty_work_root()
            os._exit(75)
        if left:
            # Bodies in threads, or that ignore their cancellation. The lease is kept until they end, so that
            # their slots are not given to others beside them.
            log.warning("failed to stop %s tasks: their slots stay taken", len(left))
            self._lease.keep_while = self.worker.outlives
            return
        await self._leases.remove(self._lease)
        self.worker.forget()

    def end_requested(self) -> None:
        """This process is asked to end while its loop is blocked: publish the drain list.

        From any thread but the loop's. If the store does not answer, the next renewal tries again.
        """
        # Draining too: what is handed back for it must not be offered to it again.
        self._ending = self.worker.draining = True
        with suppress(LocktenderError, TimeoutError, CancelledError):
            self._leases.renew_from_thread(self._lease, DRAIN_LIST_SECONDS)

    def ends_hard(self) -> None:
        """The process ends right after this, whatever runs. From any thread but the loop's."""
        self.end_requested()
        self.worker.empty_work_root()

    def _drain_list(self) -> tuple[tuple[int, int], ...]:
        """Attempts that are not charged if this process ends without them. From any thread."""
        ends, attempts = list(self._unwritten), self.worker.unended() + self.offers.unanswered()
        if (leader := self._leader) is not None:
            ends += leader.unwritten()
            attempts += leader.unstarted()
        found = dict.fromkeys(attempts)
        found |= dict.fromkeys((end.task, end.token) for end in ends)
        return tuple(found)

    # -- what its row says -------------------------------------------------------------------------

    def describe(self) -> WorkerRow:
        """The worker as its row says, or will say with the next renewal. From any thread."""
        row = self.worker.describe(-1 if self.leads else self.worker.pressure.standing)
        row = msgspec.structs.replace(row, ending=self._ends) if self._ends else row
        if not self._ending:
            return row
        left = self._drain_list()
        if len(left) > MAX_DRAIN_LIST:
            return msgspec.structs.replace(row, leaves_all=True)
        return msgspec.structs.replace(row, leaves=left)

    async def publish(self) -> None:
        """Renew the lease now: the worker's row has changed."""
        await self._leases.renew(self._lease)

    def publish_names(self) -> None:
        """Steps and flows may have been defined since the worker described itself."""
        known = len(self._registry.steps) + len(self._registry.flows)
        if known != self._published_names:
            self._published_names = known
            self._publish_soon()

    def _publish_soon(self) -> None:
        if self._leader is not None:
            self._leader.worker_changed()
        else:
            self._background.start(self._try_publish(), "publish the worker's row")

    async def _try_publish(self) -> None:
        while self.has_lease:
            with suppress(LocktenderError):
                await self.publish()
                return
            await asyncio.sleep(RETRY_FINISH_SECONDS)

    # -- pressure ----------------------------------------------------------------------------------

    async def _check_pressure(self) -> None:
        self._read_pressure()
        if self.worker.report():
            self._background.start(self._try_publish(), "publish the worker's row")
        await asyncio.sleep(PRESSURE_EVERY_SECONDS)

    def attempts_changed(self) -> None:
        """One reading of the pressure follows, however many attempts begin and end until then."""
        if not self._pressure_due:
            self._pressure_due = True
            asyncio.get_running_loop().call_later(PRESSURE_DELAY_SECONDS, self._read_pressure)

    def _read_pressure(self) -> None:
        self._pressure_due = False
        if self.worker.ask().urgent and not self._closing:
            self._publish_soon()

    # -- ends --------------------------------------------------------------------------------------

    def deliver(self, end: End) -> None:
        """An attempt of the worker ended."""
        # The leader may not have read yet that an offer was accepted: that end is the worker's to write.
        accepted = self.offers.ended(end.token)
        if not accepted and self._leader is not None:
            self._leader.ended(end)
        else:
            self._write([end])

    def wake_leader(self) -> None:
        if self._leader is not None:
            self._leader.wake()

    def receive(self, orders: list[Order]) -> None:
        self._background.start(self.offers.receive(orders), "answer offers")

    def _write(self, ends: list[End]) -> None:
        self._unwritten += ends
        self._finish_wake.set()

    async def _flush(self) -> None:
        """The last ends have a moment to be written; after that the lease ends their attempts."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_ENDS_SECONDS):
                if self._leader is not None:
                    await self._leader.settle()
                while self._unwritten:
                    self._finish_wake.set()
                    await asyncio.sleep(FLUSH_POLL_SECONDS)

    async def _finish(self) -> None:
        """Write a batch of ends. If the write fails they stay, and are written again while the lease lives."""
        if not self._unwritten:
            await self._finish_wake.wait()
        self._finish_wake.clear()
        # Also while this process leads: these were left open before that, and no commit has them. The end of
        # a worker that lost its lease is not written: its attempt was given to another worker.
        own = self.worker.id
        self._unwritten = [end for end in self._unwritten if end.worker == own]
        if batch := self._unwritten[:MAX_ENDS_PER_WRITE]:
            stale = await self._store.finish(Finish(own, batch))
            self.wake_leader()
            # By token, not by place: a lease that was lost meanwhile has emptied the list.
            done = {end.token for end in batch}
            self._unwritten = [end for end in self._unwritten if end.token not in done]
            for task, token in stale:
                reason = "the task has another attempt, or has ended"
                log.warning("task %s: the end of attempt %s was refused: %s", task, token, reason)

    # -- the lease ---------------------------------------------------------------------------------

    def live_fd(self, worker: str) -> int | None:
        """The lock that says the worker is alive, for its children to inherit."""
        return self._leases.live_fd(worker)

    @property
    def in_flight(self) -> int:
        return self.worker.in_flight

    def lease_renewed(self, stop_at_us: int) -> None:
        self.worker.extend(stop_at_us)

    def before_exit(self, seconds: float) -> None:
        """The process ends hard with its lease. From any thread."""
        self.worker.empty_work_root(seconds)

    def lease_lost(self, why: str) -> None:
        """Stop everything before another worker may start it again."""
        if self.lost.is_set():
            return
        log.error("worker %s lost its lease: %s", self.worker.id, why)
        self.lost.set()
        if self._leader is not None:
            self._leader.close()
        self.worker.lose()
        # From here on these are stale: their attempts are given to other workers.
        self._unwritten.clear()
        self.offers.forget()
        if not self._closing:
            self._tasks.append(asyncio.create_task(self._join_again(), name="locktender-join"))

    def _new_worker(self) -> LocalWorker:
        return LocalWorker(
            self._settings,
            self._clock,
            self._store,
            self._registry,
            self,
            self._metrics,
            self.lifetime,
        )

    def _new_lease(self) -> WorkerLease:
        return WorkerLease(self, self.worker.id, self._settings, self._clock)

    async def _join_again(self) -> None:
        """When nothing of the lost worker runs any more, a new one takes its place."""
        await until_done(self._end_lost, "end the lost worker", RETRY_JOIN_SECONDS)
        await until_done(self._join, "join again", RETRY_JOIN_SECONDS)
        self.worker.watch_loop()
        self.lost.clear()
        log.warning("joined again as worker %s", self.worker.id)

    async def _end_lost(self) -> None:
        await self.worker.emptied()
        await self.worker.close(0)
        # Commits of a term of this process that are on their way may name this worker: it leaves after them.
        while self._leader is not None:  # noqa: ASYNC110
            await asyncio.sleep(FLUSH_POLL_SECONDS)
        await self._leases.remove(self._lease)
        self.worker.forget()

    async def _join(self) -> None:
        self.worker = self._new_worker()
        self.worker.draining = self._draining
        self._lease = self._new_lease()
        try:
            self.worker.joins(await self._store.now())
            await self._leases.add(self._lease)
        except BaseException:
            self.worker.forget()
            raise
