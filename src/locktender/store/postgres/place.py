"""A PostgreSQL schema as a whole: its status, its migration, and copies from and to it."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from locktender.base.errors import RoleRefused
from locktender.base.events import HISTORY
from locktender.store import copying
from locktender.store.copy_tables import TABLES
from locktender.store.copying import BLOBS, EMPTY, CopyMarks, Purpose, Rows
from locktender.store.maintenance import Led, Server, Status, agree
from locktender.store.migrate import COPYING, Migrated
from locktender.store.postgres import faults, opening, reads, roles
from locktender.store.postgres.composed_sql import Dialect
from locktender.store.postgres.connection import connect
from locktender.store.postgres.options import Options, parse
from locktender.store.postgres.session import SQL, KnownStatements, PostgresSession, pairs
from locktender.store.protocol import EventFilter

T = TypeVar("T")
MAX_REMARKS = 100_000
COUNTED = 1_000_000
"""Up to this many rows are counted; beyond, the planner's estimate is reported."""


class PostgresPlace:
    def __init__(self, url: str, schema: str | None = None) -> None:
        self.options: Options = parse(url, schema)
        self._sql = Dialect(SQL, self.options.quoted_schema)

    @property
    def where(self) -> str:
        return self.options.where

    async def exists(self) -> bool:
        async def look(tx: PostgresSession) -> bool:
            _, ours = await tx.row("schema_exists", tx.options.schema)
            return bool(ours)

        return await self._with(look)

    async def status(self) -> Status:
        return await self._with(_status)

    async def migrate(self) -> Migrated:
        async def work(tx: PostgresSession) -> Migrated:
            await opening.check_server(tx, 1)
            return await opening.migrate(tx)

        return await self._with(work)

    def grant_script(self, purpose: Purpose, role: str, *, revokes: bool) -> str:
        return roles.Grant(purpose, roles.checked(role), self.options.schema, revokes).script()

    async def grant(self, purpose: Purpose, role: str, *, revokes: bool) -> None:
        grant = roles.Grant(purpose, roles.checked(role), self.options.schema, revokes)
        try:
            await self._with(lambda tx: roles.apply(tx, grant))
        except RoleRefused as error:
            raise roles.refused(error, grant) from error

    async def _with(self, work: Callable[[PostgresSession], Awaitable[T]]) -> T:
        async with self.session() as session:
            return await work(session)

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[PostgresSession]:
        conn = await connect(self.options)
        try:
            yield PostgresSession(conn, self._sql, self.options, KnownStatements("upkeep"))
        except faults.WORLD as error:
            raise faults.translate(error, self.options.shown) from error
        finally:
            await conn.close(timeout=5.0)

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[_SchemaReader]:
        async with self.session() as session:
            await session.conn.execute(session.sql.text("copy_begin"))
            session.inside = True
            try:
                yield _SchemaReader(session)
            finally:
                if not session.conn.is_closed():
                    await session.conn.execute(session.sql.text("rollback_transaction"))

    @asynccontextmanager
    async def writing(self) -> AsyncGenerator[_SchemaWriter]:
        async with self.session() as session, self.session() as guard:
            await opening.check_server(session, 1)
            # A transaction has the lock, not a connection: a pooler's connections are shared.
            async with guard.transaction("copy_guard"):
                if not await guard.conn.fetchval(guard.locking("copy_lock", COPIERS)):
                    raise copying.being_copied(self.options.shown)
                await _begin(session)
                yield _SchemaWriter(session)


async def _status(tx: PostgresSession) -> Status:
    options = tx.options
    where = options.where
    version, most, used, _, _ = await tx.row("server")
    exists, ours = await tx.row("schema_exists", options.schema)
    known = len(opening.MIGRATIONS)
    [mine] = await tx.row("status_connections")
    if not ours:
        if exists and (await tx.row("schema_tables", options.schema))[0]:
            raise faults.foreign(options.shown, options.schema)
        server = Server(version, most, used, mine)
        return Status("postgresql", where, {}, known, server=server)
    async with tx.transaction("begin_read"):
        applied = pairs(await tx.all("migration_list"))
        term, owner, expires_at, _, _, now, *_ = await tx.row("leader")
        rows = await tx.row("status_estimate")
        estimated = rows[0] + rows[1] > COUNTED
        if not estimated:
            rows = await tx.row("status_rows")
        tasks, history, graphs, queued, requests = rows
        [blobs] = await tx.row("status_blobs")
        [unsettled] = await tx.row("unsettled_since")
        oldest, newest = await tx.row("status_ends")
        return Status(
            "postgresql",
            where,
            applied,
            known,
            now,
            pairs(await tx.all("status_runs")),
            {
                "tasks": tasks,
                "history": history,
                "graphs": graphs,
                "blobs": blobs,
                "queued": queued,
                "requests": requests,
            },
            estimated,
            oldest,
            newest,
            (await tx.row("status_bytes", options.schema))[0],
            Led(owner, term, expires_at) if term and expires_at > now else None,
            [row for row in await reads.workers(tx) if row.lease_until > now],
            await reads.events(tx, EventFilter(run=HISTORY, limit=MAX_REMARKS)),
            Server(
                version,
                most,
                used,
                mine,
                0 if unsettled is None else max(0, now - unsettled),
            ),
            agree(await reads.counts(tx)),
        )


