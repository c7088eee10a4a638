"""What a worker reports of its attempts: progress, logged lines, and attempts that do not stop.

Progress costs no write: a call replaces one value here, and the next renewal of the lease carries the latest
value of each attempt in the worker's row. Logged lines are written as one row per attempt, in batches: once a
second while it runs and has new ones, and all of them before its end is delivered, so that a client that sees
the end finds them; if that write fails the end goes on without them. An attempt that was asked
to stop and did not (a thread cannot be stopped, an async body may swallow its cancellation) stays *running*
with its permit and its slots: it is named in the log and in the worker's row.

The lease thread reads what the row carries at any moment: values are replaced as a whole, or under a lock.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Iterable
from typing import Final, SupportsFloat, cast

from locktender.base.clock import SECOND
from locktender.base.durations import spoken
from locktender.base.errors import InvalidInput, LocktenderError
from locktender.base.model import LogRow, Progress, Unstopped
from locktender.store.protocol import Store
from locktender.worker.executors.protocol import Stopping

log: logging.Logger = logging.getLogger(__name__)
STOP_US: int = SECOND
"""An attempt that ends within it has stopped as asked."""
MAX_UNSTOPPED = 100
"""How many the worker's row names: of more, those that were asked to stop first."""
MAX_LOG_LINES = 10
"""How many are named in the log at a time."""
_ADVICE = {
    "async": "let CancelledError through, or take blocking calls to a thread",
    "thread": 'a thread cannot be stopped: look at current().stop_requested, or use executor="process"',
}


class UnstoppedReports:
    def __init__(self) -> None:
        self.notes: list[Unstopped] = []
        """What the worker's row names."""
        self._ahead_us = 0
        self._named: set[int] = set()

    def joined(self, at: int, now: int) -> None:
        """It was `at` by the store when it was `now` by the process's own clock."""
        self._ahead_us = at - now

    def update(self, now: int, stopping: Iterable[tuple[str, Stopping]]) -> bool:
        """`stopping`: each with its kind of executor. Whether there are some that were not named before."""
        late = [(kind, each) for kind, each in stopping if now - each.since_us >= STOP_US]
        if not late and not self.notes:
            return False
        late.sort(key=lambda of: of[1].since_us)
        self.notes = [
            Unstopped(each.token, each.task, each.step, each.reason, each.since_us + self._ahead_us)
            for _, each in late[:MAX_UNSTOPPED]
        ]
        new = [(kind, each) for kind, each in late if each.token not in self._named]
        self._named = {each.token for _, each in late}
        for kind, each in new[:MAX_LOG_LINES]:
            log.warning(
                "task %s (step %s) was asked to stop %s ago (%s) and still runs, with its permit and slots; %s",
                each.task,
                each.step,
                spoken(now - each.since_us),
                each.reason,
                _ADVICE.get(kind, "its process is being ended"),
            )
        if len(new) > MAX_LOG_LINES:
            log.warning("%s more were asked to stop and still run", len(new) - MAX_LOG_LINES)
        return bool(new)


MAX_PROGRESS: Final = 256
"""How many attempts' progress the worker's row carries: of more, the latest."""
MAX_MESSAGE: Final = 160
"""Bytes. With `MAX_PROGRESS` it keeps the row's share below 64 kB."""


class ProgressReports:
    """Written by bodies in any thread, read by the lease thread."""

    def __init__(self, most: int = MAX_PROGRESS) -> None:
        self._most = most
        self._latest: dict[int, Progress] = {}
        self._lock = threading.Lock()

    def put(self, progress: Progress) -> None:
        with self._lock:
            latest = self._latest
            latest.pop(progress.token, None)
            latest[progress.token] = progress
            if len(latest) > self._most:
                del latest[next(iter(latest))]

    def forget(self, token: int) -> None:
        """The attempt has ended."""
        if self._latest:  # nearly always empty: no lock then
            with self._lock:
                self._latest.pop(token, None)

    def notes(self) -> list[Progress]:
        """What the worker's row carries."""
        with self._lock:
            return list(self._latest.values())


def progress_of(token: int, done: object, total: object, message: object) -> Progress:
    """Checked here: a number that JSON does not have would spoil the row of the whole worker."""
    return Progress(
        token,
        _number(done, "done"),
        None if total is None else _number(total, "total"),
        str(message).encode("utf-8", "replace")[:MAX_MESSAGE].decode("utf-8", "ignore"),
    )


def _number(value: object, field: str) -> float:
    try:
        number = float(cast("SupportsFloat", value)) if not isinstance(value, str) else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise InvalidInput(
            f"progress takes numbers from 0 up, not {field}={value!r}.",
            field=field,
            got=value,
            hint="progress(done, total): e.g. progress(3, 10). Leave total out if it is not known.",
        )
    return number


LOG_ROWS_PER_WRITE = 100
"""Rows of at most 64 kB per write."""


class LogReports:
    """Writes one row per attempt: of two that wait for the same attempt only the later one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[tuple[int, int], tuple[LogRow, list[asyncio.Future[None]]]] = {}
        """By task and token."""
        self._writer: asyncio.Task[None] | None = None

    async def keep(self, row: LogRow) -> None:
        """Returns when it is stored, or cannot be."""
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._put(row, [stored])
        await stored

    def keep_soon(self, row: LogRow) -> None:
        """What an attempt that runs has logged so far."""
        self._put(row, [])

    def _put(self, row: LogRow, stored: list[asyncio.Future[None]]) -> None:
        key = row.task, row.token
        _, before = self._waiting.pop(key, (row, []))
        self._waiting[key] = row, before + stored
        # A task of its own: a caller may be cancelled, the lines of the others are written all the same.
        if self._writer is None or self._writer.done():
            loop = asyncio.get_running_loop()
            self._writer = loop.create_task(self._write(), name="locktender-logs")

    async def _write(self) -> None:
        while self._waiting:
            keys = list(self._waiting)[:LOG_ROWS_PER_WRITE]
            batch = [self._waiting.pop(key) for key in keys]
            try:
                await self._store_rows([row for row, _ in batch])
            finally:
                for stored in (each for _, several in batch for each in several):
                    if not stored.done():
                        stored.set_result(None)

    async def _store_rows(self, rows: list[LogRow]) -> None:
        try:
            await self._store.keep_logs(rows)
        except LocktenderError as error:
            log.warning("failed to store the log of %s attempts: %s", len(rows), error)
        except Exception:
            log.exception("failed to store the log of %s attempts: internal error", len(rows))
