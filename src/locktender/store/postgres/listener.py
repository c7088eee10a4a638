"""The listener: one connection that receives notifications of other processes' commits.

A notification is only a hint: a waiter reads the rows again after its timeout
anyway, so a lost notification costs one poll. A dead listener is detected by the
end of its connection or by a ping that times out, and is replaced; then all
waiters are woken, because notifications sent meanwhile are lost.

There are three channels. On one, leaders' commits name the workers they concern, with their offers, in as
many notifications as it takes; on another, the runs that end with them; all other commits are told on the third:

    ORIGIN commit WORKER=TASK.TOKEN,TASK.TOKEN WORKER …
    ORIGIN !RUN,RUN
    ORIGIN submit RUN RUN

A worker listens to the first, a client that waits for runs to the second, a leader to the third, and
a process that follows the history to the first and the third. One that does not want to be told
listens to none: PostgreSQL wakes every connection that listens to anything, at each notification.

Offers to a worker that listens are stored nowhere else but in the tasks' rows: the
leader sends them again until they are answered (`offer_again`). A worker that is named
without offers reads its orders. `*` means all workers read, and `!*` that everybody who
waits for the end of a run looks: there were too many to name.

An acceptance names its worker (`ORIGIN accept WORKER`): the leader mostly reads it later,
with the ends that follow. A submission of a few runs names the first and the last
(`ORIGIN submit RUN RUN`): the leader reads those rows, and the history later. Small rows are
carried (`ORIGIN submit RUN RUN ROWS`, see `carried_runs.py`) and not read. The same as without for
an event to a run: `ORIGIN mail RUN NUMBER`. A submission inside an application's transaction
comes from the function that stores it: `application outbox`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Set
from contextlib import suppress
from typing import Any

import asyncpg

from locktender.base.changes import Order
from locktender.base.errors import StoreError
from locktender.store.postgres import faults
from locktender.store.postgres.connection import connect
from locktender.store.postgres.inboxes import (
    MAX_ENDED_RUNS,
    Inbox,
    ReceivedCommits,
    ReceivedEnds,
    number_of,
)
from locktender.store.postgres.options import Options
from locktender.store.postgres.session import ENDED, SQL
from locktender.store.protocol import ChangeNotice, OfferNotice, RunsEnded

MAX_NOTICE_CHARACTERS = 7_000
"""Characters: a notification carries less than 8,000 bytes."""
MAX_OFFERS_PER_PART = 50
"""Offers behind one name of a worker: such a part is much shorter than a notification."""
MAX_ENDS_PER_NOTICE = 400
"""So many numbers of runs, however large, are shorter than a notification."""
MAX_READERS = 50
"""Workers that are named as having stored orders; of more, all read."""
COMMIT = "commit"
OFFER = "offer"
ACCEPT = "accept"
SUBMIT = "submit"
OUTBOX = "outbox"
MAIL = "mail"
EVERYBODY = "*"


def sent_and_stored(
    orders: Iterable[Order], listening: Set[str]
) -> tuple[list[Order], list[Order]]:
    """(offers that are sent in the notification alone, orders that are stored for workers to read).

    `listening`: workers that are sent their offers.
    """
    sent: list[Order] = []
    stored: list[Order] = []
    for order in orders:
        is_sent = order.kind == OFFER and order.worker in listening
        (sent if is_sent else stored).append(order)
    return sent, stored


def notices(ended: Iterable[int], sent: Iterable[Order], stored: Iterable[Order]) -> list[str]:
    """The notifications of a leader's commit: who has orders, and who has ended (`ENDED`)."""
    offers: dict[str, list[str]] = {}
    for order in sent:
        offers.setdefault(order.worker, []).append(f"{order.task}.{order.token}")
    readers = {order.worker for order in stored}
    parts = sorted(readers) if len(readers) <= MAX_READERS else [EVERYBODY]
    for worker, named in sorted(offers.items()):
        for first in range(0, len(named), MAX_OFFERS_PER_PART):
            parts.append(f"{worker}={','.join(named[first : first + MAX_OFFERS_PER_PART])}")
    found = [COMMIT]
    for part in parts:
        if len(found[-1]) + len(part) >= MAX_NOTICE_CHARACTERS:
            found.append(COMMIT)
        found[-1] += f" {part}"
    return found + _ended_parts(list(ended))


