"""Processes on one machine wake each other: a byte to every other store that has the file open.

A store that waits for others binds a datagram socket in `<file>-wake/`. After a commit
its process sends one byte to all of them. A byte only says *look*: rows are the
truth, and a process that got none finds out by `PRAGMA data_version`, polled
while it waits. So every failure here (a full buffer, a path too long for a
socket, a dead neighbour) costs at most one poll.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path

from locktender.base.clock import MILLISECOND, Clock
from locktender.store.sqlite.companions import beside, create_folder

LIST_EVERY_US = 100 * MILLISECOND
_LONGEST_ADDRESS = 100
_BYTES_AT_ONCE = 4_096


class Wakeup:
    def __init__(self, database: Path, clock: Clock) -> None:
        self._folder = folder = beside(database, "-wake")
        self._clock = clock
        self._name = f"{os.getpid()}-{os.urandom(6).hex()}.sock"
        self._others: list[tuple[str, str]] = []
        """(name, address) of those who wait."""
        self._listed_at: int | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self.mark: int = 0
        """Rises with every sign of a foreign commit."""
        create_folder(folder, database)
        self._dir = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._socket: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._bound = False

    def listen(self) -> bool:
        """From here on others tell us. True: only from here on, and not of what they did before.

        A store that never waits gets no bytes: the one of the lease thread only writes.
        """
        if self._bound or self._socket is None:
            return False
        self._bound = True
        # Where the platform has no address short enough polling does it all.
        with contextlib.suppress(OSError):
            self._socket.bind(self._address(self._name))
        return True

    def _address(self, name: str) -> str:
        # A socket's path may have 108 bytes; through the open folder it is always short.
        direct = str(self._folder / name)
        if len(direct.encode()) <= _LONGEST_ADDRESS:
            return direct
        return f"/proc/self/fd/{self._dir}/{name}"

    def send(self) -> None:
        """Wakes the others. Called by the writer's thread after a commit."""
        if self._socket is None:
            return
        now = self._clock.monotonic()
        if self._listed_at is None or not 0 <= now - self._listed_at < LIST_EVERY_US:
            self._listed_at = now
            self._others = self._list()
        for other in tuple(self._others):
            name, address = other
            try:
                self._socket.sendto(b"!", address)
            except BlockingIOError:
                # Its buffer is full of bytes that say the same.
                continue
            except (ConnectionRefusedError, FileNotFoundError):
                self._others.remove(other)
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=self._dir)
            except OSError:
                continue

    def _list(self) -> list[tuple[str, str]]:
        try:
            names = os.listdir(self._dir)  # noqa: PTH208
        except OSError:
            return []
        return [
            (name, self._address(name))
            for name in names
            if name.endswith(".sock") and name != self._name
        ]

    def notice(self) -> None:
        """Another process has committed: wakes all waiters."""
        self.mark += 1
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    def drain(self) -> None:
        """Takes in the bytes that have arrived."""
        if self._socket is None:
            return
        arrived = False
        with contextlib.suppress(BlockingIOError):
            for _ in range(_BYTES_AT_ONCE):
                self._socket.recv(1)
                arrived = True
        if arrived:
            self.notice()

    async def wait(self, timeout_seconds: float) -> None:
        """Returns at the next sign, or after `timeout_seconds`."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()
        if not self._waiting and self._socket is not None:
            loop.add_reader(self._socket, self.drain)
        self._waiting.add(waiting)
        try:
            await asyncio.wait([waiting], timeout=timeout_seconds)
        finally:
            self._waiting.discard(waiting)
            if not self._waiting and self._socket is not None:  # None: closed meanwhile
                loop.remove_reader(self._socket)

    def descriptors(self) -> list[int]:
        return [self._dir] if self._socket is None else [self._dir, self._socket.fileno()]

    def close(self) -> None:
        """On the loop of those who wait: they are woken."""
        if self._socket is not None:
            if self._waiting:
                # Else the loop would watch a descriptor that soon belongs to another file.
                asyncio.get_running_loop().remove_reader(self._socket)
                self.notice()
            self._socket.close()
            self._socket = None
            with contextlib.suppress(OSError):
                os.unlink(self._name, dir_fd=self._dir)
        os.close(self._dir)
