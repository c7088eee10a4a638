"""Copy a whole store into another of any kind: in batches, from one snapshot.

An operator runs this. The source is only read, at one instant. The target is
empty or an unfinished copy, and is marked as unfinished (`migrate.COPYING`) until
the copy is complete: no engine opens it, and repeating the command starts over.

Runs, tasks, lanes and terms keep their numbers, and new ones are higher: tokens
of the source stay smaller than those of the copy. Events keep their numbers too,
unless the target would give lower ones to its next events: PostgreSQL derives
them from transaction ids, which are small on a young server. Then events are
numbered from 1, in their order, and remarks in the history are adjusted.

Leases are not copied: a copy has no leader and no live workers, so its first
leader recovers running tasks as after a crash.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import msgspec

from locktender.base.errors import InvalidInput, StoreError
from locktender.base.events import HISTORY, Change, pack, read_changes
from locktender.store.copy_tables import TABLES
from locktender.store.maintenance import Status
from locktender.store.migrate import Migrated

Rows = Sequence[Sequence[Any]]
Progress = Callable[[str, int], None]
"""Called with a table and how many of its rows are done."""

BATCH, WIDE_BATCH, BLOB_BATCH = 1_000, 200, 8
EMPTY = ("run", "event", "limit_rule", "limit_history", "request")
"""If one of these has a row, the store is in use."""
BLOBS = "blob"

_SEQ, _RUN, _BODY = 0, 5, 6


@dataclass(frozen=True, slots=True)
class CopyMarks:
    """The numbers that were given last, and whose term it is."""

    run: int
    event: int
    lane: int
    request: int
    limit_change: int
    term: int
    owner: str
    limits_version: int


@dataclass(frozen=True, slots=True)
class Copied:
    rows: dict[str, int] = field(default_factory=dict[str, int])
    """By table; `blob` for large values."""
    renumbered: bool = False
    """Events have numbers of their own in the copy."""


class CopyReader(Protocol):
    """A store at one instant: the source."""

    async def marks(self) -> CopyMarks: ...
    def rows(self, table: str, batch: int) -> AsyncIterator[Rows]: ...
    def blobs(self, batch: int) -> AsyncIterator[list[tuple[str, bytes]]]: ...


class CopyWriter(Protocol):
    """The target of a copy. Each write is a transaction."""

    async def horizon(self) -> int:
        """Events of the copy must have numbers below this one; 0: they may have any."""
        ...

    async def write(self, table: str, rows: Rows) -> None: ...
    async def put_blobs(self, blobs: list[tuple[str, bytes]]) -> None: ...
    async def finish(self, marks: CopyMarks, expected: dict[str, int]) -> None:
        """Checks that every row was copied, and marks the copy as finished."""
        ...


Purpose = Literal["worker", "submit"]
"""What a database role is for."""


class StorePlace(Protocol):
    """A store that is not opened: its status, its migration, and copies from and to it."""

    @property
    def where(self) -> str:
        """For people: without a password."""
        ...

    async def exists(self) -> bool:
        """Whether it was created: opening a store creates it."""
        ...

    async def status(self) -> Status: ...
    async def migrate(self) -> Migrated:
        """Creates the schema or brings it up to date."""
        ...

    def grant_script(self, purpose: Purpose, role: str, *, revokes: bool) -> str:
        """The SQL that gives a role what it needs for one purpose, or takes it back. Connects to nothing."""
        ...

    async def grant(self, purpose: Purpose, role: str, *, revokes: bool) -> None:
        """Gives a role what it needs for one purpose and nothing else, or takes that back."""
        ...

    def reading(self) -> AbstractAsyncContextManager[CopyReader]: ...
    def writing(self) -> AbstractAsyncContextManager[CopyWriter]:
        """`StoreError` where the store is neither empty nor a copy that was not finished."""
        ...


async def check_source(source: StorePlace, *, force: bool) -> Status:
    """Refuses a source that is unfinished, of another schema, or in use."""
    status = await source.status()
    if status.copying:
        raise StoreError(f"{status.where} is itself a copy that was not finished.", field="from")
    if status.schema != status.known:
        which = "older" if status.schema < status.known else "newer"
        raise StoreError(
            f"{status.where} has schema {status.schema}, {which} than this locktender's {status.known}.",
            field="from",
            got=status.schema,
            hint="locktender db migrate --url FROM"
            if which == "older"
            else "Use the locktender that wrote it.",
        )
    if status.busy is not None and not force:
        raise InvalidInput(
            f"{status.where} is in use: {status.busy}.",
            field="from",
            got=status.busy,
            hint="Stop it first: later changes are not in the copy. --force copies the state of this instant.",
        )
    return status


async def copy(
    source: StorePlace, target: StorePlace, progress: Progress = lambda _table, _done: None
) -> Copied:
    """Copies everything. Check the source first."""
    async with source.reading() as reading, target.writing() as writing:
        marks = await reading.marks()
        horizon = await writing.horizon()
        numbers = _Numbers(anew=bool(horizon) and marks.event >= horizon)
        done: dict[str, int] = {}
        for table, shape in TABLES.items():
            done[table] = 0
            async for rows in reading.rows(table, WIDE_BATCH if shape.wide else BATCH):
                written = rows
                if table == "event":
                    written = numbers.of(rows)
                elif table == "worker":
                    written = [_without_lease(row) for row in rows]
                await writing.write(table, written)
                done[table] += len(rows)
                progress(table, done[table])
        done[BLOBS] = 0
        async for blobs in reading.blobs(BLOB_BATCH):
            await writing.put_blobs(blobs)
            done[BLOBS] += len(blobs)
            progress(BLOBS, done[BLOBS])
        if numbers.anew:
            marks = replace(marks, event=done["event"])
            if horizon <= marks.event:
                raise StoreError(
                    f"the history has {marks.event:,} rows; the target has room for {horizon:,}.",
                    hint="Prune the source first: locktender db prune.",
                )
        await writing.finish(marks, done)
    return Copied(done, numbers.anew)


def _without_lease(row: Sequence[Any]) -> Sequence[Any]:
    """A worker's row with a lease that is over: no worker of the source works on the copy."""
    worker, since, _, *rest = row
    return worker, since, 0, *rest


