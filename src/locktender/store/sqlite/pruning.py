"""Pruning in the file: one writer at a time, so no submission comes in between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from heapq import nsmallest
from typing import TypeVar

import msgspec

from locktender.base.events import HISTORY, Change
from locktender.base.model import LogFilter, LogRow, LogTotal, NamedLog, NewestLogs, RunRow
from locktender.store import decode
from locktender.store.history import CLIENT
from locktender.store.protocol import (
    AuditState,
    BoundCache,
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
    choose,
    digests,
    pruned_change,
    stored_names,
)
from locktender.store.sqlite import recovery
from locktender.store.sqlite.blobs import Blobs
from locktender.store.sqlite.session import SqliteSession, listed, record

T = TypeVar("T")


def _prune(tx: SqliteSession, prune: Prune) -> Pruned:
    found = tx.all(
        "prune_candidates", prune.after, prune.below, prune.before, prune.checked, prune.batch
    )
    chosen = choose(prune, found)
    if not chosen.runs:
        return Pruned(0, 0, 0, chosen.after)
    runs = listed(chosen.runs)
    tasks, events = tx.row("prune_count", runs)
    if not prune.dry_run:
        for name in PARTS:
            tx.run(f"prune_{name}", runs)
        _remark(tx, pruned_change(prune, chosen, tasks, events))
    return Pruned(len(chosen.runs), tasks, events, chosen.after)


def _thin(tx: SqliteSession, thin: Thin) -> bool:
    # Of two processes that found the same rows the first one removes them.
    if tx.row("thin_count", thin.run, listed(thin.seqs))[0] != len(thin.seqs):
        return False
    tx.run("thin_events", thin.run, listed(thin.seqs))
    _remark(tx, thin.remark)
    return True


def _remark(tx: SqliteSession, change: Change) -> int:
    return record(tx, tx.now(), CLIENT, [(HISTORY, [change])])


def _audit_state(tx: SqliteSession) -> AuditState | None:
    row = tx.one("audit_state")
    return None if row is None else AuditState(*row)


def _keep_audit_state(tx: SqliteSession, state: AuditState) -> None:
    tx.run("audit_state_put", *msgspec.structs.astuple(state))


def _event_readers(tx: SqliteSession) -> list[EventReader]:
    return [EventReader._make(row) for row in tx.all("event_readers")]


def references(tx: SqliteSession, after: int, limit: int) -> References:
    # Before the runs: what becomes a run meanwhile is found here. What is cached meanwhile is an output of a run.
    beside = () if after else tx.all("references_beside_runs", MARKER)
    blobs = digests(value for (value,) in beside)
    runs = tx.all("references", after, limit, MARKER)
    if not runs:
        return References(set(), blobs, 0, after)
    blobs |= digests(value for _, _, *values in runs for value in values)
    first, last = runs[0][0], runs[-1][0]
    for name in ("references_of_tasks", "references_of_inputs"):
        rows = tx.all(name, first, last, MARKER)
        blobs |= digests(value for row in rows for value in row)
    more = last if len(runs) == limit else 0
    return References({row[1] for row in runs}, blobs, more, last)


def stored_content(
    tx: SqliteSession, blobs: Blobs, put_before: int, after: str, limit: int
) -> StoredContent:
    graphs = [row[0] for row in tx.all("graph_names", after, limit)]
    names = nsmallest(limit, (name for name in blobs.put_before(put_before) if name > after))
    return stored_names(graphs, names, limit)


def discard_graphs(tx: SqliteSession, discard: Discard) -> int:
    return tx.run("graphs_remove", listed(discard.graphs), discard.last_run)


def discard_blobs(blobs: Blobs, discard: Discard) -> int:
    return sum(blobs.remove(each, discard.put_before) for each in discard.blobs)


class SqliteUpkeep:
    """A part of `SqliteStore`."""

    _blobs: Blobs

    def _write(self, verb: Callable[[SqliteSession], T]) -> Awaitable[T]:
        raise NotImplementedError

    def _query(self, verb: Callable[[SqliteSession], T]) -> Awaitable[T]:
        raise NotImplementedError

    async def bound_cache(self, bound: BoundCache) -> bool:
        return await self._write(lambda tx: recovery.bound_cache(tx, bound))

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
        return await self._write(lambda tx: tx.run("event_reader_remove", name) > 0)

    async def keep_audit_state(self, state: AuditState) -> None:
        await self._write(lambda tx: _keep_audit_state(tx, state))

    async def keep_logs(self, rows: list[LogRow]) -> None:
        await self._write(lambda tx: tx.each("log_add", rows))

    async def failed_lately(self, limit: int) -> list[RunRow]:
        return await self._query(lambda tx: decode.runs(tx.all("runs_failed_lately", limit)))

    async def logs(self, where: LogFilter) -> list[LogRow]:
        given = where.run, where.task, *where.after, where.limit
        return [LogRow(*row) for row in await self._query(lambda tx: tx.all("logs_list", *given))]

    async def newest_logs(self, where: NewestLogs) -> list[NamedLog]:
        of_task = where.task is not None
        name = "logs_newest_of_task" if of_task else "logs_newest"
        given = where.task if of_task else where.run, *where.before, where.limit
        rows = await self._query(lambda tx: tx.all(name, *given))
        return [NamedLog(LogRow(*log), node, idx) for *log, node, idx in rows]

    async def log_total(self, run: int, task: int | None, most: int) -> LogTotal:
        return LogTotal(*await self._query(lambda tx: tx.row("log_total", run, task, most)))

    async def log_counts(self, run: int, task: int | None = None) -> dict[tuple[int, int], int]:
        rows = await self._query(lambda tx: tx.all("log_counts", run, task))
        return {(task, token): lines for task, token, lines in rows}

    async def references(self, after: int, limit: int) -> References:
        return await self._query(lambda tx: references(tx, after, limit))

    async def stored_content(self, put_before: int, after: str, limit: int) -> StoredContent:
        return await self._query(
            lambda tx: stored_content(tx, self._blobs, put_before, after, limit)
        )

    async def discard(self, discard: Discard) -> Discarded:
        graphs = await self._write(lambda tx: discard_graphs(tx, discard))
        blobs = await self._query(lambda _: discard_blobs(self._blobs, discard))
        return Discarded(graphs, blobs)
