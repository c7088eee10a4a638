"""The listener: one connection that hears of other processes' commits.

A notification only says *look*: rows are the truth, and whoever waits looks
again after its timeout anyway, so that a lost one costs a poll. A listener that
is dead is noticed by its own end, or by a ping that gets no answer, and is
replaced; everybody is woken then, because what was said meanwhile is lost.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

import asyncpg

from headgate.base.errors import StoreError
from headgate.store.postgres import faults
from headgate.store.postgres.line import connect
from headgate.store.postgres.options import Options
from headgate.store.postgres.session import SQL

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
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    async def start(self) -> None:
        """Begins to listen; returns when it does, or when it cannot yet."""
        if self._options.listen == "off" or self._task is not None:
            return
        self._task = asyncio.get_running_loop().create_task(self._keep(), name="headgate-listener")
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
        """Something foreign was committed: whoever waits looks."""
        self.mark += 1
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

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
                log.warning("no listener, polling meanwhile: %s", error)
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
                # What was said while nobody listened is lost: everybody looks.
                self.notice()
            self._ready.set()
            while not lost.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(PING_SECONDS):
                        await lost.wait()
                if not lost.is_set():
                    await conn.execute(SQL.text("ping"), timeout=PING_SECONDS)
        except faults.WORLD as error:
            log.warning("the listener is lost: %s", type(error).__name__)
        finally:
            conn.terminate()

    def _hear(
        self,
        _conn: asyncpg.Connection[Any] | asyncpg.pool.PoolConnectionProxy[Any],
        _pid: int,
        _channel: str,
        payload: object,
    ) -> None:
        if str(payload).partition(" ")[0] != self._origin:
            self.notice()
