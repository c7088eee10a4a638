"""Verbs of `Reading` for clients and observers; the statements are called in `reads.py`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from locktender.base.changes import TaskRow
from locktender.base.events import EventRow
from locktender.base.limits import Limits
from locktender.base.model import (
    HeldUp,
    LimitChange,
    LimitRow,
    LogFilter,
    LogRow,
    LogTotal,
    NamedLog,
    NewestLogs,
    RunRow,
    WorkerRow,
)
from locktender.store.postgres import event_order, reads, requests
from locktender.store.postgres.session import PostgresSession
from locktender.store.protocol import (
    FOREVER_US,
    CountedTasks,
    Counts,
    EventFilter,
    Follow,
    Followed,
    OpenRuns,
    QueueEntry,
    QueuePlace,
    QueueView,
    RunFilter,
    RunLabel,
    TaskFilter,
    Traffic,
)

T = TypeVar("T")


class PostgresReading:
    """A part of `PostgresStore`."""

    def _read(self, verb: Callable[[PostgresSession], Awaitable[T]]) -> Awaitable[T]:
        raise NotImplementedError

    def _query(self, verb: Callable[[PostgresSession], Awaitable[T]]) -> Awaitable[T]:
        raise NotImplementedError

    async def run(self, run_id: str) -> RunRow | None:
        return await self._read(lambda tx: reads.run(tx, run_id))

    async def run_labels(self, runs: Sequence[int]) -> dict[int, RunLabel]:
        return await self._read(lambda tx: reads.run_labels(tx, runs))

    async def run_states(self, runs: Sequence[int]) -> dict[int, str]:
        return await self._read(lambda tx: reads.run_states(tx, runs))

    async def runs(self, where: RunFilter) -> list[RunRow]:
        return await self._query(lambda tx: reads.runs(tx, where))

    async def failed_lately(self, limit: int) -> list[RunRow]:
        return await self._query(lambda tx: reads.failed_lately(tx, limit))

    async def tasks(self, run: int) -> list[TaskRow]:
        return await self._read(lambda tx: reads.tasks(tx, run))

    async def task_page(self, where: TaskFilter) -> CountedTasks:
        return await self._query(lambda tx: reads.task_page(tx, where))

    async def events(self, where: EventFilter) -> list[EventRow]:
        return await self._query(lambda tx: reads.events(tx, where))

    async def follow(self, follow: Follow) -> Followed:
        return await self._query(lambda tx: event_order.follow_on(tx, follow))

    async def held_up(self) -> HeldUp:
        return await self._query(reads.held_up)

    async def log_counts(self, run: int, task: int | None = None) -> dict[tuple[int, int], int]:
        rows = await self._query(lambda tx: tx.all("log_counts", run, task))
        return {(task, token): lines for task, token, lines in rows}

    async def logs(self, where: LogFilter) -> list[LogRow]:
        return await self._query(lambda tx: reads.logs(tx, where))

    async def newest_logs(self, where: NewestLogs) -> list[NamedLog]:
        return await self._query(lambda tx: reads.newest_logs(tx, where))

    async def log_total(self, run: int, task: int | None, most: int) -> LogTotal:
        row = await self._query(lambda tx: tx.row("log_total", run, task, most))
        return LogTotal(*row)

    async def queue(self, limit: int, after: QueuePlace | None = None) -> list[QueueEntry]:
        return await self._query(lambda tx: reads.queue(tx, limit, after))

    async def traffic(
        self, lanes: int, runs: int, queued_us: int = FOREVER_US, moved_us: int = FOREVER_US
    ) -> Traffic:
        return await self._query(lambda tx: reads.traffic(tx, lanes, runs, queued_us, moved_us))

    async def beside(self, run: int, most: int) -> QueueView | None:
        return await self._query(lambda tx: reads.beside(tx, run, most))

    async def executing_tasks(self, most: int) -> int:
        return await self._query(lambda tx: reads.executing_tasks(tx, most))

    async def answer_to(self, question: str) -> bytes | None:
        return await self._query(lambda tx: requests.answer_to(tx, question))

    async def workers(self) -> list[WorkerRow]:
        return await self._read(reads.workers)

    async def leader(self) -> str | None:
        return await self._read(reads.leader)

    async def limits(self) -> tuple[Limits, list[LimitRow]]:
        return await self._read(reads.limits_in_force)

    async def limit_history(self, limit: int) -> list[LimitChange]:
        return await self._query(lambda tx: reads.limit_history(tx, limit))

    async def counts(self) -> Counts:
        return await self._query(reads.counts)

    async def open_runs(self) -> OpenRuns:
        return await self._query(reads.open_runs)
