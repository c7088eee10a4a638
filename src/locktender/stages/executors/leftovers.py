"""What a body leaves running in a child process, and its end.

A body may return and leave a process behind: a server it started, a daemon that
forked itself away. The child stays warm for the next body, so its group is not
killed, and what was left would go on without a permit and without a slot. So a
child takes in whatever its descendants orphan, and before it tells the end of
a body it kills every process that was not there when the body began.

Processes a module starts while it is imported were there before: they stay. So does
the tracker of `multiprocessing`, which runs nothing and frees what bodies forget.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS = 1_000
"""What is killed may leave children of its own, which come to us: looked at again, this often at most."""


def take_in_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def running() -> AbstractSet[int]:
    """The processes this one is the parent of, zombies included."""
    if sys.platform != "linux":
        return frozenset()
    try:
        # Without any child this fails at once: the usual case costs one system call.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return frozenset()
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread has ended, or the kernel keeps no such list
            found.update(map(int, (task / "children").read_text().split()))
    return found


def end(before: AbstractSet[int]) -> None:
    """Kill what runs now and was not among `before`. Returns when it is gone."""
    for _ in range(_ROUNDS):
        left = running() - before - _tracker()
        if not left:
            return
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _tracker() -> AbstractSet[int]:
    module = sys.modules.get("multiprocessing.resource_tracker")
    pid = getattr(getattr(module, "_resource_tracker", None), "_pid", None)
    return frozenset() if pid is None else frozenset({pid})
