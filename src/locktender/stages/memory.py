"""How much of the memory this process may use is in use.

In a container the machine's memory says nothing: the kernel kills at the limit
of the control group. So the group's limit counts where there is one, its own or
that of any group above it, whichever is nearest to being reached. Pages of
files that nobody has touched for a while are not counted: the kernel drops them
before it kills anybody (Docker and Kubernetes count alike).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

READ_EVERY_US = 250_000
"""A reading is kept this long: it costs a few system calls."""


class _Version(NamedTuple):
    """What one version of control groups calls things."""

    mount: str
    limit: str
    used: str
    inactive: str


_V2 = _Version("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
_V1 = _Version(
    "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
)


class MemoryGauge:
    """Reads the share in use, 0 to 1, at most every quarter of a second. Never raises."""

    def __init__(
        self, root: Path = Path("/"), machine: Callable[[], tuple[int, int]] | None = None
    ) -> None:
        """`machine` gives the bytes in use and in all, where no group bounds them."""
        self._root = root
        self._machine = machine or _machine
        self._read_at: int | None = None
        self._share = 0.0

    def share(self, now: int) -> float:
        """The share in use at `now` (microseconds of any clock that does not go back)."""
        if self._read_at is None or now - self._read_at >= READ_EVERY_US:
            self._read_at = now
            self._share = self.read()
        return self._share

    def read(self) -> float:
        used, total = self._machine()
        shares = list(self._groups(total))
        return min(1.0, max(shares, default=used / total if total else 0.0))

    def _groups(self, total: int) -> Iterator[float]:
        """The share in use, of this process's group and of each above it that has a limit."""
        for version, path in self._own():
            mount = self._root / version.mount
            group = mount / path.lstrip("/")
            # Inside a container the path may be the host's, and the mount shows only our own group.
            here = group if group.is_dir() else mount
            for folder in (here, *here.parents):
                if not folder.is_relative_to(mount):
                    break
                share = _share(folder, version, total)
                if share is not None:
                    yield share

    def _own(self) -> Iterator[tuple[_Version, str]]:
        for line in _text(self._root / "proc/self/cgroup").splitlines():
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if "memory" in controllers.split(","):
                yield _V1, path
            elif number == "0" and not controllers:
                yield _V2, path


def _share(folder: Path, version: _Version, total: int) -> float | None:
    limit = _text(folder / version.limit)
    # A limit above the machine's memory bounds nothing (version 1 writes "none" that way).
    if not limit.isdecimal() or not 0 < int(limit) <= total:
        return None
    used = _text(folder / version.used)
    if not used.isdecimal():
        return None
    droppable = 0
    for line in _text(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == version.inactive and value.isdecimal():
            droppable = int(value)
    return max(0, int(used) - droppable) / int(limit)


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _machine() -> tuple[int, int]:
    memory = psutil.virtual_memory()
    return memory.total - memory.available, memory.total
