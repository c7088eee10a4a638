"""After each body a child process is as it was before: the next body finds nothing of the last.

Timers, signal handlers, the working directory and the environment are put back. Processes that the
body left are killed: the child adopts what its descendants orphan, and kills every child of its own
that was not there before. What a module starts while it is imported was there before and stays; so
does the resource tracker of `multiprocessing`. A thread that the body left cannot be ended: then the
child is not used again. Daemon threads are mostly a library's own and are left alone.

This costs a task some 40 µs; only what has changed costs more.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

_PR_SET_CHILD_SUBREAPER = 36
_LISTS_CHILDREN = sys.platform == "linux" and Path("/proc/self/task").exists()
_MAX_ROUNDS = 1_000
"""What is killed may leave children of its own, which we adopt: they are killed in the next round."""


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):  # Linux
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def running() -> AbstractSet[int]:
    """The processes this one is the parent of, zombies included."""
    if not _LISTS_CHILDREN:
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


def kill_new(before: AbstractSet[int]) -> None:
    """Kills child processes that are not among `before`. Returns when they are gone."""
    for _ in range(_MAX_ROUNDS):
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


_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_FIXED = {signal.SIGKILL, signal.SIGSTOP}
_NUMBERS = tuple(sorted(int(each) for each in signal.valid_signals() - _FIXED))
# The one behind the library's own, which makes an enum of every answer: 60 of them would take 100 µs.
_handler: Callable[[int], Any] = sys.modules.get("_signal", signal).getsignal
# The mapping behind it, for the same reason: it decodes every name and value that is copied.
_variables: Mapping[bytes, bytes] = getattr(os.environ, "_data", os.environb)
SETTLE_SECONDS = 0.05
"""How long threads that a body leaves may take to end by themselves."""
_MAX_TRIES = 8
_OWN_THREADS = "locktender-"


class Before(NamedTuple):
    processes: AbstractSet[int]
    threads: AbstractSet[threading.Thread]
    handlers: list[Any]
    folder: str | None
    variables: dict[bytes, bytes]


def snapshot() -> Before:
    """The process as it is now; called in the main thread."""
    return Before(
        running(),
        frozenset(threading.enumerate()),
        [_handler(number) for number in _NUMBERS],
        _folder(),
        dict(_variables),
    )


def restore(before: Before) -> bool:
    """Puts it back; False: that failed, and nothing else should run in this process."""
    for _ in range(_MAX_TRIES):
        # A signal that is on its way finds the body's handler for the last time, and that may raise.
        with suppress(BaseException):
            for timer in _TIMERS:
                signal.setitimer(timer, 0)
            restored = _restore_handlers(before.handlers)
            break
    else:
        return False
    kill_new(before.processes)
    _restore_variables(before.variables)
    return restored and _restore_folder(before.folder) and not _left(before.threads)


def _restore_handlers(before: list[Any]) -> bool:
    found = [_handler(number) for number in _NUMBERS]
    if found == before:
        return True
    known = True
    for number, now, then in zip(_NUMBERS, found, before, strict=True):
        if now is then or now == then:
            continue
        # None: not Python's. It cannot be given back, but it will not be called for another body.
        signal.signal(number, signal.SIG_DFL if then is None else then)
        known = known and then is not None
    return known


def _restore_variables(before: dict[bytes, bytes]) -> None:
    if _variables == before:
        return
    for name in [name for name in _variables if name not in before]:
        del os.environb[name]
    for name, value in before.items():
        if _variables.get(name) != value:
            os.environb[name] = value


def _restore_folder(before: str | None) -> bool:
    if before is None or _folder() == before:
        return True
    try:
        os.chdir(before)
    except OSError:
        return False
    return True


def _folder() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109 — a text is compared, no path is made
    except OSError:  # it was removed
        return None


def _left(before: AbstractSet[threading.Thread]) -> bool:
    """Whether there is a thread that was not there before, no daemon and not ours."""
    left = _new(before)
    if not left:
        return False
    for thread in left:
        # One that waited for a process, or did the last piece of work, may be about to end.
        with suppress(Exception):  # not every thread can be waited for
            thread.join(SETTLE_SECONDS / len(left))
    return bool(_new(before))


def _new(before: AbstractSet[threading.Thread]) -> list[threading.Thread]:
    return [
        each
        for each in threading.enumerate()
        if each not in before and not each.daemon and not each.name.startswith(_OWN_THREADS)
    ]
