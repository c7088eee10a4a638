"""What attempts logged, on its way to the store: one row per attempt, before its end is told.

While one write is on its way the next batch gathers, so that a thousand tasks
that log cost a few writes and not a thousand. An attempt's end waits for its
lines, so that whoever sees the end finds them. If the store does not take them
the end goes on without: lines are worth a warning, not a task.
"""

from __future__ import annotations

import asyncio
import logging

from headgate.base.errors import HeadgateError
from headgate.base.logs import LogRow
from headgate.store.protocol import Store

log: logging.Logger = logging.getLogger(__name__)
BATCH = 100
"""Rows of at most 64 kB per write."""


class LogKeeper:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[tuple[LogRow, asyncio.Future[None]]] = []
        self._writing = False

    async def keep(self, row: LogRow) -> None:
        """Returns when it is stored, or cannot be."""
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((row, stored))
        if not self._writing:
            await self._write()
        await stored

    async def _write(self) -> None:
        """Whoever comes first writes for all who come meanwhile."""
        self._writing = True
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
                try:
                    await self._store_rows([row for row, _ in batch])
                finally:
                    for _, stored in batch:
                        if not stored.done():
                            stored.set_result(None)
        finally:
            self._writing = False

    async def _store_rows(self, rows: list[LogRow]) -> None:
        try:
            await self._store.keep_logs(rows)
        except HeadgateError as error:
            log.warning("what %s attempts logged is lost: %s", len(rows), error)
