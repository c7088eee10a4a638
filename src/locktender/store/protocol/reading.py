"""What anyone may read, without a fence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, NewType, Protocol

import msgspec

from locktender.base.changes import CachedResult, KeptPlace, TaskRow
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
from locktender.store.protocol.base import StoreBase


class RunFilter(msgspec.Struct, frozen=True):
    states: list[str] | None = None
    tags: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    flow: str | None = None
    """Without it, holds of slots (`locktender:hold`) are left out: nobody submitted them."""
    limit: int = 100
    before: int | None = None
    """Only runs with a smaller seq: the next page."""
    since: int = 0
    """Only runs with this seq or a larger one."""
    key: str | None = None
    """Only runs that have this key, active or not; states, tags and flow do not apply then."""
    id_prefix: str | None = None
    """Runs whose id begins so, by id; the other conditions do not apply then."""


class TaskFilter(msgspec.Struct, frozen=True):
    """Some tasks of a run, by number."""

    run: int
    nodes: list[int] | None = None
    """Steps by their place in the graph; None: all."""
    states: list[str] | None = None
    after: int = 0
    limit: int = 50


class NodeCount(NamedTuple):
    """How many tasks of a step are in a state."""

    node: int
    state: str
    tasks: int


class CountedTasks(NamedTuple):
    counts: list[NodeCount]
    """Of all tasks of the run."""
    tasks: list[TaskRow]
    """Those of the filter, by number."""


class QueueEntry(msgspec.Struct, frozen=True):
    run: RunRow
    position: int


class QueuePlace(NamedTuple):
    """A run by its number, and where it stood in the queue, from 1."""

    run: int
    position: int


class LineGroup(msgspec.Struct, frozen=True):
    """Queued runs of one lane and one priority."""

    lane: str
    """Its signature, as `kernel.lanes` makes and reads it."""
    rank: int
    """The first part of their rank: smaller goes first."""
    waiting: int
    older: int
    """How many of them stand before the run in question by rank and age."""


class QueueLine(msgspec.Struct, frozen=True):
    """The queue as one queued run sees it: runs of its priority or higher, counted by lane."""

    rank: int
    groups: list[LineGroup]
    """With a fair key all who take turns with it; else only those that stand before it by rank and age."""
    cut: bool = False
    """There are more than were asked for: some are not counted here. Its own lane is counted first."""
    ahead: int | None = None
    """How many stand before it by rank and age; None: with a fair key, where that is not the order."""
    more: bool = False
    """`ahead` is a bound: there are more than were asked for before it, and behind it."""
    queued: int | None = None
    """How many runs are queued in all, by the counters; None: with a fair key."""


class QueueView(msgspec.Struct, frozen=True):
    """What decides when a queued run starts, of one instant: who executes, and who waits beside it."""

    now: int
    limits: Limits
    limit_rows: list[LimitRow]
    executing: list[RunRow]
    """Runs with a place, by seq: they execute, or are held with something in flight. Without their values."""
    unplaced: list[int]
    """Those of `executing` that gave their place back."""
    kept: list[KeptPlace]
    """Runs that have no place and keep it at some limits."""
    lasted: list[int]
    """How long runs of its flow lasted, of those that ended lately."""
    line: QueueLine


class EventFilter(msgspec.Struct, frozen=True):
    """Events that are visible now, by number. An event with a smaller number may become visible later."""

    run: int | None = None
    after: int = 0
    limit: int = 10_000
    newest: bool = False
    """Of all runs: the last `limit`, and not the first. In their order either way."""
    settled: bool = False
    """Of all runs: only events before which none can be added any more (`HeldUp.lag_us` says how old they are)."""


Cursor = NewType("Cursor", str)
"""Where a follower of the history stands. It means something to the store that gave it, and to no other code."""
BEGINNING = Cursor("")
LATEST = Cursor("latest")
"""No event is read: the answer has the cursor behind all that is visible now."""


class Follow(msgspec.Struct, frozen=True):
    """Read every event that became visible since `after`, each exactly once.

    Events of one answer are in the order of their numbers. An event in a later answer may have a smaller
    number; it never follows from one of an earlier answer with a larger number.
    """

    after: Cursor = BEGINNING
    run: int | None = None
    """Only events of this run; the cursor passes over the others."""
    limit: int = 5_000


class Followed(msgspec.Struct, frozen=True):
    cursor: Cursor
    events: list[EventRow]
    behind: list[Cursor]
    """For each of `events` the cursor that goes on behind it."""


class RecentRun(NamedTuple):
    """When a run was queued, started and ended; 0: not yet."""

    state: str
    queued_at: int
    started_at: int
    ended_at: int


class Traffic(NamedTuple):
    """What came in and went out lately, and what waits where."""

    now: int
    by_lane: list[tuple[str, int]]
    """Signature, as `kernel.lanes` reads it, and how many runs are queued there, the most first."""
    lately: list[RecentRun]
    """Of the newest runs those that were queued, started or ended lately, the newest first."""
    read: int
    """How many of the newest runs were looked at, without holds of slots."""
    oldest_at: int
    """When the oldest of these was queued; 0: there is none."""


FOREVER_US: Final = 2**60


FRONT: Final = (-(2**63), -(2**63), -(2**63))
"""Before the first rank of the queue."""


class RunLabel(NamedTuple):
    """What tells whose a run is, by its number."""

    id: str
    flow: str
    tags: dict[str, str]


class Counts(msgspec.Struct, frozen=True):
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
    waiting: int = 0


class OpenRuns(msgspec.Struct, frozen=True):
    """How many runs are not over, for metrics: cheap to read however many wait."""

    queued: int
    executing: int
    held: int
    waiting: int
    active: int
    """By the counter of the admission ceiling."""
    oldest_at: int
    """When the queued run that has waited longest was queued; 0: none is queued."""


class RunsEnded(msgspec.Struct, frozen=True):
    """Ends of runs that a waiting client was notified of. Only a hint: the rows decide."""

    runs: list[int]
    """Named by the notification itself."""
    look: bool
    """There may be more: read the states of those that are waited for."""


class Reading(StoreBase, Protocol):
    async def graph(self, digest: str) -> bytes: ...
    async def run(self, run_id: str) -> RunRow | None: ...
    async def run_states(self, runs: Sequence[int]) -> dict[int, str]:
        """The states of these runs (their `seq`), as far as they exist: for thousands at a time."""
        ...

    async def run_labels(self, runs: Sequence[int]) -> dict[int, RunLabel]:
        """Ids, flows and tags of these runs (their `seq`), as far as they exist."""
        ...

    async def wait_for_ends(self, timeout_us: int) -> RunsEnded:
        """Waits for runs that another process ends, for at most `timeout_us`.

        For one caller per store object. Ends of a moment in which the connection was down are
        not named: `look` is set then, and the first time, and after the timeout.
        """
        ...

    async def forget_ends(self) -> bool:
        """The caller reads states by itself from now on: other processes' commits need not wake this one.

        False: notifications are free here, or arrive in any case. Ends before the next `wait_for_ends` are
        named by it, or it sets `look`.
        """
        return False

    async def runs(self, where: RunFilter) -> list[RunRow]: ...
    async def failed_lately(self, limit: int) -> list[RunRow]:
        """Runs that failed or timed out, the one that ended last first."""
        ...

    async def tasks(self, run: int) -> list[TaskRow]: ...
    async def task_page(self, where: TaskFilter) -> CountedTasks:
        """Of a run with very many tasks: how many are in which state, and some of them."""
        ...

    async def events(self, where: EventFilter) -> list[EventRow]: ...
    async def follow(self, follow: Follow) -> Followed:
        """Raises `HistoryReplaced` if the cursor is of another history."""
        ...

    async def held_up(self) -> HeldUp:
        """Sessions of the database server that delay the store, and by how much the settled history lags."""
        ...

    async def logs(self, where: LogFilter) -> list[LogRow]: ...
    async def newest_logs(self, where: NewestLogs) -> list[NamedLog]:
        """Read by an index: what it costs does not grow with the run."""
        ...

    async def log_total(self, run: int, task: int | None, most: int) -> LogTotal:
        """How many lines a run has logged, of at most `most` attempts."""
        ...

    async def log_counts(self, run: int, task: int | None = None) -> dict[tuple[int, int], int]:
        """(task, token) of each attempt of a run that has logged → how many lines, in all."""
        ...

    async def queue(self, limit: int, after: QueuePlace | None = None) -> list[QueueEntry]:
        """Queued runs in their global order (priority, then age): the first, or those behind `after`.

        The run of `after` may have left the queue.
        """
        ...

    async def traffic(
        self, lanes: int, runs: int, queued_us: int = FOREVER_US, moved_us: int = FOREVER_US
    ) -> Traffic:
        """The longest lanes of the queue, and the times of the newest runs.

        Of these only what was queued in the last `queued_us`, or started or ended in the last `moved_us`: most of
        10,000 may be old, and a row that is not returned costs a tenth.
        """
        ...

    async def beside(self, run: int, most: int) -> QueueView | None:
        """Who executes and who waits beside this run; None if it is not queued.

        At most `most` queued runs are counted of its own lane, before it, behind it, and of all that take
        turns with it: the cost does not grow with the queue.
        """
        ...

    async def cached_results(
        self, step: str | None = None, flow: str | None = None, limit: int = 1_000
    ) -> list[CachedResult]:
        """Results that are kept and not past their time, the newest first, without their values."""
        ...

    async def cached_result(self, key: str) -> list[CachedResult]:
        """The one whose key begins so; two, where there are more."""
        ...

    async def executing_tasks(self, most: int) -> int:
        """How many tasks the executing runs have, ended ones included; counted up to `most`."""
        ...

    async def answer_to(self, question: str) -> bytes | None:
        """What the leader answered to a question; None: not yet."""
        ...

    async def workers(self) -> list[WorkerRow]: ...
    async def leader(self) -> str | None:
        """The current leader; None if no leader lease is alive."""
        ...

    async def limits(self) -> tuple[Limits, list[LimitRow]]: ...
    async def limit_history(self, limit: int) -> list[LimitChange]: ...
    async def counts(self) -> Counts: ...
    async def open_runs(self) -> OpenRuns: ...
    async def stale_writes(self) -> int:
        """How many stale writes were refused since the store was opened (`locktender_stale_writes_total`)."""
        ...
