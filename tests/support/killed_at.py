"""`locktender` that is killed between two commits: python killed_at.py FILE COMMAND …

FILE says when; it is read at each commit of this process:

    (empty)        nobody is killed
    NAME count     the commits since this NAME are counted, in FILE.count
    NAME after 7   killed right after its 7th commit since: nobody has learned of it yet
    NAME before 7  killed right before its 7th: all that follows from the 6th has been done

A commit is a transaction that writes. The product has no part in this: the statements of its sessions are
counted.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

from locktender.cli.main import main
from locktender.store.postgres.session import PostgresSession, Row
from locktender.store.sqlite.session import SqliteSession
from locktender.testing.overlap import VARIABLE, Overlap

_WRITES = re.compile(r"\b(INSERT\s+INTO|DELETE\s+FROM|(?<!FOR )(?<!KEY )(?<!DO )UPDATE\s+\w)")


class KillSwitch:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._count_file = file.with_name(file.name + ".count")
        self._name = ""
        self._count = 0
        self._lock = threading.Lock()
        """Sessions commit in several threads; the second waits until the first is killed."""

    def begin(self) -> tuple[str, int]:
        """A commit is about to be made. Returns when to kill, and its number."""
        with self._lock:
            text = self._file.read_text().split()
            if not text:
                return "", 0
            if text[0] != self._name:
                self._name, self._count = text[0], 0
            self._count += 1
            if text[1] == "count":
                self._count_file.write_text(f"{self._name} {self._count}")
                return "", 0
            moment = text[1] if int(text[2]) == self._count else ""
            self.kill_at(moment, "before")
            return moment, self._count

    def kill_at(self, moment: str, now: str) -> None:
        if moment == now:
            # Marked in the records of the bodies, as when the test kills it.
            Overlap(Path(os.environ[VARIABLE])).kill(os.getpid())
            threading.Event().wait()


@cache
def writes(text: str) -> bool:
    return _WRITES.search(text) is not None


def watch(file: Path) -> None:
    """From here on the commits of this process are counted."""
    switch = KillSwitch(file)
    _watch_sqlite(switch)
    _watch_postgres(switch)


def _watch_sqlite(switch: KillSwitch) -> None:
    run = SqliteSession.run
    began: dict[SqliteSession, int] = {}

    def watched(self: SqliteSession, name: str, *params: object) -> int:
        if name == "begin_write":
            began[self] = self.db.total_changes
        if name != "commit_transaction" or self.db.total_changes == began.get(self, 0):
            return run(self, name, *params)
        moment, _ = switch.begin()
        done = run(self, name, *params)
        switch.kill_at(moment, "after")
        return done

    SqliteSession.run = watched


def _watch_postgres(switch: KillSwitch) -> None:
    fetch, transaction = PostgresSession.fetch, PostgresSession.transaction

    async def watched(self: PostgresSession, text: str, *params: Any) -> list[Row]:
        if self.inside or not writes(text):
            return await fetch(self, text, *params)
        moment, _ = switch.begin()
        rows = await fetch(self, text, *params)
        switch.kill_at(moment, "after")
        return rows

    @asynccontextmanager
    async def whole(self: PostgresSession, how: str = "begin_write") -> AsyncGenerator[None]:
        if self.inside:
            yield
            return
        moment = ""
        async with transaction(self, how):
            yield
            moment, _ = switch.begin()
        switch.kill_at(moment, "after")

    PostgresSession.fetch = watched
    PostgresSession.transaction = whole  # pyright: ignore[reportAttributeAccessIssue]


if __name__ == "__main__":
    watch(Path(sys.argv.pop(1)))
    main()
