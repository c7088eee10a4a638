"""Pruning on PostgreSQL, under the submitters' lock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from locktender.base.events import HISTORY, Change, pack
from locktender.store.history import CLIENT
from locktender.store.postgres.composed_sql import Parts
from locktender.store.postgres.session import PostgresSession
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
from locktender.store.pruning import (
    MARKER,
    PARTS,
    Chosen,
    choose,
    digests,
    pruned_change,
    stored_names,
)

T = TypeVar("T")


async def _prune(tx: PostgresSession, prune: Prune) -> Pruned:
    if prune.dry_run:
        return (await _candidates(tx, prune))[0]
    # A retry or a replacement looks at an ended run under the same lock: after us, or before.
    async with tx.transaction("begin_alone"):
        done, chosen = await _candidates(tx, prune)
        if chosen.runs:
            for name in PARTS:
                await tx.run(f"prune_{name}", chosen.runs)
            await _remark(tx, pruned_change(prune, chosen, done.tasks, done.events))
    return done


async def _candidates(tx: PostgresSession, prune: Prune) -> tuple[Pruned, Chosen]:
    found = await tx.all(
        "prune_candidates", prune.after, prune.below, prune.before, prune.checked, prune.batch
    )
    chosen = choose(prune, found)
    if not chosen.runs:
        return Pruned(0, 0, 0, chosen.after), chosen
    tasks, events = await tx.row("prune_count", chosen.runs)
    return Pruned(len(chosen.runs), tasks, events, chosen.after), chosen


async def _thin(tx: PostgresSession, thin: Thin) -> bool:
    async with tx.transaction("begin_alone"):
        # Of two processes that found the same rows the first one removes them.
        [found] = await tx.row("thin_count", thin.run, thin.seqs)
        if found != len(thin.seqs):
            return False
        await tx.run("thin_events", thin.run, thin.seqs)
        await _remark(tx, thin.remark)
    return True


async def _remark(tx: PostgresSession, change: Change) -> int:
    parts = Parts()
    parts.add("now", alias="clock")
    parts.add("open_fence", alias="fence")
    parts.add("events_given", [HISTORY], [pack([change])], alias="told")
    parts.add("event_add", None, 0, 0, CLIENT)
    parts.add("event_base")
    return (await tx.compose(parts))[0][0]


async def _audit_state(tx: PostgresSession) -> AuditState | None:
    row = await tx.one("audit_state")
    return None if row is None else AuditState(*row)


async def _event_readers(tx: PostgresSession) -> list[EventReader]:
    return [EventReader._make(row) for row in await tx.all("event_readers")]


async def _references(tx: PostgresSession, after: int, limit: int) -> References:
    # Before the runs: what becomes a run meanwhile is found here. What is cached meanwhile is an output of a run.
    beside = () if after else await tx.all("references_beside_runs", MARKER)
    blobs = digests(value for (value,) in beside)
    runs = await tx.all("references", after, limit, MARKER)
    if not runs:
        return References(set(), blobs, 0, after)
    blobs |= digests(value for _, _, *values in runs for value in values)
    first, last = runs[0][0], runs[-1][0]
    for name in ("references_of_tasks", "references_of_inputs"):
        rows = await tx.all(name, first, last, MARKER)
        blobs |= digests(value for row in rows for value in row)
    more = last if len(runs) == limit else 0
    return References({row[1] for row in runs}, blobs, more, last)


async def _stored_content(
    tx: PostgresSession, put_before: int, after: str, limit: int
) -> StoredContent:
    graphs, blobs = await tx.several(
        ("graph_names", (after, limit)), ("blobs_put_before", (put_before, after, limit))
    )
    return stored_names([row[0] for row in graphs], [row[0] for row in blobs], limit)


async def _discard(tx: PostgresSession, discard: Discard) -> Discarded:
    async with tx.transaction("begin_alone"):
        graphs = await tx.all("graphs_remove", discard.graphs, discard.last_run)
        blobs = await tx.all("blobs_remove", discard.blobs, discard.put_before)
    return Discarded(len(graphs), len(blobs))


class PostgresUpkeep:
    """The verbs of `Upkeep` that need no term."""

    def _write(self, verb: Callable[[PostgresSession], Awaitable[T]]) -> Awaitable[T]:
        raise NotImplementedError

    def _query(self, verb: Callable[[PostgresSession], Awaitable[T]]) -> Awaitable[T]:
        raise NotImplementedError

    async def prune(self, prune: Prune) -> Pruned:
        return await self._write(lambda tx: _prune(tx, prune))

    async def thin(self, thin: Thin) -> bool:
        return await self._write(lambda tx: _thin(tx, thin))

    async def remark(self, change: Change) -> int:
        return await self._write(lambda tx: _remark(tx, change))

    async def audit_state(self) -> AuditState | None:
        return await self._query(_audit_state)

    async def event_readers(self) -> list[EventReader]:
        return await self._query(_event_readers)

    async def keep_event_reader(self, reader: EventReader) -> None:
        await self._write(lambda tx: tx.run("event_reader_put", *reader))

    async def forget_event_reader(self, name: str) -> bool:
        async def remove(tx: PostgresSession) -> bool:
            return bool(await tx.all("event_reader_remove", name))

        return await self._write(remove)

    async def keep_audit_state(self, state: AuditState) -> None:
        await self._write(lambda tx: tx.run("audit_state_put", *msgspec.structs.astuple(state)))

    async def references(self, after: int, limit: int) -> References:
        return await self._query(lambda tx: _references(tx, after, limit))

    async def stored_content(self, put_before: int, after: str, limit: int) -> StoredContent:
        return await self._query(lambda tx: _stored_content(tx, put_before, after, limit))

    async def discard(self, discard: Discard) -> Discarded:
        return await self._write(lambda tx: _discard(tx, discard))
