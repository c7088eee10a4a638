"""The threads that own the connections: one writer that groups commits, and readers.

A commit costs the same whatever it holds, so the writer runs all waiting verbs in
one transaction, each inside a savepoint: a verb that fails is rolled back alone.
Results are delivered only after the commit, so no caller acts on a result that
could still be lost. Where the transaction itself fails (a full disk, a
commit that cannot be written) the whole group is undone and its verbs run again
one by one, so that each gets its own answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from locktender.base.errors import LocktenderError, StoreError
from locktender.store.sqlite import faults
from locktender.store.sqlite.session import SqliteSession
from locktender.store.sqlite.write_lock import WriteLock


class StoreCall(msgspec.Struct, eq=False):
    verb: Callable[[SqliteSession], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    done: Callable[[], None]
    """Called in the loop when the job has left the queue for good."""
    outside: bool = False
    """Not a part of any transaction."""
    result: Any = None
    error: BaseException | None = None


def deliver(jobs: Iterable[StoreCall]) -> None:
    """Hands results to the loops that wait for them: one call per loop, not one per job."""
    loops: dict[asyncio.AbstractEventLoop, list[StoreCall]] = {}
    for job in jobs:
        loops.setdefault(job.loop, []).append(job)
    for loop, several in loops.items():
        try:
            loop.call_soon_threadsafe(_settle, several)
        except RuntimeError:
            # The loop is closed: no caller waits any more.
            continue


def _settle(jobs: list[StoreCall]) -> None:
    for job in jobs:
        job.done()
        if job.future.done():
            continue
        if job.error is None:
            job.future.set_result(job.result)
        else:
            job.future.set_exception(job.error)


T = TypeVar("T")

MAX_QUEUED = 10_000
MAX_GROUP = 256


class _Thread:
    """A thread with a connection of its own, opened and closed inside it."""

    def __init__(self, name: str, path: Path, connect: Callable[[], SqliteSession]) -> None:
        self._path = path
        self._connect = connect
        self._queue: queue.SimpleQueue[StoreCall | None] = queue.SimpleQueue()
        self._room = asyncio.Semaphore(MAX_QUEUED)
        self._opened: asyncio.Future[None] | None = None
        self._name = name
        self._thread: threading.Thread | None = None
        self._closed = False

    async def open(self) -> None:
        """Starts the thread, once. If that fails, all who waited get the error, and the next call tries again."""
        opened = self._opened
        if opened is None or (opened.done() and opened.exception() is not None):
            self._check_open()
            self._opened = opened = asyncio.get_running_loop().create_future()
            # Every caller may have been cancelled: without this asyncio logs an error that none received.
            opened.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._thread = threading.Thread(
                target=self._main, args=(opened,), name=self._name, daemon=True
            )
            self._thread.start()
        # A caller that stops waiting does not stop the opening for the others.
        await asyncio.shield(opened)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the store is closed.", hint="Open it first.")

    async def call(self, verb: Callable[[SqliteSession], T], *, outside: bool = False) -> T:
        """The verb's result. A caller that stops waiting does not stop the verb."""
        if not self._serves:
            await self.open()
        await self._room.acquire()
        try:
            self._check_open()
        except StoreError:
            self._room.release()
            raise
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._queue.put(StoreCall(verb, loop, future, self._room.release, outside))
        return await future

    @property
    def _serves(self) -> bool:
        opened = self._opened
        return opened is not None and opened.done() and opened.exception() is None

    async def close(self) -> None:
        """Finishes what was handed in, then ends the thread."""
        if self._closed:
            return
        self._closed = True
        if self._thread is None or self._opened is None:
            return
        if not self._opened.done():
            await asyncio.wait([self._opened])
        if not self._serves:
            self._thread.join()
            return
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Any] = loop.create_future()
        self._queue.put(StoreCall(_nothing, loop, ended, _nothing, outside=True))
        self._queue.put(None)
        await ended
        self._thread.join()

    def _main(self, opened: asyncio.Future[None]) -> None:
        try:
            session = self._connect()
        except BaseException as error:  # noqa: BLE001
            _settle_opened(opened, self._explain(error))
            return
        _settle_opened(opened, None)
        try:
            while (jobs := self._next_jobs()) is not None:
                try:
                    self._serve(session, jobs)
                except BaseException as error:  # noqa: BLE001
                    # This thread must not end: all callers would wait for ever.
                    for job in jobs:
                        job.error = job.error or self._explain(error)
                deliver(jobs)
        finally:
            session.db.close()

    def _next_jobs(self) -> list[StoreCall] | None:
        first = self._queue.get()
        if first is None:
            return None
        jobs = [first]
        # This thread is the only consumer: a queue that is not empty stays so.
        while len(jobs) < MAX_GROUP and not self._queue.empty():
            job = self._queue.get()
            if job is None:
                # Closing: serve what came before, then end.
                self._queue.put(None)
                break
            jobs.append(job)
        return jobs

    def _serve(self, session: SqliteSession, jobs: list[StoreCall]) -> None:
        raise NotImplementedError

    def _explain(self, error: BaseException) -> BaseException:
        if isinstance(error, sqlite3.Error | OSError):
            explained = faults.translate(error, self._path)
            explained.__cause__ = error
            return explained
        if isinstance(error, OverflowError | UnicodeError):
            # An int beyond 64 bits, or half a character: the module refuses it before SQLite sees it.
            refused = faults.refused(error)
            refused.__cause__ = error
            return refused
        return error


