"""The outbox of a store that was copied from PostgreSQL: its entries become runs, or get their answer.

One transaction moves entries: it deletes those that have become runs and writes the answers to the others,
under the leader's term. So no entry becomes two runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from locktender.store.outbox import answered
from locktender.store.protocol import Outbox, OutboxEntry, OutboxMove, Submit
from locktender.store.sqlite.client_verbs import submit
from locktender.store.sqlite.leader_verbs import fence
from locktender.store.sqlite.session import SqliteSession, listed

T = TypeVar("T")


class SqliteOutbox(Outbox):
    """A part of `SqliteStore`."""

    def _write(self, verb: Callable[[SqliteSession], T]) -> Awaitable[T]:
        raise NotImplementedError

    def _query(self, verb: Callable[[SqliteSession], T]) -> Awaitable[T]:
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


def _entries(tx: SqliteSession, statement: str, given: int | str) -> list[OutboxEntry]:
    return [OutboxEntry(*row) for row in tx.all(statement, given)]


def _move(tx: SqliteSession, term: int, moves: Sequence[OutboxMove]) -> int:
    fence(tx, term)
    known = {row[0] for row in tx.all("outbox_lock", listed(move.entry.id for move in moves))}
    moves = [move for move in moves if move.entry.id in known]
    submitted = [
        submit(tx, Submit([move.run], {move.run.graph: move.graph}, partial=True))[0]
        for move in moves
        if move.run is not None
    ]
    gone, answers = answered(moves, submitted)
    if gone:
        tx.run("outbox_remove", listed(gone))
    for run_id, answer in answers:
        tx.run("outbox_answer", answer, run_id)
    return len(gone)