class _Numbers:
    """Events numbered anew, where they have to be."""

    def __init__(self, *, anew: bool) -> None:
        self.anew = anew
        self._old = array("q")

    def of(self, rows: Rows) -> Rows:
        if not self.anew:
            return rows
        numbered: list[Sequence[Any]] = []
        for row in rows:
            seq, *rest = row
            self._old.append(seq)
            if row[_RUN] == HISTORY:
                rest[_BODY - 1] = self._remark(row[_BODY])
            numbered.append((len(self._old), *rest))
        return numbered

    def _remark(self, body: bytes) -> bytes:
        """What is said of a seq holds for the same event under its new number."""
        changes: list[Change] = []
        for change in read_changes(body):
            data = dict(change.data or {})
            for key in ("seq", "checked", "passed_over", "thinned"):
                if key in data:
                    data[key] = bisect_right(self._old, data[key])
            changes.append(msgspec.structs.replace(change, data=data))
        return pack(changes)


def not_empty(where: str, table: str) -> StoreError:
    return StoreError(
        f"{where} is not empty: it has rows in {table!r}.",
        field="to",
        got=where,
        hint="A copy goes into a new file, or into a schema of its own: ?schema=NAME in the url.",
    )


def incomplete(where: str, table: str, expected: int, found: int) -> StoreError:
    return StoreError(
        f"{where} has {found:,} rows in {table!r}; {expected:,} were copied.",
        field="to",
        got=found,
        hint="Another process writes there. Repeat the copy: it starts over.",
    )


def being_copied(where: str) -> StoreError:
    return StoreError(
        f"another copy into {where} is running.", field="to", hint="Wait for it, or stop it."
    )
