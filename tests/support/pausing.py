"""Pausing a process, but not inside a write to its SQLite file: then nobody else could write any more."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Protocol


class Pausable(Protocol):
    def pause(self) -> None: ...

    def resume(self) -> None: ...


def pause_between_writes(process: Pausable, store: Path) -> None:
    locks = [store.with_name(f"{store.name}-{each}.lock") for each in "qw"]
    while True:
        process.pause()
        if all(any(_had(lock) for _ in range(200)) for lock in locks):
            return
        process.resume()


def _had(lock: Path) -> bool:
    """Whether the lock could be had for a moment."""
    with lock.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
