"""Looking after a schema: one connection of its own, for as long as it takes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from locktender.base.events import HISTORY
from locktender.store.maintenance import Led, Server, Status, agree
from locktender.store.migrate import Migrated
from locktender.store.postgres import faults, opening, reads
from locktender.store.postgres.composed_sql import Dialect
from locktender.store.postgres.connection import connect
from locktender.store.postgres.options import Options, parse
from locktender.store.postgres.session import SQL, KnownStatements, PostgresSession, pairs
from locktender.store.protocol import EventFilter

T = TypeVar("T")
MOST_REMARKS = 100_000
COUNTED = 1_000_000
"""Up to so many rows are counted; of more, the planner's estimate is told."""


class PostgresUpkeep:
    def __init__(self, url: str, schema: str | None = None) -> None:
        self.options: Options = parse(url, schema)
        self._sql = Dialect(SQL, self.options.quoted_schema)

    @property
    def where(self) -> str:
        return f"{self.options.shown} schema {self.options.schema}"

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


async def _status(tx: PostgresSession) -> Status:
    options = tx.options
    where = f"{options.shown} schema {options.schema}"
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
        tasks, events, graphs, queued, requests = rows
        [blobs] = await tx.row("status_blobs")
        [held_back] = await tx.row("held_back")
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
                "events": events,
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
            await reads.events(tx, EventFilter(run=HISTORY, limit=MOST_REMARKS)),
            Server(
                version,
                most,
                used,
                mine,
                None if held_back is None else max(0, now - held_back),
            ),
            agree(await reads.counts(tx)),
        )
