"""Opening the file: create it, migrate it, or refuse it with a reason.

Processes that start together meet here. Migrating is one write transaction
behind the write lock: the first applies, the others find nothing pending.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from locktender.base.clock import Clock, SystemClock
from locktender.base.errors import StoreError
from locktender.store.forked_children import close_in_children
from locktender.store.migrate import Migrated, pending, read_migrations
from locktender.store.sqlite import faults
from locktender.store.sqlite.liveness import Liveness
from locktender.store.sqlite.session import SQL, SqliteSession, connect
from locktender.store.sqlite.threads import Reader, Writer
from locktender.store.sqlite.wakeup import Wakeup
from locktender.store.sqlite.write_lock import WriteLock

MIGRATIONS = read_migrations(Path(__file__).parent / "migrations")
_OLDEST_SQLITE = (3, 38, 0)


class OpenFile:
    """What an open store has: threads, locks, a socket."""

    def __init__(
        self, path: Path, clock: Clock, busy_timeout_us: int, *, migrates: bool, brief: bool
    ) -> None:
        # Waiting for each other is real, whatever clock the store's instants come from.
        real = SystemClock()
        self.wake: Wakeup = Wakeup(path, real)
        try:
            self.write_lock: WriteLock = WriteLock(path, real, busy_timeout_us)
        except BaseException:
            self.wake.close()
            raise
        self.live: Liveness = Liveness(path)
        self.writer: Writer = Writer(
            "locktender-writer",
            path,
            partial(open_writer, path, clock, self.write_lock, busy_timeout_us, migrates=migrates),
            self.write_lock,
            self.wake.send,
        )
        read = partial(connect, path, clock, busy_timeout_us, write=False)
        self.work: Reader = Reader("locktender-reader", path, read)
        self.query: Reader = self.work if brief else Reader("locktender-query", path, read)
        self._brief = brief
        self.data_version: int = 0
        self.pid: int = os.getpid()
        close_in_children(self)

    def descriptors(self) -> Iterator[int]:
        """Of locks and of the socket: what a forked child must not keep."""
        for each in (self.wake, self.write_lock, self.live):
            yield from each.descriptors()

    async def start(self) -> None:
        if self._brief and await self._is_current():
            return  # the writer is opened with the first write
        for thread in (self.writer, self.work, self.query):
            await thread.open()
        self.data_version = await self.writer.call(_data_version, outside=True)

    async def _is_current(self) -> bool:
        """Whether the file can be used as it is: found without the write lock, for which engines stand in line."""
        try:
            return await self.work.call(is_current)
        except StoreError:
            return False  # the writer says what is wrong, or makes it

    async def stop(self) -> None:
        for thread in (self.writer, self.work, self.query):
            await thread.close()
        self.live.close()
        self.wake.close()
        self.write_lock.close()

    async def notice_foreign(self) -> None:
        """The poll: whether another connection has written since the last one."""
        version = await self.writer.call(_data_version, outside=True)
        if version != self.data_version:
            self.data_version = version
            self.wake.notice()


def _data_version(session: SqliteSession) -> int:
    return session.db.execute(SQL.text("data_version")).fetchone()[0]


def open_writer(
    path: Path, clock: Clock, write_lock: WriteLock, busy_timeout_us: int, *, migrates: bool = True
) -> SqliteSession:
    """The writer's connection to a file whose schema is up to date."""
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise StoreError(
            f"SQLite {sqlite3.sqlite_version} is too old.",
            hint=f"Use a Python built with SQLite {'.'.join(map(str, _OLDEST_SQLITE))} or newer.",
        )
    # The write lock also covers the change to WAL, for which SQLite does not wait.
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


def is_current(session: SqliteSession) -> bool:
    """Whether every migration was applied."""
    if "migration" not in {row[0] for row in session.all("table_names")}:
        return False
    applied: dict[int, str] = dict(session.all("migration_list"))  # pyright: ignore[reportArgumentType]
    return not pending(MIGRATIONS, applied)


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
