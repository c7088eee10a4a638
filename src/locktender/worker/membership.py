"""The member: a worker of this process, its lease, and what it does for a leader elsewhere.

The lease is kept by a thread (`worker/lease.py`). If it is lost, attempts are
stopped before it ends, so that nobody else starts them beside us. A thread cannot
be stopped: if one still runs then, a worker's process ends; in a process that is
the user's own (embedded) it cannot write any more and takes no work until it has
ended. Then it joins again, under a new name.

While another process leads, the worker accepts what it is offered and writes the
ends of its attempts itself, in batches. While this process leads, both go with the
leader's commits; an attempt that crosses from one to the other is fenced by its token.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any

import msgspec

from locktender.base.background import end_tasks
from locktender.base.clock import Clock
from locktender.base.config import Settings
from locktender.base.errors import LocktenderError, StoreError
from locktender.base.model import WorkerRow
from locktender.flows.registry import Registry
from locktender.leader.leader import Leader
from locktender.observe.metrics import Metrics
from locktender.store.protocol import Ended, Finish, Store
from locktender.worker import heir
from locktender.worker.lease import LeaseKeeper
from locktender.worker.lifetime import Lifetime
from locktender.worker.offers import OfferHandler
from locktender.worker.worker import End, LocalWorker

log: logging.Logger = logging.getLogger(__name__)
FINISH_BATCH = 500
JOIN_AGAIN_SECONDS = 0.5
FEEL_SECONDS = 0.25
FEEL_SOON_SECONDS = 0.005
"""After an attempt began or ended: many begin and end in that time, and one look serves them all."""
ANSWER_SECONDS = 5.0
"""How long a worker that ends waits for the answer to its last acceptance."""
LAST_WORD_SECONDS = 3.0
"""How long a process that ends hard waits for its row to say what it leaves behind."""
MOST_LEFT = 1_000
"""How many attempts it names: with them a beat stays below 64 kB."""


class Membership:
    def __init__(
        self,
        store: Store,
        settings: Settings,
        clock: Clock,
        known: Registry,
        leading: Callable[[], Leader | None],
        metrics: Metrics,
        *,
        ends_itself: bool = False,
    ) -> None:
        """`leading` is this process's own coordinator, while it leads."""
        self.lost: asyncio.Event = asyncio.Event()
        """Set while the worker has no lease: it was lost, and what it ran has not ended yet."""
        self._store = store
        self._settings = settings
        self._clock = clock
        self._registry = known
        self._leading = leading
        self._metrics = metrics
        self._unwritten: list[End] = []
        self._finish_wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._chores: set[asyncio.Task[None]] = set()
        self._feeling = False
        self._announced = 0
        self._closing = False
        self._told_to_drain = False
        self._told_to_end = False
        self.lifetime: Lifetime = Lifetime(settings, clock, awaited=ends_itself)
        """Of the process's worker, under whatever name it has joined."""
        self.worker: LocalWorker = self._new_worker()
        self._keeper = self._new_keeper()
        self.orders: OfferHandler = OfferHandler(
            store,
            settings,
            metrics,
            lambda: self.worker,
            self._wake_leader,
            self.lost.is_set,
            self.drain,
            lambda: self._keeper.beat(),  # noqa: PLW0108 — it has another keeper when it has joined again
        )

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join. Returns when the worker has its lease."""
        self.worker.joins(await self._store.now())
        await self._keeper.start()
        self.worker.watch_loop()
        self._tasks = [
            asyncio.create_task(self.orders.obey(), name="locktender-orders"),
            asyncio.create_task(self._finish(), name="locktender-finish"),
            asyncio.create_task(self._feel_regularly(), name="locktender-pressure"),
        ]

    async def drain(self) -> None:
        """Take no more tasks; what runs may finish."""
        if not self.worker.draining:
            log.info("worker %s drains: %s tasks may finish", self.worker.id, self.worker.in_flight)
        self._told_to_drain = True
        self.worker.draining = True
        if (coordinator := self._leading()) is not None:
            coordinator.describe_local()
        await self._keeper.beat()

    async def retire(self) -> None:
        """Take no more tasks. Returns when all that runs has finished, however long it takes.

        What was told to stop and does not is not waited for: it might never end.
        """
        await self._take_no_more()
        if (coordinator := self._leading()) is not None:
            await coordinator.settle()  # what its commits on their way begin here
        while self.worker.in_flight > len(self.worker.unfinished()):
            with suppress(TimeoutError):
                async with asyncio.timeout(FEEL_SECONDS):
                    await self.worker.emptied()

    async def finish(self, grace_us: int) -> list[int]:
        """What runs may end within the grace, the rest is handed back. Returns what cannot be ended."""
        self._closing = self._told_to_end = True
        await self._take_no_more()
        left = await self.worker.close(grace_us)
        await self._flush()
        return left

    async def _take_no_more(self) -> None:
        # A store that does not answer does not keep anybody: its lease ends by itself.
        with suppress(LocktenderError, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await self.drain()
        # What is being accepted right now is ours when the answer comes: it is begun, and may finish.
        await self.orders.settled(ANSWER_SECONDS)

    async def leave(self, left: list[int]) -> None:
        await end_tasks([*self._tasks, *self._chores])
        if left and self._settings.exit_when_stuck:
            # Only with this process. Nothing of theirs is given up before they are certainly gone.
            log.critical(
                "%s bodies do not end when told to: this process ends with them", len(left)
            )
            with suppress(LocktenderError, TimeoutError):
                async with asyncio.timeout(LAST_WORD_SECONDS):
                    await self._keeper.beat()
            self._appoint_heir()
            os._exit(75)
        if left:
            # Bodies in threads, or that ignore being cancelled. The lease is kept until they end, so that
            # what they hold is not given to others beside them.
            log.warning("%s tasks cannot be stopped: their slots stay taken", len(left))
            self._keeper.keep_while(self.worker.outlives, self.worker.id)
            return
        await self._keeper.close(self.worker.id)
        self.worker.forget()

    def told_to_end(self) -> None:
        """This process is told to end, and its loop may never hear of it: its row says what it leaves behind.

        From any thread but the loop's. Without an answer of the store its next beat tries again.
        """
        # Draining too: what is handed back for it must not be offered to it again.
        self._told_to_end = self.worker.draining = True
        with suppress(LocktenderError, TimeoutError, CancelledError):
            self._keeper.beat_from_outside(LAST_WORD_SECONDS)

    def ends_hard(self) -> None:
        """The process ends right after this, whatever runs. From any thread but the loop's."""
        self.told_to_end()
        self._appoint_heir()

    def _appoint_heir(self) -> None:
        # A body in a child ends a moment after us: nobody but the lease knows when.
        worker = self.worker
        if worker.has_children or not heir.appoint(
            self._settings, worker.id, self._left_behind(), worker.work_root
        ):
            worker.empty_work_root()  # as nobody does it when we are gone

    def _left_behind(self) -> tuple[tuple[int, int], ...]:
        """What nobody is charged for if this process goes without it. An end that nobody wrote is lost with it."""
        ends, begun = list(self._unwritten), list(self.orders.doubtful())
        if (coordinator := self._leading()) is not None:
            ends += coordinator.unwritten()
            begun += coordinator.unstarted()
        found = dict.fromkeys([*self.worker.in_hand(), *begun])
        found |= dict.fromkeys((end.task, end.token) for end in ends)
        return tuple(found)

    def announce(self) -> None:
        """Steps and flows may have been defined since the worker described itself."""
        known = len(self._registry.steps) + len(self._registry.flows)
        if known == self._announced:
            return
        self._announced = known
        if (coordinator := self._leading()) is not None:
            coordinator.describe_local()
        else:
            self._chore(self._beat())

    async def _beat(self) -> None:
        with suppress(LocktenderError):
            await self._keeper.beat()

    # -- pressure ----------------------------------------------------------------------------------

    async def _feel_regularly(self) -> None:
        while True:
            self._feel()
            if self.worker.find_stubborn() and not self.lost.is_set():
                self._chore(self._beat())
            await asyncio.sleep(FEEL_SECONDS)

    def _feel_soon(self) -> None:
        """Once in a while, however many attempts begin and end in it."""
        if not self._feeling:
            self._feeling = True
            asyncio.get_running_loop().call_later(FEEL_SOON_SECONDS, self._feel)

    def _feel(self) -> None:
        self._feeling = False
        if not self.worker.ask().urgent or self._closing:
            return
        # Whoever offers must not go on as before until the next beat.
        if (coordinator := self._leading()) is not None:
            coordinator.describe_local()
        else:
            self._chore(self._beat())

    def _chore(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    # -- ends --------------------------------------------------------------------------------------

    def _deliver(self, end: End) -> None:
        # The leader may not have read yet that an offer was accepted: that end is the worker's to write.
        accepted = self.orders.ended(end.token)
        if not accepted and (coordinator := self._leading()) is not None:
            coordinator.ended(end)
        else:
            self.write([end])

    def write(self, ends: list[End]) -> None:
        """These ends are the worker's own to write."""
        self._unwritten += ends
        self._finish_wake.set()

    async def _flush(self) -> None:
        """Whoever writes the last ends has a moment to do so; an unwritten one is found by its lease."""
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                if (coordinator := self._leading()) is not None:
                    await coordinator.settle()
                while self._unwritten:
                    self._finish_wake.set()
                    await asyncio.sleep(0.005)

    async def _finish(self) -> None:
        """Write ends in batches; a failed write is repeated while the lease lives, and never loses one."""
        while True:
            await self._finish_wake.wait()
            self._finish_wake.clear()
            # Also while this process leads: what is here was left behind before that, and no commit has it.
            while self._unwritten:
                # An end of a worker that lost its lease is nobody's to write: its attempt was given away.
                own = self.worker.id
                self._unwritten = [end for end in self._unwritten if end.worker == own]
                batch = self._unwritten[:FINISH_BATCH]
                if batch and await self._written(batch):
                    # By token, not by place: a lease that was lost meanwhile has emptied the list.
                    done = {end.token for end in batch}
                    self._unwritten = [end for end in self._unwritten if end.token not in done]

    def _wake_leader(self) -> None:
        """The worker wrote something. A leader in this process is not notified of its own process's writes."""
        if (coordinator := self._leading()) is not None:
            coordinator.look()

    async def _written(self, batch: list[End]) -> bool:
        ended = [Ended._make(end[: len(Ended._fields)]) for end in batch]
        try:
            stale = await self._store.finish(Finish(self.worker.id, ended))
        except StoreError as error:
            log.warning("%s ends are not written yet: %s", len(batch), error)
            await asyncio.sleep(0.2)
            return False
        self._wake_leader()
        for task, token in stale:
            log.warning("task %s: the end of attempt %s came too late", task, token)
        return True

    # -- the lease ---------------------------------------------------------------------------------

    def _new_worker(self) -> LocalWorker:
        made = LocalWorker(
            self._settings,
            self._clock,
            self._store,
            self._registry,
            self._deliver,
            self._metrics,
            self.lifetime,
        )
        made.on_orders = lambda orders: self._chore(self.orders.receive(orders))
        return made

    def _new_keeper(self) -> LeaseKeeper:
        worker = self.worker
        keeper = LeaseKeeper(
            self._store,
            self._settings,
            self._clock,
            self.describe,
            worker.extend,
            self._lose,
            lambda: worker.in_flight,
            exit_when_stuck=self._settings.exit_when_stuck,
            last_act=worker.empty_work_root,
        )
        worker.live_fd = keeper.live_fd
        worker.expired = keeper.expired
        worker.on_change = self._feel_soon
        return keeper

    def describe(self) -> WorkerRow:
        """The worker as its row says, or will say with the next beat."""
        leads = self._leading() is not None
        row = self.worker.describe(-1 if leads else self.worker.pressure.standing)
        if not self._told_to_end:
            return row
        left = self._left_behind()
        if len(left) > MOST_LEFT:
            return msgspec.structs.replace(row, leaves_all=True)
        return msgspec.structs.replace(row, leaves=left)

    def _lose(self, why: str) -> None:
        """Stop everything before somebody else may start it again."""
        if self.lost.is_set():
            return
        log.error("the lease of worker %s is lost: %s", self.worker.id, why)
        self.lost.set()
        if (coordinator := self._leading()) is not None:
            coordinator.close()
        self.worker.lose()
        # What it had to tell is stale from here on: its attempts are given to others.
        self._unwritten.clear()
        self.orders.forget()
        if not self._closing:
            self._tasks.append(asyncio.create_task(self._join_again(), name="locktender-join"))

    async def _join_again(self) -> None:
        """When nothing of the lost worker runs any more, a new one takes its place."""
        await self.worker.emptied()
        await self.worker.close(0)
        await self._keeper.close(self.worker.id)
        self.worker.forget()
        draining = self._told_to_drain
        while True:
            self.worker = self._new_worker()
            self.worker.draining = draining
            self._keeper = self._new_keeper()
            try:
                self.worker.joins(await self._store.now())
                await self._keeper.start()
            except LocktenderError as error:
                log.warning("cannot join again yet: %s", error)
                self.worker.forget()
                await asyncio.sleep(JOIN_AGAIN_SECONDS)
            else:
                break
        self.worker.watch_loop()
        self.lost.clear()
        log.warning("joined again as worker %s", self.worker.id)
