"""Upkeep: what is old is removed, and what the audit and readers of the history have to know is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from locktender.base.events import Change
from locktender.store.protocol import (
    AuditState,
    Discard,
    Discarded,
    EventReader,
    Prune,
    Pruned,
    References,
    StoredContent,
    Thin,
)
from locktender.store.sqlite import pruning
from locktender.store.sqlite.blobs import Blobs
from locktender.store.sqlite.session import SqliteSession

T = TypeVar("T")


class SqliteUpkeep:
    """A part of `SqliteStore`."""

    _blobs: Blobs

    async def _write(self, verb: Callable[[SqliteSession], T]) -> T:
        raise NotImplementedError

    async def _look(self, verb: Callable[[SqliteSession], T]) -> T:
        raise NotImplementedError

    async def prune(self, prune: Prune) -> Pruned:
        return await self._write(lambda tx: pruning.prune(tx, prune))

    async def thin(self, thin: Thin) -> bool:
        return await self._write(lambda tx: pruning.thin(tx, thin))

    async def remark(self, change: Change) -> int:
        return await self._write(lambda tx: pruning.remark(tx, change))

    async def audit_state(self) -> AuditState | None:
        return await self._look(pruning.audit_state)

    async def event_readers(self) -> list[EventReader]:
        return await self._look(pruning.event_readers)

    async def keep_event_reader(self, reader: EventReader) -> None:
        await self._write(lambda tx: tx.run("event_reader_put", *reader))

    async def forget_event_reader(self, name: str) -> bool:
        return await self._write(lambda tx: tx.run("event_reader_remove", name) > 0)

    async def keep_audit_state(self, state: AuditState) -> None:
        await self._write(lambda tx: pruning.keep_audit_state(tx, state))

    async def references(self, after: int, limit: int) -> References:
        return await self._look(lambda tx: pruning.references(tx, after, limit))

    async def stored_content(self, put_before: int, after: str, limit: int) -> StoredContent:
        return await self._look(
            lambda tx: pruning.stored_content(tx, self._blobs, put_before, after, limit)
        )

    async def discard(self, discard: Discard) -> Discarded:
        graphs = await self._write(lambda tx: pruning.discard_graphs(tx, discard))
        blobs = await self._look(lambda _: pruning.discard_blobs(self._blobs, discard))
        return Discarded(graphs, blobs)
