"""Removing old data: ended runs, and graphs, blobs, lanes and rate states that nothing refers to.

Operators (`locktender db prune`) and the leader (`retention`) run this beside
live engines and beside each other. `store.pruning` says why that is safe.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec

from locktender.base.events import Change
from locktender.store.protocol.base import StoreBase


class Prune(msgspec.Struct, frozen=True):
    """Remove runs that ended before an instant, in order of their numbers, a batch at a time."""

    before: int
    checked: int
    """The seq up to which the history was checked: a run with a later event stays."""
    who: str
    after: int = 0
    """The run to continue after."""
    below: int = 2**62
    """Runs from this number on stay."""
    batch: int = 500
    """How many runs are examined."""
    dry_run: bool = False


class Pruned(msgspec.Struct, frozen=True):
    runs: int
    tasks: int
    events: int
    after: int
    """The run to continue after; 0 when all were examined."""


class Thin(msgspec.Struct, frozen=True):
    """Remove rows of the history that belong to no run, all of them or none, and say so in the history."""

    run: int
    """`NO_RUN` or `HISTORY`."""
    seqs: list[int]
    remark: Change


class AuditState(msgspec.Struct, frozen=True):
    """What an audit knew when it had read the history up to a seq. Only the checker can read the body."""

    seq: int
    at: int
    version: str
    """Of the checker that wrote it."""
    batches: int
    """How many batches of runs had been pruned by then."""
    body: bytes


class EventReader(NamedTuple):
    """A named reader of the history, which goes on where it ended."""

    name: str
    cursor: str
    """What it means is known to the reader."""
    at: int
    """When it came so far."""


class References(msgspec.Struct, frozen=True):
    """The graphs and blobs that some runs refer to."""

    graphs: set[str]
    blobs: set[str]
    after: int
    """The run to continue after; 0 when there are no more."""
    last: int
    """The last run that was examined."""


class StoredContent(msgspec.Struct, frozen=True):
    """What is stored by content hash: some graphs, and some blobs put before an instant."""

    graphs: set[str]
    blobs: set[str]
    after: str
    """The name to continue after; empty: these were the last."""


class Discard(msgspec.Struct, frozen=True):
    """Remove graphs and blobs that no run refers to, unless a newer run does."""

    graphs: list[str] = msgspec.field(default_factory=list[str])
    blobs: list[str] = msgspec.field(default_factory=list[str])
    last_run: int = 0
    """Runs up to this number were examined."""
    put_before: int = 0
    """A blob that was put at or after this instant stays."""


class Discarded(msgspec.Struct, frozen=True):
    graphs: int
    blobs: int


class RemoveUnused(msgspec.Struct, frozen=True):
    """Remove empty lanes and what nothing refers to any more.

    That is the state of rates that are free again, orders to drain of workers that are gone, counters of tags
    without active runs, and changes of limits before an instant, except the last one of each limit.
    """

    term: int
    after: int = 0
    """The lane to continue after."""
    batch: int = 1_000
    before: int = 0
    """Changes of limits before this instant go; 0: all stay."""


class BoundCache(msgspec.Struct, frozen=True):
    """Remove cached results whose time has passed, and the oldest beyond so many of them and so many bytes."""

    term: int
    most: int = 100_000
    most_bytes: int = 1 << 30
    batch: int = 1_000
    """How many go at a time."""


class Upkeep(StoreBase, Protocol):
    async def prune(self, prune: Prune) -> Pruned: ...
    async def thin(self, thin: Thin) -> bool:
        """False: some of them are gone already, and nothing was changed."""
        ...

    async def remark(self, change: Change) -> int:
        """Adds a remark about the history to the history (a checkpoint); returns its seq."""
        ...

    async def audit_state(self) -> AuditState | None: ...
    async def keep_audit_state(self, state: AuditState) -> None:
        """It replaces the last one: of two audits at a time either may be kept."""
        ...

    async def event_readers(self) -> list[EventReader]:
        """The named readers of the history, by name."""
        ...

    async def keep_event_reader(self, reader: EventReader) -> None:
        """How far it has come. Of two processes of one name either may be kept."""
        ...

    async def forget_event_reader(self, name: str) -> bool:
        """Whether there was one."""
        ...

    async def references(self, after: int, limit: int) -> References: ...
    async def stored_content(self, put_before: int, after: str, limit: int) -> StoredContent:
        """The next names in their order, at most `limit` of graphs and of blobs."""
        ...

    async def discard(self, discard: Discard) -> Discarded: ...
    async def remove_unused(self, remove: RemoveUnused) -> int:
        """The lane to continue after; 0 when all are done. `StoreBusy` where submissions never pause."""
        ...

    async def bound_cache(self, bound: BoundCache) -> bool:
        """Whether there may be more to remove."""
        ...
