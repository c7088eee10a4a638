"""The outbox: what applications submitted in their own transactions becomes runs, or gets its answer.

One transaction moves entries: it deletes those that have become runs and writes the answers to the others,
behind the lock of all submitters and under the leader's term. So no entry becomes two runs, and no ceiling is
exceeded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from locktender.store import postgres
from locktender.store.outbox import answered
from locktender.store.postgres.composed_sql import columns
from locktender.store.postgres.session import PostgresSession
from locktender.store.protocol import Outbox, OutboxEntry, OutboxMove, Submit

T = TypeVar("T")


class PostgresOutbox(Outbox):
    """A part of `PostgresStore`."""

    def _write(self, verb: Callable[[PostgresSession], Awaitable[T]]) -> Awaitable[T]:
        raise NotImplementedError

    def _query(self, verb: Callable[[PostgresSession], Awaitable[T]]) -> Awaitable[T]:
        raise NotImplementedError

    async def outbox(self, limit: int) -> list[OutboxEntry]:
        return await self._query(lambda tx: _entries(tx, "outbox_open", limit))

    async def outbox_newest(self, limit: int) -> list[OutboxEntry]:
        return await self._query(lambda tx: _entries(tx, "outbox_newest", limit))

    async def outbox_entry(self, run_id: str) -> OutboxEntry | None:
        found = await self._query(lambda tx: _entries(tx, "outbox_get", run_id))
        return found[0] if found else None

    async def outbox_used(self) -> bool:
        return bool(await self._query(lambda tx: tx.all("outbox_used")))

    async def move_outbox(self, term: int, moves: Sequence[OutboxMove]) -> int:
        return await self._write(lambda tx: _move(tx, term, moves))


async def _entries(tx: PostgresSession, statement: str, given: int | str) -> list[OutboxEntry]:
    return [OutboxEntry(*row) for row in await tx.all(statement, given)]


async def _move(tx: PostgresSession, term: int, moves: Sequence[OutboxMove]) -> int:
    async with tx.transaction("begin_alone"):
        await postgres.recovery.fence(tx, term)
        # A leader whose answer was lost moves them again: those that are gone have become runs.
        known = {row[0] for row in await tx.all("outbox_lock", [move.entry.id for move in moves])}
        moves = [move for move in moves if move.entry.id in known]
        runs = [(move.run, move.graph) for move in moves if move.run is not None]
        submits = [Submit([run], {run.graph: graph}, partial=True) for run, graph in runs]
        submitted = await postgres.client_verbs.submit_within(tx, submits) if submits else []
        gone, answers = answered(moves, [each[0] for each in submitted])
        if gone:
            await tx.run("outbox_remove", gone)
        if answers:
            await tx.run("outbox_answer", *columns(answers, 2))
        return len(gone)
