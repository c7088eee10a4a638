"""A file as the source or the target of a copy.

A target is filled behind its turnstile, held from the first row to the last:
whoever has the file open waits there, and finds it busy.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from locktender.base.clock import SECOND, Clock, SystemClock
from locktender.base.errors import StoreBusy
from locktender.store import copying
from locktender.store.copy_tables import TABLES
from locktender.store.copying import BLOBS, EMPTY, CopyMarks, Rows
from locktender.store.migrate import COPYING
from locktender.store.sqlite import faults
from locktender.store.sqlite.blobs import Blobs
from locktender.store.sqlite.maintenance import SqliteUpkeep
from locktender.store.sqlite.opening import migrate
from locktender.store.sqlite.session import SQL, SqliteSession, connect
from locktender.store.sqlite.write_lock import WriteLock

T = TypeVar("T")
PATIENCE_US = 5 * SECOND


class SqlitePlace(SqliteUpkeep):
    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[_Reading]:
        with _Desk(self.path, self._clock, write=False) as desk:
            await desk.call(lambda tx: tx.run("begin_read"))
            yield _Reading(desk, self._blobs())

    @asynccontextmanager
    async def writing(self) -> AsyncGenerator[_Writing]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        turnstile = WriteLock(self.path, SystemClock(), PATIENCE_US)
        try:
            await asyncio.to_thread(turnstile.enter)
        except StoreBusy as error:
            turnstile.close()
            raise copying.being_copied(str(self.path)) from error
        try:
            with _Desk(self.path, self._clock, write=True) as desk:
                await desk.call(self._begin)
                self._blobs().clear()
                yield _Writing(desk, self._blobs(), str(self.path))
        finally:
            turnstile.leave()
            turnstile.close()

    def _begin(self, tx: SqliteSession) -> None:
        tables = {row[0] for row in tx.all("table_names")}
        if tables and "migration" not in tables:
            raise faults.foreign(self.path)
        if tables and COPYING in _applied(tx):
            _at_once(_wipe)(tx)
        migrate(tx, self.path)
        _at_once(self._mark)(tx)

    def _mark(self, tx: SqliteSession) -> None:
        for table in EMPTY:
            if tx.row(f"copy_count_{table}")[0]:
                raise copying.not_empty(str(self.path), table)
        _wipe(tx)
        tx.run("copy_mark", COPYING)


def _applied(tx: SqliteSession) -> set[int]:
    return {row[0] for row in tx.all("migration_list")}


def _wipe(tx: SqliteSession) -> None:
    """Nothing is left, neither of a copy that was not finished nor of what a new store begins with."""
    for table in TABLES:
        tx.run(f"copy_wipe_{table}")
    tx.run("copy_unmark", COPYING)


class _Desk:
    """A connection with a thread of its own: SQLite's belong to one."""

    def __init__(self, path: Path, clock: Clock, *, write: bool) -> None:
        self._path = path
        self._clock = clock
        self._write = write
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="locktender-copy")
        self._session: SqliteSession | None = None

    def __enter__(self) -> _Desk:
        return self

    def __exit__(self, *_: object) -> None:
        session = self._session
        if session is not None:
            self._thread.submit(session.db.close).result()
        self._thread.shutdown()

    async def call(self, work: Callable[[SqliteSession], T]) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._run, work)

    def _run(self, work: Callable[[SqliteSession], T]) -> T:
        try:
            if self._session is None:
                self._session = connect(self._path, self._clock, PATIENCE_US, write=self._write)
            return work(self._session)
        except (sqlite3.Error, OSError) as error:
            raise faults.translate(error, self._path) from error


class _Reading:
    def __init__(self, desk: _Desk, blobs: Blobs) -> None:
        self._desk = desk
        self._blobs = blobs

    async def marks(self) -> CopyMarks:
        return await self._desk.call(lambda tx: CopyMarks(*tx.row("copy_marks")))

    async def rows(self, table: str, batch: int) -> AsyncIterator[Rows]:
        cursor = await self._desk.call(lambda tx: tx.db.execute(SQL.text(f"copy_out_{table}")))
        while rows := await self._desk.call(lambda _: cursor.fetchmany(batch)):
            yield rows

    async def blobs(self, batch: int) -> AsyncIterator[list[tuple[str, bytes]]]:
        names = list(self._blobs.names())
        for start in range(0, len(names), batch):
            several = names[start : start + batch]
            yield await self._desk.call(lambda _, some=several: self._get(some))

    def _get(self, names: list[str]) -> list[tuple[str, bytes]]:
        return [(name, self._blobs.get(name)) for name in names]


class _Writing:
    def __init__(self, desk: _Desk, blobs: Blobs, where: str) -> None:
        self._desk = desk
        self._blobs = blobs
        self._where = where

    async def horizon(self) -> int:
        return 0

    async def write(self, table: str, rows: Rows) -> None:
        await self._desk.call(_at_once(lambda tx: tx.each(f"copy_in_{table}", rows)))

    async def put_blobs(self, blobs: list[tuple[str, bytes]]) -> None:
        await self._desk.call(lambda _: [self._blobs.put(body) for _, body in blobs])

    async def finish(self, marks: CopyMarks, expected: dict[str, int]) -> None:
        await self._desk.call(_at_once(lambda tx: self._finish(tx, marks, expected)))

    def _finish(self, tx: SqliteSession, marks: CopyMarks, expected: dict[str, int]) -> None:
        found = {table: tx.row(f"copy_count_{table}")[0] for table in TABLES}
        found[BLOBS] = sum(1 for _ in self._blobs.names())
        for table, count in expected.items():
            if found[table] != count:
                raise copying.incomplete(self._where, table, count, found[table])
        tx.run("copy_leader", marks.term, marks.owner)
        tx.run("copy_limits_version", marks.limits_version)
        for table, last in (
            ("run", marks.run),
            ("event", marks.event),
            ("lane", marks.lane),
            ("request", marks.request),
            ("limit_history", marks.limit_change),
        ):
            tx.run("copy_sequence_clear", table)
            tx.run("copy_sequence", table, last)
        tx.run("copy_unmark", COPYING)


def _at_once(work: Callable[[SqliteSession], T]) -> Callable[[SqliteSession], T]:
    def transaction(tx: SqliteSession) -> T:
        tx.run("begin_write")
        try:
            result = work(tx)
            tx.run("commit_transaction")
        except BaseException:
            if tx.db.in_transaction:
                tx.run("rollback_transaction")
            raise
        return result

    return transaction
