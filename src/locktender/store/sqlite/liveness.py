"""Liveness on one machine: each leader and worker holds a lock until it leaves or dies.

After a crash, a lease must pass before the owner counts as dead. On one machine
the operating system knows at once: each leader and worker keeps
`<file>-live/<owner>.lock` locked, and the lock is free as soon as the last
process that inherited it is dead. So

    locked      the process lives, also where it does not renew its lease
    free        dead, whatever the lease says
    no file     unknown: the lease decides

A lock is taken before the owner's first row is written and probed only for
owners that have a row, so a prober never meets an owner that is still coming up.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from urllib.parse import quote

from locktender.base.model import Proof
from locktender.store.sqlite.companions import beside, create_folder, open_file

_LONGEST_NAME = 200
_TRIES = 50
_MAX_EXAMINED = 10_000
"""Files at a time: the rest is for the next time."""


class Liveness:
    def __init__(self, database: Path) -> None:
        self._database = database
        self._folder = beside(database, "-live")
        self._held: dict[str, int] = {}
        self._guard = threading.Lock()

    def hold(self, owner: str) -> None:
        """Holds the owner's lock until `drop`, `close` or the death of this process and its children."""
        with self._guard:
            if owner in self._held:
                return
            create_folder(self._folder, self._database)
            if (fd := self._acquire(self._file(owner))) is not None:
                self._held[owner] = fd

    def descriptors(self) -> list[int]:
        return list(self._held.values())

    def fd(self, owner: str) -> int | None:
        """For children that do the owner's work: a process that inherits it keeps the owner alive."""
        return self._held.get(owner)

    def drop(self, owner: str) -> None:
        """The owner has left in order: no lock, no file."""
        with self._guard:
            fd = self._held.pop(owner, None)
            if fd is not None:
                self._file(owner).unlink(missing_ok=True)
                os.close(fd)

    def dead(self, owner: str) -> bool:
        """Whether the kernel has released the owner's lock."""
        return self.proof(owner) == "gone"

    def proof(self, owner: str) -> Proof:
        """What the owner's lock says."""
        if owner in self._held:
            return "held"
        try:
            fd = os.open(self._file(owner), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return "none"
        try:
            return "gone" if _try(fd) else "held"
        finally:
            os.close(fd)

    def forget(self, owner: str) -> None:
        """Removes the file of an owner declared lost, unless another process holds it after all."""
        if owner in self._held:
            self.drop(owner)
            return
        path = self._file(owner)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return
        try:
            if _try(fd):
                path.unlink(missing_ok=True)
        finally:
            os.close(fd)

    def remove_stale(self, known: Iterable[str]) -> int:
        """Removes free lock files of owners without a row (`known` have one); how many.

        A killed leader leaves its file behind. It is removed while its lock is held here: a process that opened it
        just before finds another file under the name, or none, and opens that (`_acquire`).
        """
        kept = {self._file(owner) for owner in (*known, *self._held)}
        gone = 0
        for path in islice(self._folder.glob("*.lock"), _MAX_EXAMINED):
            if path in kept:
                continue
            try:
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                if _try(fd) and _is(path, fd):
                    path.unlink(missing_ok=True)
                    gone += 1
            finally:
                os.close(fd)
        return gone

    def close(self) -> None:
        """Lets go of every lock. The files stay, free: others see at once that this one renews no more."""
        with self._guard:
            for fd in self._held.values():
                os.close(fd)
            self._held.clear()

    def _acquire(self, path: Path) -> int | None:
        for _ in range(_TRIES):
            fd = open_file(path, self._database)
            # Between open and lock a prober may have removed the file: no other process would see a lock on it.
            if _try(fd) and _is(path, fd):
                return fd
            os.close(fd)
        return None

    def _file(self, owner: str) -> Path:
        name = quote(owner, safe="")
        if len(name) > _LONGEST_NAME:
            name = hashlib.sha256(owner.encode()).hexdigest()
        return self._folder / f"{name}.lock"


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is(path: Path, fd: int) -> bool:
    try:
        named = path.stat()
    except OSError:
        return False
    ours = os.fstat(fd)
    return (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino)
