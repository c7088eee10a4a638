"""What a leader, in this process or another, has for this process's worker: offers, stops, drains and undrains.

Offers are accepted or declined, attempts stopped, the worker drained. An offer whose acceptance got no answer
is *unanswered*: the store may say that we run it. It is accepted again until there is an answer, because a
task that was accepted and never started would run for ever.

A worker that may begin only so many tasks (`max_tasks`) publishes how many are left before it accepts, and one
that declines publishes why it would: the leader reads the answer and the row together, and offers nothing more
that would be declined.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import NoReturn, Protocol

import msgspec

from locktender.base.background import repeat_forever
from locktender.base.changes import End, Order
from locktender.base.clock import SECOND
from locktender.base.config import Settings
from locktender.base.errors import NotFound, StoreError
from locktender.base.graph import Graph, Node, read_graph
from locktender.base.states import TaskState
from locktender.kernel import render
from locktender.kernel.node_state import PLAIN
from locktender.observe.metrics import Metrics
from locktender.store.protocol import Accept, Finish, Started, Store
from locktender.worker.worker import LocalWorker

log: logging.Logger = logging.getLogger(__name__)
MAX_GRAPHS = 1_000
MAX_MAPS = 256
"""Whose shared arguments are kept, read."""
MAX_KEPT_BYTES = 16_384
"""Of the arguments that a map's items share; larger ones are read anew for each item."""
MAX_DECLINED_TOKENS = 1_000

Offers = list[tuple[int, int]]
"""(task, token)"""


class OfferHost(Protocol):
    """What the handler of offers needs of the worker's membership."""

    @property
    def worker(self) -> LocalWorker: ...
    @property
    def has_lease(self) -> bool: ...
    def wake_leader(self) -> None:
        """Offers were answered: a leader in this process is not notified of the worker's writes."""
        ...

    async def drain(self) -> None: ...
    async def undrain(self) -> bool: ...
    async def publish(self) -> None:
        """The worker's row says what it would take now."""
        ...


