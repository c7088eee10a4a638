"""Opening the file: create it, migrate it, or refuse it with a reason.

Processes that start together meet here. Migrating is one write transaction
behind the write_lock: the first applies, the others find nothing pending.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

from locktender.base.clock import Clock
from locktender.base.errors import StoreError
from locktender.store.migrate import Migrated, pending, read_migrations
from locktender.store.sqlite import faults
from locktender.store.sqlite.session import SqliteSession, connect
from locktender.store.sqlite.write_lock import WriteLock

MIGRATIONS = read_migrations(Path(__file__).parent / "migrations")
_OLDEST_SQLITE = (3, 38, 0)


def open_writer(
    path: Path, clock: Clock, write_lock: WriteLock, busy_timeout_us: int, *, migrates: bool = True
) -> SqliteSession:
    """The writer's connection to a file whose schema is up to date."""
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise StoreError(
            f"SQLite {sqlite3.sqlite_version} is too old.",
            hint=f"Use a Python built with SQLite {'.'.join(map(str, _OLDEST_SQLITE))} or newer.",
        )
    # The write_lock also covers the change to WAL, for which SQLite has no patience of its own.
    write_lock.enter()
    try:
        session = connect(path, clock, busy_timeout_us, write=True)
        try:
            migrate(session, path, migrates=migrates)
        except BaseException:
            session.db.close()
            raise
    finally:
        write_lock.leave()
    return session


def migrate(session: SqliteSession, path: Path, *, migrates: bool = True) -> Migrated:
    session.run("begin_write")
    try:
        tables = {row[0] for row in session.all("table_names")}
        if tables and "migration" not in tables:
            raise faults.foreign(path)
        session.run("migration_table")
        applied: dict[int, str] = dict(session.all("migration_list"))  # pyright: ignore[reportArgumentType]
        for migration in pending(MIGRATIONS, applied, migrates=migrates):
            for statement in split(migration.text):
                session.db.execute(statement)
            session.run("migration_add", migration.number, migration.name, migration.checksum)
        session.run("commit_transaction")
        return Migrated(max(applied, default=0), len(MIGRATIONS))
    except BaseException:
        if session.db.in_transaction:
            session.run("rollback_transaction")
        raise


def split(script: str) -> Iterator[str]:
    """The statements of a script: `executescript` would commit the transaction they belong to."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip():
        yield statement
