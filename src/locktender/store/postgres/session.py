"""A connection with its named statements: what every verb is given."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import msgspec

from locktender.base.limits import Limits
from locktender.base.model import LimitRow
from locktender.store.copy_tables import expand_templates
from locktender.store.limit_rows import compose, readable
from locktender.store.postgres.composed_sql import Dialect, Parts
from locktender.store.postgres.options import Options
from locktender.store.sql import Statements, read

ENDED = "!"
"""The first character of a notification of ended runs."""

SQL = Statements(expand_templates(read(Path(__file__).parent / "sql")))
SUBMITTERS = 1
"""The lock of those who admit runs, free their keys or recount them."""

Row = Sequence[Any]


class LockTaken(Exception):
    """Somebody else is alone, and the caller does not wait for long."""


class NotSent(ConnectionError):
    """The connection was found closed before anything was sent."""


class KnownStatements(msgspec.Struct):
    """What the connections of one store share."""

    origin: str
    """Whose notifications are our own."""
    limits: tuple[int, Limits] = (-1, Limits())
    listening: set[str] = msgspec.field(default_factory=set[str])
    """Workers that offers reach by notification, as their rows said when they were read last."""
    lanes: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    """Signature → number, of lanes that were read. They may be gone."""
    crowded: int = 0
    """So many submissions to come stand in line for the lock at once: another submitter was faster lately."""
    highest_term: int = 0
    """That was seen. A server that takes over may not know of it."""
    proofs: dict[str, asyncpg.Connection[Any]] = msgspec.field(
        default_factory=dict[str, "asyncpg.Connection[Any]"]
    )
    """Worker → the connection that has the lock which proves its life."""
    waiting: dict[tuple[int, str], int] = msgspec.field(default_factory=dict[tuple[int, str], int])
    """Connections that waited for their client at the last look, each at its place, and how long its
    transaction had lasted when it was first found there."""


class PostgresSession:
    def __init__(
        self, conn: asyncpg.Connection[Any], sql: Dialect, options: Options, known: KnownStatements
    ) -> None:
        self.conn = conn
        self.sql = sql
        self.options = options
        self.known = known
        self.inside: bool = False
        """Within a transaction: nothing of it is stored before its end."""
        self.uncertain: bool = False
        """Something was sent that may have been stored, though no answer came."""

    # -- statements

    async def all(self, name: str, *params: Any) -> list[Row]:
        return await self.fetch(self.sql.text(name), *params)

    async def one(self, name: str, *params: Any) -> Row | None:
        rows = await self.all(name, *params)
        return rows[0] if rows else None

    async def row(self, name: str, *params: Any) -> Row:
        """The row of a statement that always has one."""
        return (await self.all(name, *params))[0]

    async def run(self, name: str, *params: Any) -> None:
        await self.all(name, *params)

    async def several(
        self,
        *reads: tuple[str, Sequence[Any]],
        shared: tuple[str, Sequence[Any]] | None = None,
    ) -> list[list[Row]]:
        """The rows of several reads: one round trip, one snapshot. They may refer to `shared` by its name."""
        text = self.sql.arrays([name for name, _ in reads], shared[0] if shared else None)
        used = (shared, *reads) if shared else reads
        [row] = await self.fetch(text, *(value for _, params in used for value in params))
        return list(row)

    async def compose(self, parts: Parts) -> list[Row]:
        return await self.fetch(self.sql.composed(parts.names), *parts.params)

    async def fetch(self, text: str, *params: Any) -> list[Row]:
        if self.options.pooled and not self.inside:
            # Describing a statement and running it are two messages: a pooler in transaction mode
            # keeps them on one server connection only within a transaction.
            async with self.transaction("begin_one"):
                return await self.fetch(text, *params)
        self._about_to_send(stores=not self.inside)
        return await self.conn.fetch(text, *params)

    async def copy(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        self._about_to_send(stores=not self.inside)
        await self.conn.copy_records_to_table(
            table, schema_name=self.options.schema, columns=list(columns), records=rows
        )

    def _about_to_send(self, *, stores: bool) -> None:
        if self.conn.is_closed():
            raise NotSent("the connection is closed")
        self.uncertain = self.uncertain or stores

    def locking(self, name: str, number: int) -> str:
        """A statement that takes one of our locks and has no parameters."""
        return self.sql.text(name).replace("{lock}", "{}, {}".format(*self.options.lock(number)))

    # -- transactions

    @asynccontextmanager
    async def transaction(self, how: str = "begin_write") -> AsyncGenerator[None]:
        """All or nothing; `how` names the statement that begins it."""
        if self.inside:
            yield
            return
        self._about_to_send(stores=False)
        text = self.locking(how, SUBMITTERS)
        if self.options.pooled:
            text = f"{text}; {self.sql.text('plan_row_by_row')}"
        self.inside = True
        try:
            try:
                await self.conn.execute(text)
            except asyncpg.LockNotAvailableError as error:
                if how == "begin_alone":
                    raise
                raise LockTaken(str(error)) from error
            yield
            self._about_to_send(stores=True)
            alone = how.startswith("begin_alone")
            end = "commit_alone" if alone else "commit_transaction"
            await self.conn.execute(self.sql.text(end))
        except BaseException:
            if not self.conn.is_closed() and self.conn.is_in_transaction():
                await self.conn.execute(self.sql.text("rollback_transaction"))
            raise
        finally:
            self.inside = False

    # -- what several verbs need

    async def limits(self, version: int) -> Limits:
        """The limits of that version or a later one."""
        if self.known.limits[0] != version:
            [found], rows = await self.several(("limits_version", ()), ("limit_list", ()))
            self.known.limits = found[0], compose(limit_rows(rows))
        return self.known.limits[1]

    def hints(self, said: list[str]) -> tuple[list[str], list[str]]:
        """Several notifications of one commit, and the channel of each."""
        offers, ends = self.options.offers_channel, self.options.ends_channel
        channels = [ends if each.startswith(ENDED) else offers for each in said]
        return channels, [f"{self.known.origin} {each}" for each in said]

    def hint(self, said: str) -> tuple[str, str]:
        """A notification: who, and what. It only says *look*; rows are the truth."""
        return self.options.channel, f"{self.known.origin} {said}"


def leading_alone(patient: bool) -> str:
    """How the leader begins a transaction that no submitter may run beside."""
    return "begin_alone_soon" if patient else "begin_alone_at_once"


def pairs(rows: Iterable[Row]) -> dict[Any, Any]:
    """Rows of two columns as a dictionary."""
    return {row[0]: row[1] for row in rows}


def limit_rows(rows: Iterable[Row]) -> list[LimitRow]:
    return readable(rows)
