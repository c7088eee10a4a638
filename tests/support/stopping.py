"""Stopping a process (SIGSTOP) at a moment that matters."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import time
from pathlib import Path
from typing import Protocol

from tests.support.cluster import ClusterNode

from locktender.testing.postgres_server import connected, run

TRIES_SECONDS = 90.0
_STATE = (
    "SELECT a.state FROM pg_stat_activity a, locktender.leader l"
    " WHERE a.pid = l.backend AND a.backend_start = l.backend_since"
)
INSIDE = "idle in transaction"
_OPEN_TRANSACTIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND pid <> pg_backend_pid() AND xact_start IS NOT NULL"
)


class Pausable(Protocol):
    def pause(self) -> None: ...

    def resume(self) -> None: ...


def pause_outside_of_a_write(process: Pausable, url: str | Path) -> None:
    """Nobody could write while it stands inside of a write. On SQLite nothing could help; on PostgreSQL the next
    leader could, but not a test that ends its lease."""
    process.pause()
    while not _stands_outside(str(url)):
        process.resume()
        process.pause()


def _stands_outside(url: str) -> bool:
    if "://" not in url:
        return _has_no_lock(Path(url))

    async def has_no_transaction() -> bool:
        # Others have one for a moment now and then, too.
        async with connected(url) as conn:
            for _ in range(200):
                if not await conn.fetchval(_OPEN_TRANSACTIONS):
                    return True
        return False

    return run(has_no_transaction())


def _has_no_lock(store: Path) -> bool:
    locks = [store.with_name(f"{store.name}-{each}.lock") for each in "qw"]
    # Others take one for a moment now and then: only who stands still has it every time.
    return all(any(_free(lock) for _ in range(200)) for lock in locks)


def _free(lock: Path) -> bool:
    with lock.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def stop_inside_a_transaction(leader: ClusterNode, url: str) -> int:
    """Stops the leader between the statements of a commit; how many tries it took.

    Its connection is *idle in transaction*, and stays so, with the leader's row locked.
    """

    async def catch() -> int:
        end = time.monotonic() + TRIES_SECONDS
        tries = 0
        async with connected(url) as conn:
            while time.monotonic() < end:
                if await conn.fetchval(_STATE) != INSIDE:
                    continue
                os.kill(leader.pid, signal.SIGSTOP)
                tries += 1
                # What it had sent before is answered by now; if it still is inside, it stays there.
                await asyncio.sleep(0.02)
                if await conn.fetchval(_STATE) == INSIDE:
                    return tries
                os.kill(leader.pid, signal.SIGCONT)
        raise AssertionError(f"it was never caught inside a transaction in {tries} tries")

    tries = run(catch())
    leader.pause()
    return tries
