"""What only Linux has is removed before anything else is imported: names, prctl and /proc. As on macOS."""

from __future__ import annotations

import builtins
import ctypes
import errno
import fcntl
import functools
import io
import os
import select
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

PREFIXES = {
    os: ("eventfd", "EFD_", "pidfd_", "memfd_", "MFD_", "sched_", "SCHED_", "pipe2", "splice", "O_TMPFILE",
         "O_PATH", "O_DIRECT_", "getrandom", "posix_fadvise", "POSIX_FADV", "copy_file_range", "fdatasync",
         "P_PIDFD", "waitid", "setns", "unshare", "CLONE_", "O_RSYNC", "O_LARGEFILE"),
    socket: ("SOCK_NONBLOCK", "SOCK_CLOEXEC", "SO_PEERCRED", "SO_PASSCRED", "MSG_CMSG_CLOEXEC", "MSG_NOSIGNAL",
             "MSG_ERRQUEUE", "AF_NETLINK", "AF_VSOCK", "TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "TCP_QUICKACK"),
    select: ("epoll",),
    signal: ("pidfd_", "signalfd", "SIGRTM", "SIGPWR", "SIGSTKFLT", "sigtimedwait", "sigwaitinfo"),
    time: ("CLOCK_BOOTTIME", "CLOCK_TAI"),
    fcntl: ("F_OFD_", "F_SETPIPE_SZ", "F_GETPIPE_SZ", "F_ADD_SEALS", "F_NOTIFY", "F_SETLEASE"),
}  # fmt: skip
for module, prefixes in PREFIXES.items():
    for name in [each for each in vars(module) if each.startswith(prefixes)]:
        delattr(module, name)
# It may have been imported before this file.
selectors.DefaultSelector = selectors.PollSelector


def without_proc(work: Callable[..., Any]) -> Callable[..., Any]:
    """`work`, for which there is no /proc."""

    @functools.wraps(work)
    def called(path: Any = ".", *more: Any, **named: Any) -> Any:
        if isinstance(path, str | bytes | os.PathLike):
            name = os.fsdecode(path)
            asked_by = sys._getframe(1).f_globals.get("__name__", "")
            # psutil was built for Linux: it answers as it would elsewhere.
            if (name == "/proc" or name.startswith("/proc/")) and not asked_by.startswith("psutil"):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return work(path, *more, **named)

    return called


for place, names in (
    (os, ("stat", "lstat", "listdir", "scandir", "open", "readlink")),
    (io, ("open",)),
):
    for name in names:
        setattr(place, name, without_proc(getattr(place, name)))
builtins.open = io.open


class LibraryWithoutLinux(ctypes.CDLL):
    def __getattr__(self, name: str) -> Any:
        if name == "prctl":
            raise AttributeError(name)
        return super().__getattr__(name)


ctypes.CDLL = LibraryWithoutLinux
