"""A SQLite file as a whole: its status, its migration, and copies from and to it.

A copy holds the write lock of its target from the first row to the last, so an
engine that opens the file meanwhile waits there and finds it busy.
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
from locktender.base.errors import InvalidInput, NotFound, StoreBusy
from locktender.base.events import HISTORY
from locktender.store import copying
from locktender.store.copy_tables import TABLES
from locktender.store.copying import BLOBS, EMPTY, CopyMarks, Purpose, Rows
from locktender.store.maintenance import Led, Status, agree
from locktender.store.migrate import COPYING, Migrated
from locktender.store.protocol import EventFilter
from locktender.store.sqlite import faults, opening, reads
from locktender.store.sqlite.blobs import Blobs
from locktender.store.sqlite.companions import create_database
from locktender.store.sqlite.liveness import Liveness
from locktender.store.sqlite.opening import migrate
from locktender.store.sqlite.session import SQL, SqliteSession, connect, resolved
from locktender.store.sqlite.write_lock import WriteLock

T = TypeVar("T")
BUSY_TIMEOUT_US = 30 * SECOND
COPY_LOCK_WAIT_US = 5 * SECOND
MAX_REMARKS = 100_000


class SqlitePlace:
    def __init__(self, path: str | Path, clock: Clock | None = None) -> None:
        self.path: Path = resolved(path)
        self._clock: Clock = SystemClock() if clock is None else clock

    @property
    def where(self) -> str:
        return str(self.path)

    async def exists(self) -> bool:
        return self.path.exists()

    def grant_script(self, purpose: Purpose, role: str, *, revokes: bool) -> str:  # noqa: ARG002
        raise self._no_roles(role)

    async def grant(self, purpose: Purpose, role: str, *, revokes: bool) -> None:  # noqa: ARG002
        raise self._no_roles(role)

    def _no_roles(self, role: str) -> InvalidInput:
        return InvalidInput(
            f"{self.path} is a file: it has no roles.",
            field="role",
            got=role,
            hint="Who may read and write the file may do everything. Roles are for postgresql://….",
        )

    async def status(self) -> Status:
        if not self.path.exists():
            raise NotFound(
                f"there is no store at {self.path} yet.",
                field="url",
                got=str(self.path),
                hint="locktender db migrate makes one; --url names another.",
            )
        return await asyncio.to_thread(self._with, self._status, False)

    async def migrate(self) -> Migrated:
        create_database(self.path)
        return await asyncio.to_thread(self._migrate)

    def _migrate(self) -> Migrated:
        # Writers of other processes wait for the same lock; the change is short.
        write_lock = WriteLock(self.path, SystemClock(), BUSY_TIMEOUT_US)
        write_lock.enter()
        try:
            return self._with(lambda session: opening.migrate(session, self.path), True)
        finally:
            write_lock.leave()
            write_lock.close()

    def _with(self, work: Callable[[SqliteSession], T], write: bool) -> T:
        try:
            session = connect(self.path, self._clock, BUSY_TIMEOUT_US, write=write)
            try:
                return work(session)
            finally:
                session.db.close()
        except (sqlite3.Error, OSError) as error:
            raise faults.translate(error, self.path) from error

    def _status(self, tx: SqliteSession) -> Status:
        tx.run("begin_read")
        tables = {row[0] for row in tx.all("table_names")}
        if tables and "migration" not in tables:
            raise faults.foreign(self.path)
        known = len(opening.MIGRATIONS)
        if not tables:
            return Status("sqlite", str(self.path), {}, known, bytes=self._bytes())
        applied: dict[int, str] = dict(tx.all("migration_list"))  # pyright: ignore[reportArgumentType]
        live = Liveness(self.path)
        term, owner, expires_at, _, _, now = tx.row("leader")
        leads = bool(term) and expires_at > now and not live.dead(owner)
        tasks, history, graphs, queued, requests = tx.row("status_rows")
        blobs = sum(1 for _ in self._blobs().names())
        oldest, newest = tx.row("status_ends")
        return Status(
            "sqlite",
            str(self.path),
            applied,
            known,
            now,
            dict(tx.all("status_runs")),  # pyright: ignore[reportArgumentType]
            {
                "tasks": tasks,
                "history": history,
                "graphs": graphs,
                "blobs": blobs,
                "queued": queued,
                "requests": requests,
            },
            oldest=oldest,
            newest=newest,
            bytes=self._bytes(),
            led=Led(owner, term, expires_at) if leads else None,
            workers=[
                row for row in reads.workers(tx) if row.lease_until > now and not live.dead(row.id)
            ],
            remarks=reads.events(tx, EventFilter(run=HISTORY, limit=MAX_REMARKS)),
            counters_agree=agree(reads.counts(tx)),
        )

    def _blobs(self) -> Blobs:
        return Blobs(self.path, self._clock)

    def _bytes(self) -> int:
        files = [
            self.path,
            *(self.path.with_name(self.path.name + end) for end in ("-wal", "-shm")),
        ]
        return sum(file.stat().st_size for file in files if file.exists()) + sum(
            self._blobs().sizes()
        )

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[_FileReader]:
        with _CopyThread(self.path, self._clock, write=False) as thread:
            await thread.call(lambda tx: tx.run("begin_read"))
            yield _FileReader(thread, self._blobs())

    @asynccontextmanager
    async def writing(self) -> AsyncGenerator[_FileWriter]:
        create_database(self.path)
        write_lock = WriteLock(self.path, SystemClock(), COPY_LOCK_WAIT_US)
        try:
            await asyncio.to_thread(write_lock.enter)
        except StoreBusy as error:
            write_lock.close()
            raise copying.being_copied(str(self.path)) from error
        try:
            with _CopyThread(self.path, self._clock, write=True) as thread:
                await thread.call(self._begin)
                self._blobs().clear()
                yield _FileWriter(thread, self._blobs(), str(self.path))
        finally:
            write_lock.leave()
            write_lock.close()

    def _begin(self, tx: SqliteSession) -> None:
        tables = {row[0] for row in tx.all("table_names")}
        if tables and "migration" not in tables:
            raise faults.foreign(self.path)
        if tables and COPYING in _applied(tx):
            _in_transaction(_wipe)(tx)
        migrate(tx, self.path)
        _in_transaction(self._mark)(tx)

    def _mark(self, tx: SqliteSession) -> None:
        for table in EMPTY:
            if tx.row(f"copy_count_{table}")[0]:
                raise copying.not_empty(str(self.path), table)
        _wipe(tx)
        tx.run("copy_mark", COPYING)


def _applied(tx: SqliteSession) -> set[int]:
    return {row[0] for row in tx.all("migration_list")}


def _wipe(tx: SqliteSession) -> None:
    """Removes rows of an unfinished copy, and the rows that a new store begins with."""
    for table in TABLES:
        tx.run(f"copy_wipe_{table}")
    tx.run("copy_unmark", COPYING)


class _CopyThread:
    """A connection with its own thread: a SQLite connection belongs to one thread."""

    def __init__(self, path: Path, clock: Clock, *, write: bool) -> None:
        self._path = path
        self._clock = clock
        self._write = write
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="locktender-copy")
        self._session: SqliteSession | None = None

    def __enter__(self) -> _CopyThread:
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
                self._session = connect(
                    self._path, self._clock, COPY_LOCK_WAIT_US, write=self._write
                )
            return work(self._session)
        except (sqlite3.Error, OSError) as error:
            raise faults.translate(error, self._path) from error


class _FileReader:
    def __init__(self, thread: _CopyThread, blobs: Blobs) -> None:
        self._caller = thread
        self._blobs = blobs

    async def marks(self) -> CopyMarks:
        return await self._caller.call(lambda tx: CopyMarks(*tx.row("copy_marks")))

    async def rows(self, table: str, batch: int) -> AsyncIterator[Rows]:
        cursor = await self._caller.call(lambda tx: tx.db.execute(SQL.text(f"copy_out_{table}")))
        while rows := await self._caller.call(lambda _: cursor.fetchmany(batch)):
            yield rows

    async def blobs(self, batch: int) -> AsyncIterator[list[tuple[str, bytes]]]:
        names = list(self._blobs.names())
        for start in range(0, len(names), batch):
            several = names[start : start + batch]
            yield await self._caller.call(lambda _, some=several: self._get(some))

    def _get(self, names: list[str]) -> list[tuple[str, bytes]]:
        return [(name, self._blobs.get(name)) for name in names]


class _FileWriter:
    def __init__(self, thread: _CopyThread, blobs: Blobs, where: str) -> None:
        self._caller = thread
        self._blobs = blobs
        self._where = where

    async def horizon(self) -> int:
        return 0

    async def write(self, table: str, rows: Rows) -> None:
        await self._caller.call(_in_transaction(lambda tx: tx.each(f"copy_in_{table}", rows)))

    async def put_blobs(self, blobs: list[tuple[str, bytes]]) -> None:
        await self._caller.call(lambda _: [self._blobs.put(body) for _, body in blobs])

    async def finish(self, marks: CopyMarks, expected: dict[str, int]) -> None:
        await self._caller.call(_in_transaction(lambda tx: self._finish(tx, marks, expected)))

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


def _in_transaction(work: Callable[[SqliteSession], T]) -> Callable[[SqliteSession], T]:
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
