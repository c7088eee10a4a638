"""Opening the store: check the server, create or migrate the schema, or refuse with a reason.

Processes that start together meet here. Migrating is one transaction behind an
advisory lock: the first applies, the others find nothing pending. A schema
that is up to date is only read, so that opening costs one round trip and works
for a role that may not create anything.
"""

from __future__ import annotations

from pathlib import Path

from headgate.store.migrate import pending, read_migrations
from headgate.store.postgres import faults
from headgate.store.postgres.session import Session, pairs

MIGRATIONS = read_migrations(Path(__file__).parent / "migrations")
MIGRATORS = 2
"""The lock of those who migrate."""
_OLDEST_SERVER = 140_000


async def check_server(session: Session, connections: int) -> None:
    """Refuses a server that is too old, read-only, or has no room for what this process may open."""
    where = session.options.shown
    version, most, used, standby, read_only = await session.row("server")
    if version < _OLDEST_SERVER:
        raise faults.too_old(where, version)
    if standby or read_only:
        raise faults.read_only(where)
    # The pooler's connections are not ours to count. This one is among those used already.
    if not session.options.pooled and most - used < connections - 1:
        raise faults.no_room(where, most - used, connections - 1)


async def migrate(session: Session) -> None:
    exists, ours = await session.row("schema_exists", session.options.schema)
    if ours and not pending(MIGRATIONS, await _applied(session)):
        return
    options = session.options
    begin = session.sql.text("migration_lock").replace("{lock}", options.lock(MIGRATORS))
    conn = session.conn
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
        for migration in pending(MIGRATIONS, await _applied(session)):
            await conn.execute(session.sql.localise(migration.text))
            await session.run("migration_add", migration.number, migration.name, migration.checksum)
        await conn.execute(session.sql.text("commit_transaction"))
    except BaseException:
        if not conn.is_closed() and conn.is_in_transaction():
            await conn.execute(session.sql.text("rollback_transaction"))
        raise


async def _applied(session: Session) -> dict[int, str]:
    return pairs(await session.all("migration_list"))
