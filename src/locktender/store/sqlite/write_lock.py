"""A fair write lock between the processes that write one file.

SQLite's busy handler sleeps and tries again, so a process that commits without
pause wins nearly every time and another may wait for seconds. Here every
writer passes two locked files:

    take Q, take W, release Q, transaction, release W

Q is the head of the line, W the write itself. A process that writes without
pause finds Q held by the process that waits for W, and queues behind it. The
locks are the kernel's (`flock`): a process that dies holds none. Waiting is by
short sleeps, because a blocking `flock` has no timeout: if a process is stopped
in the middle of a write, the others must get an error. It names the holder, which the kernel knows
(`/proc/locks`): nothing is written down for it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from pathlib import Path
from typing import NamedTuple

from locktender.base.clock import Clock
from locktender.base.model import BlockingSession, HeldUp
from locktender.store.sqlite.companions import beside, open_file
from locktender.store.sqlite.faults import busy

_FIRST_SLEEP_SECONDS = 0.000_1
_LONGEST_SLEEP_SECONDS = 0.000_5


class LockHolder(NamedTuple):
    """The process that holds the write lock."""

    pid: int
    name: str
    stopped: bool


class WriteLock:
    def __init__(self, path: Path, clock: Clock, timeout_us: int) -> None:
        self._path = path
        self._clock = clock
        self._timeout_us = timeout_us
        self._head = _lock_file(path, "-q.lock")
        try:
            self._write = _lock_file(path, "-w.lock")
        except BaseException:
            os.close(self._head)
            raise

    def enter(self) -> None:
        """Returns when it is this process's turn to write; `StoreBusy` after the timeout."""
        self._acquire(self._head)
        try:
            self._acquire(self._write)
        finally:
            # Only now: to let Q go before W is ours would let a hot writer pass us for ever.
            fcntl.flock(self._head, fcntl.LOCK_UN)

    def leave(self) -> None:
        fcntl.flock(self._write, fcntl.LOCK_UN)

    def descriptors(self) -> tuple[int, int]:
        return self._head, self._write

    def close(self) -> None:
        os.close(self._head)
        os.close(self._write)

    def _acquire(self, lock: int) -> None:
        if _try(lock):
            return
        started = self._clock.monotonic()
        sleep = _FIRST_SLEEP_SECONDS
        while not _try(lock):
            if self._clock.monotonic() - started > self._timeout_us:
                waited_us = self._clock.monotonic() - started
                raise busy(self._path, _text(holder(self._write)), waited_us)
            time.sleep(sleep)
            sleep = min(sleep * 1.5, _LONGEST_SLEEP_SECONDS)


def holder(lock: int | Path) -> LockHolder | None:
    """Who holds a locked file now; None: no process, or the system does not say (not Linux, a container's)."""
    try:
        file = os.fstat(lock) if isinstance(lock, int) else lock.stat()
        wanted = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
        for line in Path("/proc/locks").read_text().splitlines():
            # 1: FLOCK  ADVISORY  WRITE 4711 fe:00:2147878 0 EOF; a waiter has -> behind its number
            _, kind, _, how, pid, place, *_ = (*line.split(), "", "", "", "", "")
            if (kind, how, place) == ("FLOCK", "WRITE", wanted) and int(pid) > 0:
                process = Path("/proc") / pid
                state = (process / "stat").read_text().rpartition(")")[2].split()[0]
                name = (process / "comm").read_text().strip()
                return LockHolder(int(pid), name, state in "Tt")
    except (OSError, ValueError, IndexError):
        pass
    return None


async def held_up(path: Path) -> HeldUp:
    """A process that is stopped inside its write: until it goes on or ends nothing can be written."""
    # In a thread: the list of locks takes the system milliseconds, in which a leader would decide nothing.
    found = await asyncio.to_thread(holder, beside(path, "-w.lock"))
    if found is None or not found.stopped:
        return HeldUp()
    return HeldUp(0, (BlockingSession("write", found.pid, found.name, path.name, None),))


def _text(found: LockHolder | None) -> str:
    if found is None:
        return "another process"
    stopped = ", which is stopped," if found.stopped else ""
    return f"process {found.pid} ({found.name}){stopped}"


def _try(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_file(path: Path, suffix: str) -> int:
    return open_file(beside(path, suffix), path)
