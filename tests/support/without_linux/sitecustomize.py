"""Names that only Linux has are removed before anything else is imported: as on macOS."""

from __future__ import annotations

import fcntl
import os
import select
import selectors
import signal
import socket
import time

PREFIXES = {
    os: ("eventfd", "EFD_", "pidfd_", "memfd_", "MFD_", "sched_", "SCHED_", "pipe2", "splice", "O_TMPFILE",
         "O_PATH", "O_DIRECT_", "getrandom", "posix_fadvise", "POSIX_FADV", "copy_file_range", "fdatasync",
         "P_PIDFD", "setns", "unshare", "CLONE_", "O_RSYNC", "O_LARGEFILE"),
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
