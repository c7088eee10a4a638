"""One connection that runs one verb at a time, first come, first served; replaced when it is lost.

A verb runs to its end even if its caller stops waiting, because cancelling a
query would cost the connection. If the connection is lost

  before anything was sent, or before the transaction's commit
      nothing was stored: the verb runs again, once;
  after that
      it may have been stored: `StoreError`, and the caller repeats the verb,
      which is idempotent on its ids.

Reads always run again.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import asyncpg

from locktender.base.errors import StoreError
from locktender.store.forked_children import close_in_children
from locktender.store.postgres import faults
from locktender.store.postgres.composed_sql import Dialect
from locktender.store.postgres.options import Options
from locktender.store.postgres.session import KnownStatements, PostgresSession

T = TypeVar("T")
Verb = Callable[[PostgresSession], Awaitable[T]]

CONNECT_SECONDS = 10.0
COMMAND_SECONDS = 30.0
CACHED_STATEMENTS = 500
MAX_WAITING = 10_000
CLOSE_SECONDS = 5.0
"""How long verbs may still run when the store is closed."""
SETTINGS = {
    "application_name": "locktender",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_material": "off",
    "tcp_keepalives_idle": "2",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    # Whatever the server's default: what was answered is on the disk.
    "synchronous_commit": "on",
}
"""A connection whose other end is gone ends within 8 s: a worker's proof of life must not outlast it for long.
The server plans a statement once, maybe while the tables are empty, and keeps the plan while they grow.
So the plan must suit many rows: by index, row by row. A bitmap scan would read each entry of a state that 100,000
ended runs have left behind, at each question, until the next vacuum; an index scan marks them dead."""
_TRIES = 3
_KEEPALIVE = {"TCP_KEEPIDLE": 2, "TCP_KEEPALIVE": 2, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
"""As the server's, by the names of Linux and macOS."""


class _KeptAlive(asyncpg.Connection):  # pyright: ignore[reportMissingTypeArgument]
    """A connection that ends within 8 s where the server's machine is gone."""

    def __init__(self, protocol: Any, transport: asyncio.Transport, *args: Any) -> None:
        super().__init__(protocol, transport, *args)
        found = self._found = transport.get_extra_info("socket")
        close_in_children(self)
        if found is not None and found.family in (socket.AF_INET, socket.AF_INET6):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE.items():
                if (option := getattr(socket, name, None)) is not None:
                    found.setsockopt(socket.IPPROTO_TCP, option, value)

    def descriptors(self) -> list[int]:
        """A copy in a forked child would prove the life of a parent that is dead."""
        return [] if self._found is None or self._found.fileno() < 0 else [self._found.fileno()]


async def connect(options: Options, dsn: str | None = None) -> asyncpg.Connection[Any]:
    """A new connection; `StoreError` if connecting failed."""
    try:
        return await asyncpg.connect(
            dsn or options.dsn,
            timeout=CONNECT_SECONDS,
            command_timeout=COMMAND_SECONDS,
            statement_cache_size=0 if options.pooled else CACHED_STATEMENTS,
            max_cached_statement_lifetime=0,
            connection_class=_KeptAlive,
            # A pooler accepts no settings in the startup packet.
            server_settings=None if options.pooled else SETTINGS,
        )
    except faults.WORLD as error:
        raise faults.translate(error, options.shown) from error
    except ValueError as error:
        raise StoreError(
            f"the url of {options.shown} cannot be used: {error}.", field="url", got=options.shown
        ) from error


class Connection:
    def __init__(
        self,
        options: Options,
        sql: Dialect,
        known: KnownStatements,
        before: Callable[[PostgresSession], Awaitable[None]] | None = None,
    ) -> None:
        self._options = options
        self._sql = sql
        self._known = known
        self._before = before
        self._conn: asyncpg.Connection[Any] | None = None
        self._turn = asyncio.Lock()
        self._room = asyncio.Semaphore(MAX_WAITING)
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def call(self, verb: Verb[T], *, read: bool = False) -> T:
        """The verb's result. A caller that stops waiting does not stop the verb."""
        async with self._room:
            if self._closed:
                raise StoreError("the store is closed.", hint="Open it first.")
            task = asyncio.get_running_loop().create_task(self._serve(verb, read=read))
            self._running.add(task)
            task.add_done_callback(self._done)
            return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            # The caller may be gone: read the exception, so that asyncio does not log it.
            task.exception()

    @property
    def busy(self) -> bool:
        """A verb is running."""
        return self._turn.locked()

    @property
    def backend(self) -> int:
        """The server's number for the connection; 0: there is none, or it is the pooler's."""
        if self._conn is None or self._conn.is_closed() or self._options.pooled:
            return 0
        return self._conn.get_server_pid()

    async def close(self) -> None:
        """Finishes the verbs that were called, then disconnects, after `CLOSE_SECONDS` at the latest."""
        self._closed = True
        if self._running:
            _, left = await asyncio.wait(self._running, timeout=CLOSE_SECONDS)
            if left:
                # Whether these were stored stays unknown, as after a crash of this process.
                if self._conn is not None:
                    self._conn.terminate()
                for task in left:
                    task.cancel()
                await asyncio.wait(left, timeout=1.0)
        await self._disconnect()

    async def _serve(self, verb: Verb[T], *, read: bool) -> T:
        # asyncio's lock is first come, first served: commits stay in the order they were decided.
        async with self._turn:
            for attempt in range(1, _TRIES + 1):
                session = PostgresSession(
                    await self._connected(), self._sql, self._options, self._known
                )
                try:
                    return await self._run(verb, session)
                except faults.ROLLED_BACK as error:
                    if attempt == _TRIES:
                        raise faults.translate(error, self._options.shown) from error
                except faults.WORLD as error:
                    lost = session.conn.is_closed() or (
                        isinstance(error, faults.CONNECTION) and not faults.refuses_data(error)
                    )
                    if lost or isinstance(error, TimeoutError):
                        await self._disconnect()
                    if not lost or attempt > 1 or (session.uncertain and not read):
                        raise faults.translate(error, self._options.shown) from error
            raise AssertionError("unreachable")

    async def _run(self, verb: Verb[T], session: PostgresSession) -> T:
        if self._before is not None:
            await self._before(session)
            session.uncertain = False
        return await verb(session)

    async def _connected(self) -> asyncpg.Connection[Any]:
        if self._conn is None or self._conn.is_closed():
            self._conn = await connect(self._options)
        return self._conn

    async def _disconnect(self) -> None:
        conn, self._conn = self._conn, None
        if conn is None:
            return
        try:
            await conn.close(timeout=1.0)
        except (*faults.WORLD, asyncio.CancelledError):
            conn.terminate()
