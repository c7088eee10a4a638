"""Lists of what has certain tags, in parts: no index has the tags, so that rows of others are examined, too.

Each verb examines at most `most` rows behind a place and returns those that match, with the place to go on from.
So a caller whose rows stand behind a million of others reads them in parts of a bounded length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from locktender.base.events import EventRow
from locktender.base.model import RunRow
from locktender.store.protocol.base import StoreBase
from locktender.store.protocol.mailing import EventWaiter
from locktender.store.protocol.reading import QueueEntry, QueuePlace, RunFilter

T = TypeVar("T")
P = TypeVar("P")


class Examined(NamedTuple, Generic[T, P]):
    """Rows that match, and where the next part begins; None: nothing is left."""

    rows: list[T]
    place: P | None


class WaitPlace(NamedTuple):
    """Of a wait for an event: when it times out, and its task."""

    until: int
    task: int


class Examine(NamedTuple):
    """What to look for, how much to return, and how much to look at."""

    tags: Mapping[str, str]
    limit: int
    most: int

    def queued(
        self, rows: Sequence[Sequence[Any]], runs: list[RunRow], after: QueuePlace | None, end: Any
    ) -> Examined[QueueEntry, QueuePlace]:
        """Of `queue_part` and `queue_end`."""
        before = 0 if after is None else after.position
        places = {row[0]: before + row[-1] for row in rows}
        found = [QueueEntry(run, places[run.seq]) for run in runs]
        if len(rows) >= self.limit:
            return Examined(found, QueuePlace(rows[-1][0], before + rows[-1][-1]))
        return Examined(found, None if end is None else QueuePlace(end[2], before + self.most))

    def begun(self, rows: list[RunRow], end: Any) -> Examined[RunRow, str]:
        if len(rows) >= self.limit:
            return Examined(rows, rows[-1].id)
        return Examined(rows, None if end is None else end[0])

    def followed(self, rows: list[EventRow], since: int | None) -> Examined[EventRow, int]:
        return Examined(rows, rows[-1].seq if len(rows) >= self.limit else since)

    def waited(self, rows: list[EventWaiter], end: Any) -> Examined[EventWaiter, WaitPlace]:
        if len(rows) >= self.limit:
            return Examined(rows, WaitPlace(rows[-1].until, rows[-1].task))
        return Examined(rows, None if end is None else WaitPlace(*end))


def runs_examined(where: RunFilter, rows: list[RunRow], since: int | None) -> Examined[RunRow, int]:
    """`since`: the last that was looked at; None: there was no more."""
    return Examined(rows, rows[-1].seq if len(rows) >= where.limit else since)


BEFORE_ALL: Final = -(2**63)
BEHIND_ALL: Final = 2**63 - 1


class Examining(StoreBase, Protocol):
    async def examine_runs(self, where: RunFilter, most: int) -> Examined[RunRow, int]:
        """Runs, newest first. The place is `before` of the next part. Of named states each counts for itself."""
        ...

    async def examine_ids(
        self, wanted: Examine, prefix: str, after: str | None = None
    ) -> Examined[RunRow, str]:
        """Runs whose id begins so, by id."""
        ...

    async def examine_queue(
        self, wanted: Examine, after: QueuePlace | None = None
    ) -> Examined[QueueEntry, QueuePlace]:
        """Queued runs in their global order, with their places among all."""
        ...

    async def examine_events(
        self, wanted: Examine, before: int | None = None
    ) -> Examined[EventRow, int]:
        """The history of these runs, the last first; without tags everything, also what is of no run."""
        ...

    async def examine_waits(
        self, wanted: Examine, after: WaitPlace | None = None
    ) -> Examined[EventWaiter, WaitPlace]:
        """Who waits for which event; the first that times out first."""
        ...
