"""What anyone may read, without a fence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from locktender.base.changes import TaskRow
from locktender.base.events import EventRow
from locktender.base.limits import Limits
from locktender.base.model import LimitChange, LimitRow, LogFilter, LogRow, RunRow, WorkerRow
from locktender.store.protocol.base import StoreBase


@dataclass(frozen=True, slots=True)
class RunFilter:
    states: list[str] | None = None
    tags: dict[str, str] = field(default_factory=dict[str, str])
    flow: str | None = None
    """Without it, holds of slots (`locktender:hold`) are left out: nobody submitted them."""
    limit: int = 100
    before: int | None = None
    """Only runs with a smaller seq: the next page."""
    id_prefix: str | None = None
    """Runs whose id begins so, by id; the other conditions do not apply then."""


@dataclass(frozen=True, slots=True)
class QueueEntry:
    run: RunRow
    position: int


@dataclass(frozen=True, slots=True)
class LineGroup:
    """Queued runs of one lane and one priority."""

    lane: str
    """Its signature, as `kernel.lanes` makes and reads it."""
    rank: int
    """The first part of their rank: smaller goes first."""
    waiting: int
    older: int
    """How many of them stand before the run in question by rank and age."""


@dataclass(frozen=True, slots=True)
class QueueLine:
    """The queue as one queued run sees it: runs of its priority or higher, counted by lane."""

    rank: int
    groups: list[LineGroup]
    cut: bool = False
    """There are more than were asked for: some are not counted here. Its own lane is counted first."""


@dataclass(frozen=True, slots=True)
class EventFilter:
    run: int | None = None
    after: int = 0
    limit: int = 10_000
    newest: bool = False
    """Of all runs: the last `limit`, and not the first. In their order either way."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Counters and the rows they must equal: what the audit compares.

    Names are those of `TagRule.counter`, and '' for all runs.
    """

    admitted: dict[str, int]
    closed: dict[str, int]
    active: dict[str, int]
    """Counted from rows, under the same names."""
    held: dict[str, int]
    """Slots in use per pool, summed from task rows."""
    queued: int
    executing: int


class Reading(StoreBase, Protocol):
    async def graph(self, digest: str) -> bytes: ...
    async def run(self, run_id: str) -> RunRow | None: ...
    async def runs(self, where: RunFilter) -> list[RunRow]: ...
    async def tasks(self, run: int) -> list[TaskRow]: ...
    async def events(self, where: EventFilter) -> list[EventRow]: ...
    async def logs(self, where: LogFilter) -> list[LogRow]: ...
    async def queue(self, limit: int) -> list[QueueEntry]:
        """Queued runs in their global order (priority, then age)."""
        ...

    async def line(self, run: int, most: int) -> QueueLine | None:
        """The runs that wait beside this one, by lane and priority; None if it is not queued.

        At most `most` of its own lane are counted, and as many of all others.
        """
        ...

    async def workers(self) -> list[WorkerRow]: ...
    async def leader(self) -> str | None:
        """The current leader; None if no leader lease is alive."""
        ...

    async def limits(self) -> tuple[Limits, list[LimitRow]]: ...
    async def limit_history(self, limit: int) -> list[LimitChange]: ...
    async def counts(self) -> Counts: ...
    async def stale_writes(self) -> int:
        """How many stale writes were refused since the store was opened (`locktender_stale_writes_total`)."""
        ...
