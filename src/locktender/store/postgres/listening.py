"""The connection that listens: one for all stores of a process that use the same schema in the same event loop.

PostgreSQL wakes every listening connection of a database at each commit that notifies, whatever its channel. So
ten clients of one process would cost ten wake-ups at each commit of anybody.

It listens to ends of runs, and to everything while one of its listeners wants that. A dead connection is detected
by its end or by a ping that times out, and is replaced.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import asyncpg

from locktender.base.errors import StoreError
from locktender.store.postgres import faults
from locktender.store.postgres.connection import connect
from locktender.store.postgres.options import Options
from locktender.store.postgres.session import SQL

log: logging.Logger = logging.getLogger(__name__)

PING_SECONDS = 5.0
FIRST_AGAIN_SECONDS = 0.05
LONGEST_AGAIN_SECONDS = 2.0


class Hearer(Protocol):
    """A store's listener."""

    @property
    def wants_all(self) -> bool:
        """Notifications of every commit, not only of ends of runs."""
        ...

    def listens(self, connection: int, *, to_all: bool) -> None:
        """From here on notifications reach it; `connection` differs from the last one where that was lost."""
        ...

    def lost(self) -> None:
        """No notifications reach it until `listens`; what is sent meanwhile is lost."""
        ...

    def receive(self, payload: str) -> None: ...


class ListeningConnection:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._hearers: dict[Hearer, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._made = 0
        """Connections so far."""
        self._look_up = asyncio.Event()

    def join(self, hearer: Hearer) -> None:
        self._hearers[hearer] = None
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(
                self._keep(), name="locktender-listener"
            )
        self.look_up()

    def look_up(self) -> None:
        """What a hearer wants has changed."""
        self._look_up.set()

    async def leave(self, hearer: Hearer) -> None:
        self._hearers.pop(hearer, None)
        self.look_up()
        task = self._task
        if self._hearers or task is None:
            return
        self._task = None
        self._forget()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    def _forget(self) -> None:
        """The next listener of this loop begins anew."""
        here = _of_loops.get(asyncio.get_running_loop(), {})
        if here.get(_place(self._options)) is self:
            del here[_place(self._options)]

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
            for hearer in list(self._hearers):
                hearer.lost()
            await asyncio.sleep(again)
            again = min(again * 2, LONGEST_AGAIN_SECONDS)

    async def _listen(self) -> None:
        """Listens until the connection is lost."""
        conn = await connect(self._options, self._options.listen_dsn)
        try:
            conn.add_termination_listener(lambda _: self._look_up.set())
            await conn.add_listener(self._options.ends_channel, self._receive)
            self._made += 1
            to_all = False
            while not conn.is_closed():
                self._look_up.clear()
                to_all = await self._choose(conn, to_all)
                for hearer in list(self._hearers):
                    hearer.listens(self._made, to_all=to_all)
                try:
                    async with asyncio.timeout(PING_SECONDS):
                        await self._look_up.wait()
                except TimeoutError:
                    if not conn.is_closed():
                        await conn.execute(SQL.text("ping"), timeout=PING_SECONDS)
        except faults.WORLD as error:
            log.warning("the listener lost its connection: %s", type(error).__name__)
        finally:
            conn.terminate()

    async def _choose(self, conn: asyncpg.Connection[Any], to_all: bool) -> bool:
        """Whether it listens to everything from here on."""
        wanted = any(hearer.wants_all for hearer in self._hearers)
        if wanted and not to_all:
            await conn.add_listener(self._options.channel, self._receive)
        elif to_all and not wanted:
            await conn.remove_listener(self._options.channel, self._receive)
        return wanted

    def _receive(
        self,
        _conn: asyncpg.Connection[Any] | asyncpg.pool.PoolConnectionProxy[Any],
        _pid: int,
        _channel: str,
        payload: object,
    ) -> None:
        said = str(payload)
        for hearer in list(self._hearers):
            hearer.receive(said)


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str], ListeningConnection]]
_of_loops = WeakKeyDictionary()


def listening_connection(options: Options) -> ListeningConnection:
    """The one of this loop, to where these options listen."""
    here = _of_loops.setdefault(asyncio.get_running_loop(), {})
    found = here.get(_place(options))
    if found is None:
        found = here[_place(options)] = ListeningConnection(options)
    return found


def _place(options: Options) -> tuple[str, str]:
    return options.listen_dsn, options.channel
