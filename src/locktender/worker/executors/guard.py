"""The guard: one small process per worker that outlives it just long enough to clean up.

A worker that is killed can kill nothing, and the kernel kills only its direct
children for it: what their bodies started (a compiler, ffmpeg) would go on
without a lease. A child's own watchdog cannot run while a body holds the
interpreter's lock. The guard has neither problem. It knows the process group
of every child, reads the deadline they share, and kills the groups when the
deadline has passed or when its line to the worker ends, which is when the
worker does, however it dies.

It is the second net: children also end by themselves (`child`). A guard that
was killed is replaced when the next child starts.

The worker writes `+group mark` when a child has started, and `-group` before the
child is reaped, so that a number is forgotten before it can be used again.

A process in a session of its own is found by its parents, while these live. Where
a child was killed by another hand (out of memory) or with its worker, nobody is
left to be found by: so every child has a mark in its environment, which whatever
it starts inherits, and which the kernel keeps readable however the process changes
its name or its parents. Only what was started with an environment made from nothing
has none.
Only the standard library is imported here: it starts with `-I -S`.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

LOOK_SECONDS = 0.2
ROUNDS = 100
"""How often `end_tree` looks for processes that were just started."""
SETTLE_SECONDS = 0.01
MARK = "__LOCKTENDER_CHILD"
"""No setting: those begin with LOCKTENDER_."""
_BOOTTIME: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class ChildGuard:
    """The worker's hold on its guard."""

    def __init__(self, deadline_fd: int) -> None:
        self._deadline_fd = deadline_fd
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def watch(self, group: int, mark: str, others: Mapping[int, str]) -> None:
        """Take `group` in; a new guard must also hear of the `others`: group → mark."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = self._start()
            for each, its_mark in others.items():
                self._say(f"+{each} {its_mark}\n")
        self._say(f"+{group} {mark}\n")

    def forget(self, group: int) -> None:
        self._say(f"-{group}\n")

    def close(self) -> None:
        """Let it go: it ends with its line."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            try:
                process.wait(1.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(  # noqa: S603 — this very file, with our own interpreter
            [sys.executable, "-I", "-S", __file__, str(self._deadline_fd)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=(self._deadline_fd,),
            bufsize=0,
            start_new_session=True,
        )
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
        return process

    def _say(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            try:
                self._process.stdin.write(line.encode())
            except OSError:
                return  # it is gone or stuck: the children's own nets hold


def main(deadline_fd: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with its line, and only then
    deadline = mmap.mmap(deadline_fd, mmap.PAGESIZE, prot=mmap.PROT_READ)
    groups: dict[int, str] = {}
    rest = b""
    while True:
        if select.select([0], [], [], LOOK_SECONDS)[0]:
            data = os.read(0, 65_536)
            if not data:
                kill(groups)
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                group, _, mark = line[1:].decode().partition(" ")
                if line.startswith(b"+"):
                    groups[int(group)] = mark
                else:
                    groups.pop(int(group), None)
        (instant,) = struct.unpack_from("<q", deadline, 0)
        if 0 < instant <= time.clock_gettime_ns(_BOOTTIME) // 1000:
            kill(groups)


def kill(groups: dict[int, str]) -> None:
    marks = list(groups.values())
    for group in groups:
        end_tree(group)
    groups.clear()
    end_marked(marks)


def end_tree(group: int) -> None:
    """Kill a child with its group, and what its bodies have put into sessions of their own.

    Those are found by their parents, so all are stopped first: what is stopped starts nothing and reaps
    nobody, and the list is complete when a look finds nobody new. (Where a child has died before, its
    descendants have other parents already: `end_marked` finds them. Other systems than Linux keep no such list.)
    """
    _signal(os.killpg, group, signal.SIGSTOP)
    found: set[int] = set()
    for _ in range(ROUNDS):
        new = descendants(group) - found
        if not new:
            break
        found |= new
        for pid in new:
            _signal(os.kill, pid, signal.SIGSTOP)
    for pid in found:
        _signal(os.kill, pid, signal.SIGKILL)
    _signal(os.killpg, group, signal.SIGKILL)


def new_mark() -> str:
    return os.urandom(12).hex()


def marked_environment(mark: str) -> dict[str, str]:
    """Ours with the mark; those of the children we are within ourselves stay in it."""
    return {**os.environ, MARK: f"{os.environ.get(MARK, '')}/{mark}"}


def end_marked(marks: list[str]) -> None:
    """Kill every process that a child with one of these marks has started. Returns when they are gone."""
    wanted = [f"/{mark}".encode() for mark in marks]
    for _ in range(ROUNDS):
        found = False
        for pid in _everybody():
            found = _end_if_marked(pid, wanted) or found
        if not found:
            return
        time.sleep(SETTLE_SECONDS)  # what was killed takes a moment to be gone, or has just forked


def _end_if_marked(pid: int, wanted: list[bytes]) -> bool:
    fd = -1
    try:
        # The descriptor first: what is read then is of the process it names, or the signal finds nobody.
        fd = os.pidfd_open(pid)
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            environment = file.read()
        if not any(mark in environment for mark in wanted):
            return False
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    except OSError:
        return False  # it is gone, or somebody else's
    else:
        return True
    finally:
        if fd >= 0:
            os.close(fd)


def _everybody() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208
    except OSError:
        return []  # not Linux


def descendants(pid: int) -> set[int]:
    found: set[int] = set()
    unseen = [pid]
    while unseen:
        children = set(_children(unseen.pop())) - found
        found |= children
        unseen += children
    return found


def _children(pid: int) -> list[int]:
    """A child belongs to the thread that started it."""
    several: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 — pathlib is slow to import
    except OSError:
        return several  # it has ended meanwhile
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children") as file:  # noqa: PTH123
                several += map(int, file.read().split())
        except OSError:
            continue
    return several


def _signal(send: Callable[[int, int], None], target: int, number: int) -> None:
    try:
        send(target, number)
    except (ProcessLookupError, PermissionError):
        return


if __name__ == "__main__":
    main(int(sys.argv[1]))