COPIERS = 3
"""The advisory lock of a copy into a schema."""


async def _begin(session: PostgresSession) -> None:
    _, ours = await session.row("schema_exists", session.options.schema)
    if ours and COPYING in pairs(await session.all("migration_list")):
        async with session.transaction("begin_alone"):
            await _wipe(session)
    await opening.migrate(session)
    async with session.transaction("begin_alone"):
        for table in EMPTY:
            if (await session.row(f"copy_count_{table}"))[0]:
                raise copying.not_empty(session.options.shown, table)
        await _wipe(session)
        await session.run("copy_mark", COPYING)


async def _wipe(session: PostgresSession) -> None:
    """Removes rows of an unfinished copy, and the rows that a new store begins with."""
    for table in TABLES:
        await session.run(f"copy_wipe_{table}")
    await session.run("copy_wipe_blobs")
    await session.run("copy_unmark", COPYING)


class _SchemaReader:
    def __init__(self, session: PostgresSession) -> None:
        self._session = session

    async def marks(self) -> CopyMarks:
        return CopyMarks(*await self._session.row("copy_marks"))

    async def rows(self, table: str, batch: int) -> AsyncIterator[Rows]:
        session = self._session
        cursor = await session.conn.cursor(session.sql.text(f"copy_out_{table}"))
        while rows := await cursor.fetch(batch):
            yield rows

    async def blobs(self, batch: int) -> AsyncIterator[list[tuple[str, bytes]]]:
        session = self._session
        cursor = await session.conn.cursor(session.sql.text("copy_blobs"))
        while rows := await cursor.fetch(batch):
            yield [(digest, body) for digest, body in rows]


def _local_rows(table: str, rows: Rows) -> Iterator[tuple[str, Sequence[str], Rows]]:
    """(table, columns, rows) as this dialect stores rows of a shared table."""
    if table == "counter":
        yield "counter", ("name", "admitted"), [(name, admitted) for name, admitted, _ in rows]
        yield "closed", ("name", "closed"), [(name, closed) for name, _, closed in rows]
    elif table == "lane":
        digests = [hashlib.sha256(signature.encode()).digest() for _, signature in rows]
        lanes = [(*row, digest) for row, digest in zip(rows, digests, strict=True)]
        yield "lane", ("id", "signature", "digest"), lanes
    else:
        yield table, TABLES[table].columns, rows


class _SchemaWriter:
    def __init__(self, session: PostgresSession) -> None:
        self._session = session

    async def horizon(self) -> int:
        return (await self._session.row("copy_horizon"))[0]

    async def write(self, table: str, rows: Rows) -> None:
        session = self._session
        async with session.transaction():
            for name, columns, records in _local_rows(table, rows):
                await session.copy(name, columns, records)

    async def put_blobs(self, blobs: list[tuple[str, bytes]]) -> None:
        async with self._session.transaction():
            for digest, body in blobs:
                await self._session.run("blob_put", digest, body)

    async def finish(self, marks: CopyMarks, expected: dict[str, int]) -> None:
        session = self._session
        async with session.transaction("begin_alone"):
            for table, count in expected.items():
                name = "status_blobs" if table == BLOBS else f"copy_count_{table}"
                [found] = await session.row(name)
                if found != count:
                    raise copying.incomplete(session.options.shown, table, count, found)
            await session.run("copy_leader", marks.term, marks.owner, marks.limits_version)
            await session.run("copy_last_run", marks.run)
            await session.run("copy_sequences", marks.lane, marks.request, marks.limit_change)
            await session.run("copy_unmark", COPYING)
