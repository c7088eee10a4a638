"""Lists of what has certain tags in a SQLite file, part by part: see `store/protocol/examining.py`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from locktender.base.events import EventRow
from locktender.base.model import RunRow
from locktender.store import decode
from locktender.store.protocol import (
    BEFORE_ALL,
    BEHIND_ALL,
    FRONT,
    EventWaiter,
    Examine,
    Examined,
    Examining,
    QueueEntry,
    QueuePlace,
    RunFilter,
    WaitPlace,
    runs_examined,
)
from locktender.store.sqlite import reads
from locktender.store.sqlite.session import SqliteSession, listed

T = TypeVar("T")


class SqliteExamining(Examining):
    """A part of `SqliteStore`."""

    def _query(self, verb: Callable[[SqliteSession], T]) -> Awaitable[T]:
        raise NotImplementedError

    async def examine_runs(self, where: RunFilter, most: int) -> Examined[RunRow, int]:
        return await self._query(lambda tx: _runs(tx, where, most))

    async def examine_ids(
        self, wanted: Examine, prefix: str, after: str | None = None
    ) -> Examined[RunRow, str]:
        return await self._query(lambda tx: _ids(tx, wanted, prefix, after))

    async def examine_queue(
        self, wanted: Examine, after: QueuePlace | None = None
    ) -> Examined[QueueEntry, QueuePlace]:
        return await self._query(lambda tx: _queue(tx, wanted, after))

    async def examine_events(
        self, wanted: Examine, before: int | None = None
    ) -> Examined[EventRow, int]:
        return await self._query(lambda tx: _events(tx, wanted, before))

    async def examine_waits(
        self, wanted: Examine, after: WaitPlace | None = None
    ) -> Examined[EventWaiter, WaitPlace]:
        return await self._query(lambda tx: _waits(tx, wanted, after))


def _runs(tx: SqliteSession, where: RunFilter, most: int) -> Examined[RunRow, int]:
    before = BEHIND_ALL if where.before is None else where.before
    if where.states is None:
        end = tx.one("runs_end", before, most - 1)
    else:
        end = tx.one("runs_end_by_state", before, most - 1, listed(sorted(set(where.states))))
    since = None if end is None else end[0]
    part = msgspec.structs.replace(where, since=since or 0)
    return runs_examined(where, reads.runs(tx, part), since)


def _ids(
    tx: SqliteSession, wanted: Examine, prefix: str, after: str | None
) -> Examined[RunRow, str]:
    # '!' stands before all characters of an id, and '{' behind them.
    first, last = prefix if after is None else f"{after}!", f"{prefix}{{"
    end = tx.one("ids_end", first, last, wanted.most - 1)
    rows = tx.all("ids_part", first, last if end is None else end[0], *_condition(wanted))
    return wanted.begun(decode.runs(rows), end)


def _queue(
    tx: SqliteSession, wanted: Examine, after: QueuePlace | None
) -> Examined[QueueEntry, QueuePlace]:
    behind = (None if after is None else tx.one("rank_of", after.run)) or FRONT
    end = tx.one("queue_end", *behind, wanted.most - 1)
    last = (BEHIND_ALL,) * 3 if end is None else end
    rows = tx.all("queue_part", *behind, *last, *_condition(wanted))
    return wanted.queued(rows, decode.runs([row[:-1] for row in rows]), after, end)


def _events(tx: SqliteSession, wanted: Examine, before: int | None) -> Examined[EventRow, int]:
    first = BEHIND_ALL if before is None else before
    end = tx.one("events_end", first, wanted.most - 1)
    since = None if end is None else end[0]
    rows = tx.all("events_part", first, BEFORE_ALL if since is None else since, *_condition(wanted))
    return wanted.followed([EventRow._make(row) for row in rows], since)


def _waits(
    tx: SqliteSession, wanted: Examine, after: WaitPlace | None
) -> Examined[EventWaiter, WaitPlace]:
    behind = after or (BEFORE_ALL, BEFORE_ALL)
    end = tx.one("waits_end", *behind, wanted.most - 1)
    last = (BEHIND_ALL, BEHIND_ALL) if end is None else end
    rows = tx.all("waits_part", *behind, *last, *_condition(wanted))
    return wanted.waited([EventWaiter(*row) for row in rows], end)


def _condition(wanted: Examine) -> tuple[str, str, int]:
    return decode.tag_pair(wanted.tags), decode.encode_tags(wanted.tags), wanted.limit