def _ended_parts(ended: list[int]) -> list[str]:
    if len(ended) > MAX_ENDED_RUNS:
        return [ENDED + EVERYBODY]
    return [
        ENDED + ",".join(map(str, ended[first : first + MAX_ENDS_PER_NOTICE]))
        for first in range(0, len(ended), MAX_ENDS_PER_NOTICE)
    ]


def _ended_runs(said: str) -> list[int] | None:
    """The ended runs that the notification names. None: too many to name."""
    try:
        return [int(run) for run in said.removeprefix(ENDED).split(",")]
    except ValueError:
        return None


def notice_to(worker: str, parts: list[str]) -> OfferNotice:
    """What the parts of a notification have for this worker."""
    offers: list[tuple[int, int]] = []
    look = False
    start = f"{worker}="
    for part in parts:
        if part in (worker, EVERYBODY):
            look = True
        elif part.startswith(start):
            pairs = (each.partition(".") for each in part.removeprefix(start).split(","))
            try:
                offers += [(number_of(task), number_of(token)) for task, _, token in pairs]
            except ValueError:
                # Any program that can connect can notify.
                look = True
    return OfferNotice(offers, look)


log: logging.Logger = logging.getLogger(__name__)

PING_SECONDS = 5.0
FIRST_AGAIN_SECONDS = 0.05
LONGEST_AGAIN_SECONDS = 2.0