def _nothing(_: object = None) -> None:
    """The last job before the end."""


def _settle_opened(opened: asyncio.Future[None], error: BaseException | None) -> None:
    def settle() -> None:
        if opened.done():
            return
        if error is None:
            opened.set_result(None)
        else:
            opened.set_exception(error)

    with contextlib.suppress(RuntimeError):
        opened.get_loop().call_soon_threadsafe(settle)


class Reader(_Thread):
    """Each verb in one read transaction: what it returns was true at one instant."""

    def _serve(self, session: SqliteSession, jobs: list[StoreCall]) -> None:
        for job in jobs:
            try:
                session.run("begin_read")
                try:
                    job.result = job.verb(session)
                finally:
                    if session.db.in_transaction:
                        session.run("commit_transaction")
            except Exception as error:  # noqa: BLE001
                job.error = self._explain(error)


class Writer(_Thread):
    def __init__(
        self,
        name: str,
        path: Path,
        connect: Callable[[], SqliteSession],
        write_lock: WriteLock,
        committed: Callable[[], None],
    ) -> None:
        super().__init__(name, path, connect)
        self._write_lock = write_lock
        self._committed = committed

    def _serve(self, session: SqliteSession, jobs: list[StoreCall]) -> None:
        written = [job for job in jobs if not job.outside]
        if written:
            before = session.db.total_changes
            self._commit_all(session, written)
            if session.db.total_changes != before:
                self._committed()
        for job in jobs:
            if job.outside:
                try:
                    job.result = job.verb(session)
                except Exception as error:  # noqa: BLE001
                    job.error = self._explain(error)

    def _commit_all(self, session: SqliteSession, jobs: list[StoreCall]) -> None:
        try:
            self._commit(session, jobs)
        except Exception as error:  # noqa: BLE001
            session.forget()
            if len(jobs) == 1 or isinstance(error, LocktenderError):
                for job in jobs:
                    job.result, job.error = None, self._explain(error)
                return
            for job in jobs:
                job.result = job.error = None
                self._commit_all(session, [job])

    def _commit(self, session: SqliteSession, jobs: list[StoreCall]) -> None:
        """Runs `jobs` in one transaction; raises where the transaction itself failed."""
        self._write_lock.enter()
        try:
            try:
                session.run("begin_write")
            except sqlite3.Error as error:
                # Nothing has run: to try one by one would only wait once for each.
                raise self._explain(error) from error
            try:
                if len(jobs) == 1:
                    jobs[0].result = jobs[0].verb(session)
                else:
                    for job in jobs:
                        self._try(session, job)
                session.run("commit_transaction")
            except BaseException:
                # A full disk may have rolled back already; then there is nothing left to undo.
                if session.db.in_transaction:
                    session.run("rollback_transaction")
                raise
        finally:
            self._write_lock.leave()

    def _try(self, session: SqliteSession, job: StoreCall) -> None:
        session.run("savepoint")
        try:
            job.result = job.verb(session)
        except (sqlite3.Error, MemoryError):
            # The world failed, not the verb: what the others did may be gone with it.
            raise
        except Exception as error:  # noqa: BLE001
            job.error = self._explain(error)
            session.run("savepoint_undo")
            session.forget()
        session.run("savepoint_keep")
