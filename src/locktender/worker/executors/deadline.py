"""The instant by which a worker's child processes must be gone, in memory they share.

The worker moves it forward each time its lease is renewed. Where it cannot
(it is paused, it is stuck, the store is gone) the children find the instant
passed and end themselves: no message has to reach them, and a renewal costs
one write of eight bytes for all of them. Measured on the boot-time clock,
which goes on while the machine sleeps.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile

_INSTANT = struct.Struct("<q")


class SharedDeadline:
    """0: none yet. Eight aligned bytes are written at once, so no reader sees half an instant."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd: int = _memory() if fd is None else fd
        self._map = mmap.mmap(self.fd, mmap.PAGESIZE)

    def extend(self, instant_us: int) -> None:
        _INSTANT.pack_into(self._map, 0, instant_us)

    def read(self) -> int:
        return _INSTANT.unpack_from(self._map, 0)[0]

    def passed(self, now_us: int) -> bool:
        return 0 < self.read() <= now_us

    def close(self) -> None:
        self._map.close()
        os.close(self.fd)


def _memory() -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("locktender-deadline")
    else:
        fd, path = tempfile.mkstemp(prefix="locktender-deadline-")
        os.unlink(path)  # noqa: PTH108 — the descriptor is all that is needed
    os.ftruncate(fd, mmap.PAGESIZE)
    return fd