class Listener:
    def __init__(self, options: Options, origin: str) -> None:
        self.mark: int = 0
        """Rises with every sign of a foreign commit."""
        self.replaced: int = 0
        """How often the connection was lost and made anew."""
        self._options = options
        self._origin = origin
        self._waiting: set[asyncio.Future[None]] = set()
        self._inboxes: dict[str, Inbox] = {}
        self._ended = ReceivedEnds()
        self._changes = ReceivedCommits()
        self._task: asyncio.Task[None] | None = None
        self._begun = self._late = False
        """Late: when something was waited for already."""
        self._ready = asyncio.Event()
        self._commits = frozenset({options.channel, options.offers_channel})
        self._ends = frozenset({options.ends_channel})
        self._required: frozenset[str] = frozenset()
        """Channels for which a store of this process has waited."""
        self._target: frozenset[str] = self._commits | self._ends
        """What it should listen to: everything, until it is known what is needed."""
        self._look_up = asyncio.Event()
        self.channels: set[str] = set()
        """Of which notifications reach this process now."""

    async def start(self) -> None:
        """Begins to listen, and returns when it listens or cannot yet. Else the first wait begins."""
        if not self._begin():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await self._ready.wait()

    def _begin(self) -> bool:
        """False: it has begun already, or cannot."""
        if self._begun:
            return False
        self._begun = True
        if not self._options.listens:
            if self._options.listen != "off":
                log.warning(
                    "LISTEN does not work through the pooler of %s: changes are found by polling, once a second."
                    " Name the server itself in the url: &listen=host:port; or say &listen=off.",
                    self._options.shown,
                )
            return False
        self._task = asyncio.get_running_loop().create_task(
            self._keep(), name="locktender-listener"
        )
        return True

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def notice(self) -> None:
        """Another process may have committed something: wakes all waiters."""
        for inbox in self._inboxes.values():
            inbox.put(OfferNotice([], look=True))
        self._ended.put(None)
        self._changes.request_read()
        self._rise()

    def _rise(self) -> None:
        self.mark += 1
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    async def wait_for_offers(self, worker: str, timeout_seconds: float) -> OfferNotice:
        """Waits for notifications to this worker; after the timeout it reads its orders anyway."""
        self._require(self._options.offers_channel)
        inbox = self._inboxes.get(worker)
        if inbox is None:
            # A process has one worker: drop the inbox of the worker before it, which lost its lease.
            self._inboxes = {worker: Inbox()}
            return self._inboxes[worker].receive()
        try:
            async with asyncio.timeout(timeout_seconds):
                await inbox.filled.wait()
        except TimeoutError:
            inbox.look = True
        return inbox.receive()

    async def ended_runs(self, timeout_seconds: float) -> RunsEnded:
        """Waits for runs that other processes' commits end; after the timeout one looks anyway."""
        self._require(self._options.ends_channel)
        return await self._ended.receive(timeout_seconds)

    def forget_ends(self) -> bool:
        """The caller reads states by itself from now on. False: this process listens to commits anyway."""
        if self._required & self._commits:
            return False
        self._required = frozenset()
        self._listen_to(self._required)
        return True

    async def changes(self, timeout_seconds: float) -> ChangeNotice:
        """Waits for other processes' commits; after the timeout one looks anyway."""
        self._require(self._options.channel)
        return await self._changes.receive(timeout_seconds)

    async def wait(self, seen: int, timeout_seconds: float) -> int:
        """The mark, as soon as it is beyond `seen` or the time is over."""
        self._require(*self._commits)
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

    def _require(self, *channels: str) -> None:
        """Listen to these channels too, beside those that were required before."""
        if not self._begun:
            self._late = self._begin()
        if not self._required.issuperset(channels):
            self._required = self._required.union(channels)
        self._listen_to(self._required)

    def _listen_to(self, channels: frozenset[str]) -> None:
        if channels != self._target:
            self._target = channels
            self._look_up.set()

    async def _keep(self) -> None:
        again = FIRST_AGAIN_SECONDS
        while True:
            try:
                await self._listen()
                again = FIRST_AGAIN_SECONDS
            except StoreError as error:
                log.warning("failed to listen, polling instead: %s", error)
            except Exception:
                log.exception("failed to listen, polling instead: internal error")
            self._ready.set()
            await asyncio.sleep(again)
            again = min(again * 2, LONGEST_AGAIN_SECONDS)

    async def _listen(self) -> None:
        """Listens until the connection is lost."""
        conn = await connect(self._options, self._options.listen_dsn)
        try:
            conn.add_termination_listener(lambda _: self._look_up.set())
            await self._follow(conn)
            if self._ready.is_set():
                self.replaced += 1
            if self._ready.is_set() or self._late:
                # Notifications sent meanwhile are lost: wake all waiters.
                self.notice()
            self._ready.set()
            while not conn.is_closed():
                with suppress(TimeoutError):
                    async with asyncio.timeout(PING_SECONDS):
                        await self._look_up.wait()
                self._look_up.clear()
                if conn.is_closed():
                    break
                new, changed = await self._follow(conn)
                if new & self._commits:
                    self.notice()
                elif not changed:
                    await conn.execute(SQL.text("ping"), timeout=PING_SECONDS)
        except faults.WORLD as error:
            log.warning("the listener lost its connection: %s", type(error).__name__)
        finally:
            self.channels.clear()
            conn.terminate()

    async def _follow(self, conn: asyncpg.Connection[Any]) -> tuple[frozenset[str], bool]:
        """Listens to what is wanted, and to nothing else: what is new, and whether anything has changed."""
        # Read once: what is wanted may change while the server is asked.
        wanted = self._target
        new, over = wanted - self.channels, self.channels - wanted
        for channel in over:
            self.channels.discard(channel)
            await conn.remove_listener(channel, self._receive)
        for channel in new:
            await conn.add_listener(channel, self._receive)
            self.channels.add(channel)
        if new & self._ends:
            # Those of before were not received.
            self._ended.put(None)
        return new, bool(new or over)

    def _receive(
        self,
        _conn: asyncpg.Connection[Any] | asyncpg.pool.PoolConnectionProxy[Any],
        _pid: int,
        _channel: str,
        payload: object,
    ) -> None:
        origin, _, said = str(payload).partition(" ")
        if said.startswith(ENDED):
            if origin != self._origin:
                self._ended.put(_ended_runs(said))
            return
        verb, *parts = said.split(" ")
        if verb == COMMIT:
            # Also of this process's own leader: a worker beside it may be another engine's.
            for worker, inbox in self._inboxes.items():
                inbox.put(notice_to(worker, parts))
        if origin == self._origin:
            return
        if verb == ACCEPT and len(parts) == 1:
            self._changes.accepted(parts[0])
        elif verb == SUBMIT:
            self._changes.queued(*said.split(" ", 3)[1:])
        elif verb == MAIL:
            self._changes.mailed(parts)
        elif verb == OUTBOX:
            self._changes.outbox()
        else:
            self._changes.request_read()
        self._rise()
