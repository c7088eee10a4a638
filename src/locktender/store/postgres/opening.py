"""Opening the store: check the server, create or migrate the schema, or refuse with a reason.

Processes that start together meet here. Each migration is a transaction behind an
advisory lock: the first applies it, the others find nothing pending. A schema
that is up to date is only read, so that opening costs one round trip and works
for a role that may not create anything. To choose the moment or the role of a
migration, run `locktender db migrate` before new code starts.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg

from locktender.store.migrate import Migrated, Migration, no_store, pending, read_migrations
from locktender.store.postgres import faults
from locktender.store.postgres.connection import Connection
from locktender.store.postgres.listener import Listener
from locktender.store.postgres.server_clock import ServerClock
from locktender.store.postgres.session import PostgresSession, pairs

if TYPE_CHECKING:
    from locktender.store.postgres.submit_batcher import SubmitBatcher

CONNECTIONS = 5
"""The most that one open store has."""
TWIN_CONNECTIONS = 3
"""The most of a store that only renews leases. The two together are all that a process opens."""
MIGRATIONS = read_migrations(Path(__file__).parent / "migrations")
MIGRATORS = 2
"""The advisory lock of migrations."""
_OLDEST_SERVER = 140_000
_TRIES, _PAUSE_SECONDS = 60, 0.25
_LONGEST_SECONDS = 3_600.0
"""That one migration may take."""


class PostgresConnections:
    """What an open store has: each connection connects when it is first used."""

    def __init__(
        self,
        make: Callable[[], Connection],
        listener: Listener,
        clock: ServerClock,
        *,
        shared: bool = False,
    ) -> None:
        """`shared`: one connection does it all."""
        self.work: Connection = make()
        self.lead: Connection = self.work if shared else make()
        self.write: Connection = self.work if shared else make()
        self.query: Connection = self.work if shared else make()
        self._clock = clock
        self.listener: Listener = listener
        self.pid: int = os.getpid()

    @cached_property
    def batcher(self) -> SubmitBatcher:
        # Only here: most commands submit nothing.
        from locktender.store.postgres.submit_batcher import SubmitBatcher  # noqa: PLC0415

        return SubmitBatcher(self.write, self._clock)

    async def stop(self) -> None:
        await self.listener.stop()
        each = {self.lead, self.write, self.work, self.query}
        await asyncio.gather(*(connection.close() for connection in each))


async def is_current(session: PostgresSession, connections: int) -> bool:
    """Whether nothing has to be changed before the store can be used, as nearly always.

    False: no schema, an older one, or a role that may not read it. Refuses as `check_server` and `migrate` do.
    """
    await check_server(session, connections)
    try:
        # One after the other: for `several`, asyncpg asks for types first, which takes longer than all of these.
        applied = await _applied(session)
        [taken] = await session.row("numbers_taken")
    except asyncpg.SyntaxOrAccessError:
        return False
    return not pending(MIGRATIONS, applied) and not taken


async def check_server(session: PostgresSession, connections: int) -> None:
    """Refuses a server that is too old, read-only, or has no room for what this store may open."""
    where = session.options.shown
    version, most, used, standby, read_only = await session.row("server")
    if version < _OLDEST_SERVER:
        raise faults.too_old(where, version)
    if standby or read_only:
        raise faults.read_only(where)
    # The pooler's connections are not ours to count. This one is among those used already.
    if not session.options.pooled and most - used < connections - 1:
        raise faults.no_room(where, most - used, connections - 1)


async def migrate(
    session: PostgresSession, *, migrates: bool = True, creates: bool = True
) -> Migrated:
    """Applies pending migrations, each in its own transaction, beside running engines.

    A change of a table waits for the transactions that use it, and later ones queue
    behind it: so it waits only a moment, lets them pass, and tries again.
    """
    _, ours = await session.row("schema_exists", session.options.schema)
    if not ours and not creates:
        raise no_store(session.options.where)
    before = await _applied(session) if ours else {}
    left = pending(MIGRATIONS, before, migrates=migrates)
    tries = 0
    while left or not ours:
        try:
            left, ours = await _apply_next(session), True
        except asyncpg.LockNotAvailableError as error:
            tries += 1
            if tries == _TRIES:
                raise faults.in_use(session.options.shown, left[0].name) from error
            await asyncio.sleep(_PAUSE_SECONDS)
    return Migrated(max(before, default=0), len(MIGRATIONS))


async def _apply_next(session: PostgresSession) -> list[Migration]:
    """Applies the first migration that is pending, with the schema around it; what is pending then."""
    options, conn = session.options, session.conn
    begin = session.locking("migration_lock", MIGRATORS)
    # One long simple query after another: DDL has no parameters, and needs no statement cache.
    await conn.execute(begin)
    try:
        exists, ours = await session.row("schema_exists", options.schema)
        if not exists:
            await conn.execute(
                session.sql.text("schema_add").replace("{schema}", options.quoted_schema)
            )
        elif not ours and (await session.row("schema_tables", options.schema))[0]:
            raise faults.foreign(options.shown, options.schema)
        await conn.execute(session.sql.text("migration_table"))
        left = pending(MIGRATIONS, await _applied(session))
        for migration in left[:1]:
            await conn.execute(session.sql.localise(migration.text), timeout=_LONGEST_SECONDS)
            await session.run("migration_add", migration.number, migration.name, migration.checksum)
        await conn.execute(session.sql.text("commit_transaction"))
    except BaseException:
        if not conn.is_closed() and conn.is_in_transaction():
            await conn.execute(session.sql.text("rollback_transaction"))
        raise
    return left[1:]


async def _applied(session: PostgresSession) -> dict[int, str]:
    return pairs(await session.all("migration_list"))
