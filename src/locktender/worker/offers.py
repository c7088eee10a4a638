"""Orders: what a leader, elsewhere or of this process, has for this process's worker, carried out.

Offers are accepted or declined, attempts stopped, the worker drained. An offer
whose acceptance got no answer is *doubtful*: the store may say that we run it.
It is asked for again until there is an answer, because accepted and forgotten it
would run for ever.

A worker that may begin only so many tasks (`max_tasks`) says how many are left
before it accepts, and one that declines says why it would: the leader hears of
the answer and of that together, and offers nothing more that would be declined.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from locktender.base.changes import Order
from locktender.base.clock import SECOND
from locktender.base.config import Settings
from locktender.base.errors import StoreError
from locktender.base.graph import Graph
from locktender.base.states import TaskState
from locktender.kernel import render
from locktender.kernel.node_state import PLAIN
from locktender.observe.metrics import Metrics
from locktender.store.protocol import Accept, Ended, Finish, Started, Store
from locktender.worker.worker import Launch, LocalWorker

log: logging.Logger = logging.getLogger(__name__)
_graph = msgspec.json.Decoder(Graph).decode
MOST_GRAPHS = 1_000
MOST_DECLINED = 1_000
"""Tokens of offers that were declined here."""

Offers = list[tuple[int, int]]
"""(task, token)"""


class OfferHandler:
    def __init__(
        self,
        store: Store,
        settings: Settings,
        metrics: Metrics,
        worker: Callable[[], LocalWorker],
        answered: Callable[[], None],
        lost: Callable[[], bool],
        drain: Callable[[], Awaitable[None]],
        tell: Callable[[], Awaitable[None]],
    ) -> None:
        """`answered`: offers were answered; `tell`: the worker's row is to say what it would take now."""
        self._store = store
        self._settings = settings
        self._metrics = metrics
        self._worker = worker
        self._answered_offers = answered
        self._lost = lost
        self._drain = drain
        self._tell = tell
        self._doubtful: dict[int, int] = {}
        """Token → task."""
        self._declined: dict[int, None] = {}
        self._accepted: set[int] = set()
        """Tokens of attempts that were begun as offers and have not ended."""
        self._taking = asyncio.Lock()
        self._graphs: dict[str, Graph] = {}

    def doubt(self, attempts: Offers) -> None:
        """These may be written as accepted by us, though nobody began them: the answer was lost."""
        self._doubtful |= {token: task for task, token in attempts}

    def doubtful(self) -> Offers:
        """What may be ours without having begun. Asked from any thread."""
        return [(task, token) for token, task in list(self._doubtful.items())]

    def forget(self) -> None:
        """The lease is lost: whatever it was, it is given to others."""
        self._doubtful.clear()
        self._accepted.clear()

    def ended(self, token: int) -> bool:
        """An attempt has ended: whether it was accepted here, so that the worker writes its end itself."""
        accepted = token in self._accepted
        self._accepted.discard(token)
        return accepted

    async def settled(self, seconds: float) -> None:
        """Returns when what is being accepted right now is begun, or after `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._taking:
                pass

    async def obey(self) -> None:
        """For as long as the process lives. A lost notification costs a poll."""
        while True:
            try:
                await self._hear()
            except StoreError as error:
                log.warning("orders are not read: %s", error)
                await asyncio.sleep(self._settings.poll_us / SECOND)
            except Exception:
                # A worker that renews its lease and obeys nobody would hold what it has for ever.
                log.exception("an error of our own among the orders; going on")
                await asyncio.sleep(self._settings.poll_us / SECOND)

    async def _hear(self) -> None:
        patience = 0 if self._doubtful else self._settings.poll_us
        heard = await self._store.hear(self._worker().id, patience)
        if self._lost():
            return
        if self._doubtful:
            await self._take([(task, token) for token, task in self._doubtful.items()])
        if heard.offers:
            await self._take(heard.offers)
        if heard.look:
            await self._look()

    async def _look(self) -> None:
        await self._carry_out(await self._store.orders(self._worker().id))

    async def receive(self, orders: list[Order]) -> None:
        """Orders of the leader in this process: the store notifies no process of its own commits."""
        try:
            await self._carry_out(orders)
        except StoreError as error:
            log.warning("failed to answer offers, they are read again: %s", error)

    async def _carry_out(self, orders: list[Order]) -> None:
        worker = self._worker()
        if offers := [(order.task, order.token) for order in orders if order.kind == "offer"]:
            await self._take(offers)
        for order in orders:
            if order.kind == "stop":
                worker.stop(order.token, "cancel")
            elif order.kind == "drain" and not worker.draining:
                await self._drain()

    async def _take(self, offers: Offers) -> None:
        async with self._taking:
            # A notification may tell of what was found among the orders, and answered, before it came.
            new = [each for each in offers if not self._answered(each[1])]
            self.doubt(new)
            await self._answer(new)
            for _, token in offers:
                self._doubtful.pop(token, None)

    def _answered(self, token: int) -> bool:
        return token in self._declined or self._worker().begun(token)

    async def _answer(self, offers: Offers) -> None:
        worker = self._worker()
        room = 0 if worker.draining else worker.room
        accepted, declined = offers[:room], offers[room:]
        try:
            # First: what is declined by a worker that seems to want more is offered to it again, at once.
            if worker.accepting(len(accepted)) or declined:
                await self._tell()
            if declined:
                await self._decline(worker, declined)
            if accepted:
                await self._accept(worker, accepted)
            self._answered_offers()
        finally:
            worker.accepting(0)

    async def _decline(self, worker: LocalWorker, offers: Offers) -> None:
        reason = "draining" if worker.draining else "enough tasks run"
        back = [Ended(*each, TaskState.HANDED_BACK, reason=reason) for each in offers]
        await self._store.finish(Finish(worker.id, back))
        self._declined |= dict.fromkeys(token for _, token in offers)
        if len(self._declined) > MOST_DECLINED:
            self._declined = dict.fromkeys(list(self._declined)[-MOST_DECLINED // 2 :])

    async def _accept(self, worker: LocalWorker, offers: Offers) -> None:
        started = await self._store.accept(Accept(worker.id, offers))
        self._metrics.claimed()
        await self._know([each.graph for each in started])
        for each in started:
            self._launch(worker, each)

    async def _know(self, graphs: list[str]) -> None:
        """Fetch the graphs of what was accepted; a worker mostly has them already."""
        if len(self._graphs) > MOST_GRAPHS:
            self._graphs.clear()
        for digest in graphs:
            if digest not in self._graphs:
                body = await self._store.graph(digest)
                try:
                    self._graphs[digest] = _graph(body)
                except msgspec.MsgspecError:
                    log.exception("graph %s cannot be read", digest)

    def _launch(self, worker: LocalWorker, started: Started) -> None:
        row = started.task
        self._accepted.add(row.token)
        try:
            worker.launch([self._launch_of(started)])
        except Exception as error:
            # One attempt that cannot be begun must not keep the others from it.
            log.exception("task %s cannot be begun", row.id)
            worker.refuse(row.id, row.token, f"it cannot be begun: {error!r}")

    def _launch_of(self, started: Started) -> Launch:
        row = started.task
        graph = self._graphs.get(started.graph)
        if graph is None:
            raise LookupError(f"its graph {started.graph} cannot be read")
        node = graph.nodes[row.node]
        call = row.input or render.NULL
        if row.idx != PLAIN:
            call = render.merge(node, started.shared, call)
        return Launch(
            row.id, row.token, row.attempt, started.run_id, node, call, graph.flow, started.trace
        )
