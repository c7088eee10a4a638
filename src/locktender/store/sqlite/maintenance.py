"""Looking after a file: a read-only connection beside whoever works on it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from locktender.base.clock import SECOND, Clock, SystemClock
from locktender.base.errors import NotFound
from locktender.base.events import HISTORY
from locktender.store.maintenance import Led, Status, agree
from locktender.store.migrate import Migrated
from locktender.store.protocol import EventFilter
from locktender.store.sqlite import faults, opening, reads
from locktender.store.sqlite.blobs import Blobs
from locktender.store.sqlite.liveness import Liveness
from locktender.store.sqlite.session import SqliteSession, connect
from locktender.store.sqlite.write_lock import WriteLock

T = TypeVar("T")
BUSY_TIMEOUT_US = 30 * SECOND
MOST_REMARKS = 100_000


class SqliteUpkeep:
    def __init__(self, path: str | Path, clock: Clock | None = None) -> None:
        self.path: Path = Path(path).absolute()
        self._clock: Clock = SystemClock() if clock is None else clock

    @property
    def where(self) -> str:
        return str(self.path)

    async def exists(self) -> bool:
        return self.path.exists()

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
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return await asyncio.to_thread(self._migrate)

    def _migrate(self) -> Migrated:
        # The change is short, and whoever writes waits at the same turnstile.
        turnstile = WriteLock(self.path, SystemClock(), BUSY_TIMEOUT_US)
        turnstile.enter()
        try:
            return self._with(lambda session: opening.migrate(session, self.path), True)
        finally:
            turnstile.leave()
            turnstile.close()

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
        live = Liveness(self.path.with_name(f"{self.path.name}-live"))
        term, owner, expires_at, _, _, now = tx.row("leader")
        leads = bool(term) and expires_at > now and not live.dead(owner)
        tasks, events, graphs, queued, requests = tx.row("status_rows")
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
                "events": events,
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
            remarks=reads.events(tx, EventFilter(run=HISTORY, limit=MOST_REMARKS)),
            counters_agree=agree(reads.counts(tx)),
        )

    def _blobs(self) -> Blobs:
        return Blobs(self.path.with_name(f"{self.path.name}-blobs"), self._clock)

    def _bytes(self) -> int:
        files = [
            self.path,
            *(self.path.with_name(self.path.name + end) for end in ("-wal", "-shm")),
        ]
        return sum(file.stat().st_size for file in files if file.exists()) + sum(
            self._blobs().sizes()
        )
