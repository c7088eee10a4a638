"""The engine of one process: a worker that keeps its lease, and a leader whenever the store lets it be one.

Two engines on one file: one leads, both work. The worker's attempts are
written with the leader's commits while this process leads, and by the worker's
own verbs while another does; an attempt that crosses from one to the other is
fenced by its token either way.

The lease is kept by a thread (`stages/lease.py`). If it is lost, attempts are
stopped before it ends, so that nobody else starts them beside us. A thread cannot
be stopped: if one still runs then, a worker's process ends; in a process that is
the user's own (embedded) it cannot write any more and the engine takes no work
until it has ended. Then it joins again, under a new name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

import msgspec

from headgate.base.clock import Clock, SystemClock
from headgate.base.config import Settings
from headgate.base.errors import HeadgateError, StoreError
from headgate.base.graph import Graph
from headgate.base.model import WorkerRow
from headgate.base.states import TaskState
from headgate.flows.registry import Registry, registry
from headgate.kernel import render
from headgate.kernel.steps import PLAIN
from headgate.stages.chores import end_tasks
from headgate.stages.coordinator import Coordinator
from headgate.stages.declaring import declared_limits
from headgate.stages.lease import LeaseKeeper
from headgate.stages.worker import End, Launch, Worker
from headgate.store.protocol import (
    Accept,
    Elect,
    Ended,
    Finish,
    Started,
    Store,
)

log: logging.Logger = logging.getLogger(__name__)
_graph = msgspec.json.Decoder(Graph).decode
FINISH_BATCH = 500
STAND_AGAIN_SECONDS = 0.5


class Engine:
    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        clock: Clock | None = None,
        known: Registry = registry,
        lead: bool = True,
    ) -> None:
        self.store = store
        self.settings = settings
        self.coordinator: Coordinator | None = None
        self.lost: asyncio.Event = asyncio.Event()
        """Set while the worker has no lease: it was lost, and what it ran has not ended yet."""
        self._clock = clock or SystemClock()
        self._registry = known
        self._may_lead = lead
        self._worker = self._new_worker()
        self._ended_runs: list[Callable[[list[int]], None]] = []
        self._unwritten: list[End] = []
        self._finish_wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._steps_announced = 0
        self._orders = asyncio.Event()
        self._graphs: dict[str, Graph] = {}
        self._keeper = self._new_keeper()
        self._closing = False

    def _new_worker(self) -> Worker:
        return Worker(self.settings, self._clock, self.store, self._registry, self._deliver)

    @property
    def worker(self) -> Worker:
        return self._worker

    @property
    def leads(self) -> bool:
        return self.coordinator is not None

    def on_runs_ended(self, hear: Callable[[list[int]], None]) -> None:
        """`hear` is told of runs that ended while this process leads."""
        self._ended_runs.append(hear)

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join and, if nobody leads, lead. Returns when the worker has its lease."""
        if changes := declared_limits(self.settings):
            await self.store.set_limit(changes)
        self._worker.since = await self.store.now()
        await self._keeper.start()
        self._tasks = [
            asyncio.create_task(self._watch(), name="headgate-watch"),
            asyncio.create_task(self._finish(), name="headgate-finish"),
            asyncio.create_task(self._obey(), name="headgate-orders"),
        ]
        if self._may_lead:
            self._tasks.append(asyncio.create_task(self._stand(), name="headgate-lead"))

    async def stop(self, grace_us: int | None = None) -> None:
        """Drain: no new tasks, what runs may finish within the grace, the rest is handed back."""
        self._closing = True
        with suppress(HeadgateError):
            await self.drain()
        grace = self.settings.grace_us if grace_us is None else grace_us
        left = await self._worker.close(grace)
        await self._flush()
        await end_tasks(self._tasks)
        if left:
            # A thread cannot be stopped. Its lease is kept until it ends, so that what it holds is not
            # given to others beside it.
            log.warning("%s tasks still run in threads: their slots stay taken", len(left))
            self._keeper.keep_while(self._worker.threads_alive, self._worker.id)
            return
        await self._keeper.close(self._worker.id)
        self._worker.forget()

    async def drain(self) -> None:
        """Take no more tasks; what runs may finish. The engine goes on, and leads if it led."""
        self._worker.draining = True
        if self.coordinator is not None:
            self.coordinator.describe_local()
        await self._keeper.beat()

    async def _flush(self) -> None:
        """Whoever writes the last ends has a moment to do so; an unwritten one is found by its lease."""
        coordinator = self.coordinator
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                if coordinator is not None:
                    await coordinator.settle()
                while self._unwritten:
                    self._finish_wake.set()
                    await asyncio.sleep(0.005)

    def look(self) -> None:
        """This process committed something (a submission, a limit): whoever decides should look."""
        if len(self._registry.steps) != self._steps_announced:
            self._steps_announced = len(self._registry.steps)
            if self.coordinator is not None:
                self.coordinator.describe_local()
            else:
                self._tasks.append(asyncio.create_task(self._announce()))
        if self.coordinator is not None:
            self.coordinator.look()

    async def _announce(self) -> None:
        with suppress(HeadgateError):
            await self._keeper.beat()

    # -- leading -----------------------------------------------------------------------------------

    async def _stand(self) -> None:
        """Stand for election again and again; lead whenever elected."""
        while True:
            if self.lost.is_set():
                await asyncio.sleep(STAND_AGAIN_SECONDS)
                continue
            owner = f"{self._worker.id}-leads"
            try:
                got = await self.store.elect(Elect(owner, self.settings.leader_lease_us))
            except StoreError as error:
                log.warning("cannot stand for election: %s", error)
                got = None
            if got is not None and got.term:
                await self._lead(owner, got.term)
            else:
                await asyncio.sleep(STAND_AGAIN_SECONDS)

    async def _lead(self, owner: str, term: int) -> None:
        log.info("term %s: this process leads", term)
        coordinator = Coordinator(self.store, owner, self.settings, self._worker, self._tell_ended)
        self.coordinator = coordinator
        try:
            self._unwritten += await coordinator.lead(term)
        except asyncio.CancelledError:
            self.coordinator = None
            with suppress(HeadgateError):
                await self.store.resign(owner, term)
            raise
        except Exception:
            log.exception("term %s ended by an error of our own; standing again", term)
            self._unwritten += coordinator.unwritten()
            await asyncio.sleep(STAND_AGAIN_SECONDS)
        self.coordinator = None
        self._finish_wake.set()

    def _tell_ended(self, runs: list[int]) -> None:
        for hear in self._ended_runs:
            hear(runs)

    # -- working for another leader ----------------------------------------------------------------

    def _deliver(self, end: End) -> None:
        if self.coordinator is not None:
            self.coordinator.ended(end)
        else:
            self._unwritten.append(end)
            self._finish_wake.set()

    async def _finish(self) -> None:
        """Write ends in batches; a failed write is repeated while the lease lives, and never loses one."""
        while True:
            await self._finish_wake.wait()
            self._finish_wake.clear()
            while self._unwritten and self.coordinator is None:
                # An end of a worker that lost its lease is nobody's to write: its attempt was given away.
                own = self._worker.id
                self._unwritten = [end for end in self._unwritten if end.worker == own]
                batch = self._unwritten[:FINISH_BATCH]
                if not batch:
                    break
                ended = [
                    Ended(end.task, end.token, end.state, end.output, end.error, end.reason)
                    for end in batch
                ]
                try:
                    stale = await self.store.finish(Finish(self._worker.id, ended))
                except StoreError as error:
                    log.warning("%s ends are not written yet: %s", len(batch), error)
                    await asyncio.sleep(0.2)
                    continue
                for task, token in stale:
                    log.warning("task %s: the end of attempt %s came too late", task, token)
                del self._unwritten[: len(batch)]

    async def _watch(self) -> None:
        """Foreign commits wake the leader here, or the worker that obeys one elsewhere."""
        mark = -1
        while True:
            mark = await self.store.wait(self.settings.poll_us, mark)
            if self.coordinator is not None:
                self.coordinator.look()
            else:
                self._orders.set()

    async def _obey(self) -> None:
        while True:
            await self._orders.wait()
            self._orders.clear()
            if self.coordinator is not None or self.lost.is_set():
                continue
            try:
                await self._carry_out()
            except StoreError as error:
                log.warning("orders are not read: %s", error)

    async def _carry_out(self) -> None:
        orders = await self.store.orders(self._worker.id)
        offers = [(order.task, order.token) for order in orders if order.kind == "offer"]
        if offers and not self._worker.draining:
            started = await self.store.accept(Accept(self._worker.id, offers))
            self._worker.launch([await self._launch(each) for each in started])
        elif offers:
            declined = [
                Ended(task, token, TaskState.HANDED_BACK, reason="draining")
                for task, token in offers
            ]
            await self.store.finish(Finish(self._worker.id, declined))
        for order in orders:
            if order.kind == "stop":
                self._worker.stop(order.token, "cancel")
            elif order.kind == "drain" and not self._worker.draining:
                await self.drain()

    async def _launch(self, started: Started) -> Launch:
        row = started.task
        graph = self._graphs.get(started.graph)
        if graph is None:
            if len(self._graphs) > 1_000:
                self._graphs.clear()
            graph = self._graphs[started.graph] = _graph(await self.store.graph(started.graph))
        node = graph.nodes[row.node]
        call = row.input or render.NULL
        if row.idx != PLAIN:
            call = render.merge(node, started.shared, call)
        return Launch(row.id, row.token, row.attempt, started.run_id, node, call)

    # -- the lease ---------------------------------------------------------------------------------

    def _new_keeper(self) -> LeaseKeeper:
        worker = self._worker
        keeper = LeaseKeeper(
            self.store,
            self.settings,
            self._clock,
            self._describe,
            worker.extend,
            self._lose,
            lambda: worker.in_flight,
            exit_when_stuck=self.settings.exit_when_stuck,
        )
        worker.live_fd = keeper.live_fd
        return keeper

    def _describe(self) -> WorkerRow:
        return self._worker.describe(-1 if self.leads else self.settings.claim_batch)

    def _lose(self, why: str) -> None:
        """Stop everything before somebody else may start it again."""
        if self.lost.is_set() or self._closing:
            return
        log.error("the lease of worker %s is lost: %s", self._worker.id, why)
        self.lost.set()
        if self.coordinator is not None:
            self.coordinator.close()
        self._worker.lose()
        # What it had to tell is stale from here on: its attempts are given to others.
        self._unwritten.clear()
        self._tasks.append(asyncio.create_task(self._join_again(), name="headgate-join"))

    async def _join_again(self) -> None:
        """When nothing of the lost worker runs any more, a new one takes its place."""
        await self._worker.emptied()
        await self._keeper.close(self._worker.id)
        self._worker.forget()
        while True:
            self._worker = self._new_worker()
            self._keeper = self._new_keeper()
            try:
                self._worker.since = await self.store.now()
                await self._keeper.start()
            except HeadgateError as error:
                log.warning("cannot join again yet: %s", error)
                self._worker.forget()
                await asyncio.sleep(STAND_AGAIN_SECONDS)
            else:
                break
        self.lost.clear()
        log.warning("joined again as worker %s", self._worker.id)
