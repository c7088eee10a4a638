"""Stopping a process (SIGSTOP) at a moment that matters."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import time
from pathlib import Path

from tests.support.cluster import Cluster, ClusterNode

from locktender.testing.postgres_server import connected, run

TRIES_SECONDS = 90.0
_STATE = (
    "SELECT a.state FROM pg_stat_activity a, locktender.leader l"
    " WHERE a.pid = l.backend AND a.backend_start = l.backend_since"
)
INSIDE = "idle in transaction"


def stop_outside_of_a_write(node: ClusterNode, cluster: Cluster) -> None:
    """On SQLite nobody could write while it stands inside of a write, and nothing could help."""
    if "://" not in cluster.url:
        store = Path(cluster.url)
        locks = [store.with_name(store.name + suffix) for suffix in ("-q.lock", "-w.lock")]
        while True:
            os.kill(node.pid, signal.SIGSTOP)
            while not _stands(
                node.pid
            ):  # the signal is only on its way: a thread may still take a lock
                time.sleep(0.001)
            if all(_free(lock) for lock in locks):
                break
            os.kill(node.pid, signal.SIGCONT)
    node.pause()


def _stands(pid: int) -> bool:
    """Whether none of its threads runs any more."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    states = [(thread / "stat").read_text().rpartition(")")[2].split()[0] for thread in threads]
    return set(states) <= {"T", "t"}


def _free(lock: Path) -> bool:
    def taken() -> bool:
        with lock.open("r+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    # Others take it for a moment now and then: only who stands still has it every time.
    return any(taken() for _ in range(200))


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
