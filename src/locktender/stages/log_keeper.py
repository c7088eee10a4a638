"""What attempts logged, on its way to the store: one row per attempt, before its end is told.

While one write is on its way the next batch gathers, so that a thousand tasks
that log cost a few writes and not a thousand. An attempt's end waits for its
lines, so that whoever sees the end finds them. If the store does not take them
the end goes on without: lines are worth a warning, not a task.
"""

from __future__ import annotations

import asyncio
import logging

from locktender.base.errors import LocktenderError
from locktender.base.logs import LogRow
from locktender.store.protocol import Store

log: logging.Logger = logging.getLogger(__name__)
BATCH = 100
"""Rows of at most 64 kB per write."""


class LogKeeper:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[tuple[LogRow, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def keep(self, row: LogRow) -> None:
        """Returns when it is stored, or cannot be."""
        loop = asyncio.get_running_loop()
        stored: asyncio.Future[None] = loop.create_future()
        self._waiting.append((row, stored))
        # A task of its own: whoever waits may be cancelled, the others' lines go on.
        if self._writer is None or self._writer.done():
            self._writer = loop.create_task(self._write(), name="locktender-logs")
        await stored

    async def _write(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
            try:
                await self._store_rows([row for row, _ in batch])
            finally:
                for _, stored in batch:
                    if not stored.done():
                        stored.set_result(None)

    async def _store_rows(self, rows: list[LogRow]) -> None:
        try:
            await self._store.keep_logs(rows)
        except LocktenderError as error:
            log.warning("what %s attempts logged is lost: %s", len(rows), error)