class OfferHandler:
    def __init__(self, store: Store, settings: Settings, metrics: Metrics, host: OfferHost) -> None:
        self._store = store
        self._settings = settings
        self._metrics = metrics
        self._host = host
        self._unanswered: dict[int, int] = {}
        """Token → task."""
        self._declined: dict[int, None] = {}
        self._accepted: set[int] = set()
        """Tokens of attempts that were started as offers and have not ended."""
        self._drain_order = 0
        """The newest order to drain, or not to, that was carried out; a newer one has a smaller number."""
        self._answering = asyncio.Lock()
        self._graphs: dict[str, Graph] = {}
        self._calls: dict[tuple[str, int, bytes | None], render.ItemCall] = {}
        """Of the maps in them: graph, node and what its items share."""

    def add_unanswered(self, attempts: Offers) -> None:
        """These may be written as accepted by this worker, though it started none: the answer was lost."""
        self._unanswered |= {token: task for task, token in attempts}

    def unanswered(self) -> Offers:
        """Attempts that may be ours and were not started. Called from any thread."""
        return [(task, token) for token, task in list(self._unanswered.items())]

    def forget(self) -> None:
        """The lease is lost: other workers get these tasks."""
        self._unanswered.clear()
        self._accepted.clear()

    def ended(self, token: int) -> bool:
        """An attempt ended. Whether it was accepted here: then the worker writes its end itself."""
        accepted = token in self._accepted
        self._accepted.discard(token)
        return accepted

    async def settled(self, seconds: float) -> None:
        """Returns when the offers that are being accepted right now are started, or after `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._answering:
                pass

    async def run(self) -> NoReturn:
        """For as long as the process lives. A lost notification costs a poll."""
        await repeat_forever(self._receive, "read offers", self._settings.poll_us / SECOND)

    async def _receive(self) -> None:
        timeout_us = 0 if self._unanswered else self._settings.poll_us
        received = await self._store.wait_for_offers(self._host.worker.id, timeout_us)
        if not self._host.has_lease:
            return
        if self._unanswered:
            await self._answer([(task, token) for token, task in self._unanswered.items()])
        if received.offers:
            await self._answer(received.offers)
        if received.look:
            await self._read()

    async def _read(self) -> None:
        await self._carry_out(await self._store.orders(self._host.worker.id))

    async def receive(self, orders: list[Order]) -> None:
        """Orders of the leader in this process."""
        try:
            await self._carry_out(orders)
        except StoreError as error:
            log.warning("failed to answer offers, reading them again: %s", error)

    async def _carry_out(self, orders: list[Order]) -> None:
        worker = self._host.worker
        # Orders stay until the worker is gone: an old one must not undo what this process was told since.
        told = [each for each in orders if each.task < self._drain_order]
        newest = min(told, key=lambda order: order.task, default=None)
        if newest is not None:
            log.info("worker %s is ordered to %s", worker.id, newest.kind)
        if newest is not None and newest.kind == "undrain":
            await self._host.undrain()
        if offers := [(order.task, order.token) for order in orders if order.kind == "offer"]:
            await self._answer(offers)
        for order in orders:
            if order.kind == "stop":
                worker.stop(order.token, "cancel")
        if newest is not None:
            if newest.kind == "drain" and not worker.draining:
                await self._host.drain()
            self._drain_order = newest.task

    async def _answer(self, offers: Offers) -> None:
        async with self._answering:
            # A notification may name offers that were read from the store, and answered, before it came.
            new = [each for each in offers if not self._answered(each[1])]
            self.add_unanswered(new)
            await self._accept_or_decline(new)
            for _, token in offers:
                self._unanswered.pop(token, None)

    def _answered(self, token: int) -> bool:
        return token in self._declined or self._host.worker.begun(token)

    async def _accept_or_decline(self, offers: Offers) -> None:
        worker = self._host.worker
        room = 0 if worker.draining else worker.room
        accepted, declined = offers[:room], offers[room:]
        try:
            # First: an offer that is declined by a worker that seems to want more comes again at once.
            if worker.accepting(len(accepted)) or declined:
                await self._host.publish()
            if declined:
                await self._decline(worker, declined)
            if accepted:
                await self._accept(worker, accepted)
            self._host.wake_leader()
        finally:
            worker.accepting(0)

    async def _decline(self, worker: LocalWorker, offers: Offers) -> None:
        reason = "draining" if worker.draining else "enough tasks run"
        back = [End(*each, TaskState.HANDED_BACK, reason=reason) for each in offers]
        await self._store.finish(Finish(worker.id, back))
        self._declined |= dict.fromkeys(token for _, token in offers)
        if len(self._declined) > MAX_DECLINED_TOKENS:
            self._declined = dict.fromkeys(list(self._declined)[-MAX_DECLINED_TOKENS // 2 :])

    async def _accept(self, worker: LocalWorker, offers: Offers) -> None:
        accepted = await self._store.accept(Accept(worker.id, offers))
        self._metrics.claimed(len(accepted))
        await self._fetch_graphs([each.graph for each in accepted])
        for each in accepted:
            try:
                self._start(worker, each)
            except Exception as error:
                # One attempt that cannot be started must not keep the others from it.
                log.exception("failed to start task %s", each.task)
                # Its stored data is at fault: no other attempt can be begun either.
                reason = f"failed to start: {error!r}"
                worker.refuse(each.task, each.token, reason, retryable=False)

    async def _fetch_graphs(self, graphs: list[str]) -> None:
        """A worker mostly has them already."""
        if len(self._graphs) > MAX_GRAPHS:
            self._graphs.clear()
        if len(self._calls) > MAX_MAPS:
            self._calls.clear()
        for digest in graphs:
            if digest not in self._graphs:
                try:
                    self._graphs[digest] = read_graph(await self._store.graph(digest))
                except (msgspec.MsgspecError, UnicodeError, NotFound):
                    # Those of other graphs start; these are refused one by one.
                    log.exception("failed to read graph %s", digest)

    def _start(self, worker: LocalWorker, accepted: Started) -> None:
        self._accepted.add(accepted.token)
        graph = self._graphs.get(accepted.graph)
        if graph is None:
            raise LookupError(f"its graph {accepted.graph} cannot be read")
        node = graph.nodes[accepted.node]
        call = accepted.input or render.NULL
        if accepted.idx != PLAIN:
            call = self._item_call(accepted, node).of(call)
        worker.start(
            accepted.task,
            accepted.token,
            accepted.attempt,
            accepted.run_id,
            node,
            call,
            graph.flow,
            accepted.trace,
        )

    def _item_call(self, accepted: Started, node: Node) -> render.ItemCall:
        if accepted.shared is not None and len(accepted.shared) > MAX_KEPT_BYTES:
            return render.ItemCall(node, accepted.shared)
        key = (accepted.graph, accepted.node, accepted.shared)
        known = self._calls.get(key)
        if known is None:
            known = self._calls[key] = render.ItemCall(node, accepted.shared)
        return known
