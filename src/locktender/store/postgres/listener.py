"""The listener: one connection that receives notifications of other processes' commits.

A notification is only a hint: a waiter reads the rows again after its timeout
anyway, so a lost notification costs one poll. A dead listener is detected by the
end of its connection or by a ping that times out, and is replaced; then all
waiters are woken, because notifications sent meanwhile are lost.

A leader's commit names the workers it concerns, with a few offers each:

    ORIGIN commit WORKER=TASK.TOKEN,TASK.TOKEN WORKER …

A worker named with offers accepts them without reading its orders; one named
without reads its orders. `*` means all workers read: there were too many to name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import asyncpg

from locktender.base.changes import Order
from locktender.base.errors import StoreError
from locktender.store.postgres import faults
from locktender.store.postgres.connection import connect
from locktender.store.postgres.options import Options
from locktender.store.postgres.session import SQL
from locktender.store.protocol import OfferNotice

MAX_NOTICE_CHARACTERS = 7_000
"""Characters: a notification carries less than 8,000 bytes."""
MAX_OFFERS_PER_WORKER = 50
"""Carried for one worker: so many are a batch, and reading a batch costs little per task."""
COMMIT = "commit"
EVERYBODY = "*"


def notice_of(orders: Iterable[Order]) -> str:
    """The notification of a leader's commit."""
    concerned: dict[str, list[str] | None] = {}
    for order in orders:
        offers = concerned.setdefault(order.worker, [])
        if order.kind != "offer" or offers is None or len(offers) >= MAX_OFFERS_PER_WORKER:
            concerned[order.worker] = None
        else:
            offers.append(f"{order.task}.{order.token}")
    words = [
        worker if offers is None else f"{worker}={','.join(offers)}"
        for worker, offers in sorted(concerned.items())
    ]
    if sum(map(len, words)) + len(words) > MAX_NOTICE_CHARACTERS:
        words = sorted(concerned)
    if sum(map(len, words)) + len(words) > MAX_NOTICE_CHARACTERS:
        words = [EVERYBODY]
    return " ".join((COMMIT, *words))


def _read_notice(said: str) -> dict[str, list[tuple[int, int]]] | None:
    """The workers it concerns, with their offers; {}: no orders changed. None: all workers read their orders."""
    verb, *words = said.split(" ")
    if verb != COMMIT:
        return {}
    if EVERYBODY in words:
        return None
    concerned: dict[str, list[tuple[int, int]]] = {}
    for word in words:
        worker, _, offers = word.partition("=")
        pairs = (each.partition(".") for each in offers.split(",") if each)
        try:
            concerned[worker] = [(int(task), int(token)) for task, _, token in pairs]
        except ValueError:
            # Any program that can connect can notify.
            return None
    return concerned


log: logging.Logger = logging.getLogger(__name__)

PING_SECONDS = 5.0
FIRST_AGAIN_SECONDS = 0.05
LONGEST_AGAIN_SECONDS = 2.0


class _Inbox:
    """Notifications to one worker that it has not received yet."""

    def __init__(self) -> None:
        self.offers: list[tuple[int, int]] = []
        self.look: bool = True
        self.filled: asyncio.Event = asyncio.Event()

    def put(self, offers: list[tuple[int, int]]) -> None:
        self.offers += offers
        self.look = self.look or not offers
        self.filled.set()

    def take(self) -> OfferNotice:
        heard = OfferNotice(self.offers, self.look)
        self.offers, self.look = [], False
        self.filled.clear()
        return heard


class Listener:
    def __init__(self, options: Options, origin: str) -> None:
        self.mark: int = 0
        """Rises with every sign of a foreign commit."""
        self.replaced: int = 0
        """How often the connection was lost and made anew."""
        self._options = options
        self._origin = origin
        self._waiting: set[asyncio.Future[None]] = set()
        self._inboxes: dict[str, _Inbox] = {}
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    async def start(self) -> None:
        """Begins to listen; returns when it does, or when it cannot yet."""
        if self._task is not None:
            return
        if not self._options.listens:
            if self._options.listen != "off":
                log.warning(
                    "no listener behind the pooler of %s: everything is found by polling, once a second."
                    " Name the server itself in the url: &listen=host:port; or say &listen=off.",
                    self._options.shown,
                )
            return
        self._task = asyncio.get_running_loop().create_task(
            self._keep(), name="locktender-listener"
        )
        with suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await self._ready.wait()

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def notice(self) -> None:
        """Another process may have committed something: wakes all waiters."""
        for inbox in self._inboxes.values():
            inbox.put([])
        self._rise()

    def _rise(self) -> None:
        self.mark += 1
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    async def wait_for_offers(self, worker: str, timeout_seconds: float) -> OfferNotice:
        """Waits for notifications to this worker; after the timeout it reads its orders anyway."""
        inbox = self._inboxes.get(worker)
        if inbox is None:
            # A process has one worker: drop the inbox of the worker before it, which lost its lease.
            self._inboxes = {worker: _Inbox()}
            return self._inboxes[worker].take()
        try:
            async with asyncio.timeout(timeout_seconds):
                await inbox.filled.wait()
        except TimeoutError:
            inbox.look = True
        return inbox.take()

    async def wait(self, seen: int, timeout_seconds: float) -> int:
        """The mark, as soon as it is beyond `seen` or the time is over."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_seconds
        while self.mark <= seen and (left := until - loop.time()) > 0:
            waiting: asyncio.Future[None] = loop.create_future()
            self._waiting.add(waiting)
            try:
                await asyncio.wait([waiting], timeout=left)
            finally:
                self._waiting.discard(waiting)
        return self.mark

    async def _keep(self) -> None:
        again = FIRST_AGAIN_SECONDS
        while True:
            try:
                await self._listen()
                again = FIRST_AGAIN_SECONDS
            except StoreError as error:
                log.warning("failed to listen, polling instead: %s", error)
            self._ready.set()
            await asyncio.sleep(again)
            again = min(again * 2, LONGEST_AGAIN_SECONDS)

    async def _listen(self) -> None:
        """Listens until the connection is lost."""
        conn = await connect(self._options, self._options.listen_dsn)
        lost = asyncio.Event()
        try:
            conn.add_termination_listener(lambda _: lost.set())
            await conn.add_listener(self._options.channel, self._hear)
            if self._ready.is_set():
                self.replaced += 1
                # Notifications sent meanwhile are lost: wake all waiters.
                self.notice()
            self._ready.set()
            while not lost.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(PING_SECONDS):
                        await lost.wait()
                if not lost.is_set():
                    await conn.execute(SQL.text("ping"), timeout=PING_SECONDS)
        except faults.WORLD as error:
            log.warning("the listener lost its connection: %s", type(error).__name__)
        finally:
            conn.terminate()

    def _hear(
        self,
        _conn: asyncpg.Connection[Any] | asyncpg.pool.PoolConnectionProxy[Any],
        _pid: int,
        _channel: str,
        payload: object,
    ) -> None:
        origin, _, said = str(payload).partition(" ")
        if origin == self._origin:
            return
        concerned = _read_notice(said)
        for worker, inbox in self._inboxes.items():
            if concerned is None:
                inbox.put([])
            elif worker in concerned:
                inbox.put(concerned[worker])
        self._rise()
