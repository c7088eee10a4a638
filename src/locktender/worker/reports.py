"""Attempts that were told to stop and have not: named in the log, and carried by the worker's beat.

A thread cannot be stopped, and an async body may swallow its cancellation. Such
an attempt stays *running*, with its permit and its slots, until it ends by
itself. Whoever waits for those must be able to see it.

Looked for on the worker's loop; `notes` is replaced as a whole, so that the
thread of the lease may read it at any moment.

How far attempts are, by their own word: the latest of each, carried by the worker's beat.

A call of `progress()` writes nothing: it replaces one value here. The beat that
renews the lease anyway takes what is there along, so that progress costs no
write of its own, however many tasks report how often, and is seen by others
within one beat. It is bounded in number and bytes, and goes with its attempt.

What attempts logged, on its way to the store: one row per attempt, before its end is told.

While one write is on its way the next batch gathers, so that a thousand tasks
that log cost a few writes and not a thousand. An attempt's end waits for its
lines, so that whoever sees the end finds them. If the store does not take them
the end goes on without: lines are worth a warning, not a task.
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
from locktender.base.model import LogRow, Progress, Stubborn
from locktender.store.protocol import Store
from locktender.worker.executors.protocol import Stopping

log: logging.Logger = logging.getLogger(__name__)
PATIENCE_US: int = SECOND
"""What ends within it ended as it was told."""
MAX_STUBBORN = 100
"""How many a beat carries: of more, those that were told first."""
MOST_LINES = 10
"""How many are named in the log at a time."""
_ADVICE = {
    "async": "let CancelledError through, or take blocking calls to a thread",
    "thread": 'a thread cannot be stopped: look at current().stop_requested, or use executor="process"',
}


class StubbornReports:
    def __init__(self) -> None:
        self.notes: list[Stubborn] = []
        """What the next beat carries."""
        self._ahead_us = 0
        self._named: set[int] = set()

    def joined(self, at: int, now: int) -> None:
        """It was `at` by the store when it was `now` by the process's own clock."""
        self._ahead_us = at - now

    def look(self, now: int, stopping: Iterable[tuple[str, Stopping]]) -> bool:
        """`stopping`: each with its kind of executor. Whether there are some that nobody has heard of yet."""
        late = [(kind, each) for kind, each in stopping if now - each.since_us >= PATIENCE_US]
        if not late and not self.notes:
            return False
        late.sort(key=lambda of: of[1].since_us)
        self.notes = [
            Stubborn(each.token, each.task, each.step, each.reason, each.since_us + self._ahead_us)
            for _, each in late[:MAX_STUBBORN]
        ]
        new = [(kind, each) for kind, each in late if each.token not in self._named]
        self._named = {each.token for _, each in late}
        for kind, each in new[:MOST_LINES]:
            log.warning(
                "task %s (step %s) was told to stop %s ago (%s) and still runs, with its permit and its slots; %s",
                each.task,
                each.step,
                spoken(now - each.since_us),
                each.reason,
                _ADVICE.get(kind, "its process is being ended"),
            )
        if len(new) > MOST_LINES:
            log.warning("%s more were told to stop and still run", len(new) - MOST_LINES)
        return bool(new)


MAX_PROGRESS: Final = 256
"""How many attempts' progress a beat carries: of more, those that spoke last."""
MAX_MESSAGE: Final = 160
"""Bytes. With `MAX_PROGRESS` it keeps a beat's share below 64 kB."""


class ProgressReports:
    """Written by bodies in any thread, read by the thread that beats."""

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
        """What the next beat carries."""
        with self._lock:
            return list(self._latest.values())


def progress_of(token: int, done: object, total: object, message: object) -> Progress:
    """Checked here: a number that JSON does not have would spoil the beat of the whole worker."""
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
            hint="progress(done, total): e.g. progress(3, 10). Leave total out if nobody knows it.",
        )
    return number


BATCH = 100
"""Rows of at most 64 kB per write."""


class LogReports:
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
