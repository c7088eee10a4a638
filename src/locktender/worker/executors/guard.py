"""The guard: one small process per worker that kills the worker's children when the worker is gone.

A killed worker can kill nothing, and the kernel kills only its direct children: what their bodies
started (a compiler, ffmpeg) would go on without a lease. A child's own watchdog cannot run while a
body holds the interpreter's lock. The guard knows the process group of every child and reads the
deadline they share. It kills the groups when the deadline has passed or when its pipe from the
worker closes, which the worker's death does. Children also end by themselves (`child`). A guard that
was killed is replaced when the next child starts.

The worker writes `+group mark` when a child has started, and `-group` before the child is reaped:
a number is forgotten before the kernel can use it again.

A process in a session of its own is found by its parents while these live. Where a child was killed
by the kernel (out of memory) or with its worker, it is found by a mark in its environment, which all
that a child starts inherits. Only a process that was started with an empty environment has none.
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

POLL_SECONDS = 0.2
MAX_ROUNDS = 100
"""How often processes that were just started are searched for."""
SETTLE_SECONDS = 0.01
MARK = "__LOCKTENDER_CHILD"
"""No setting: those begin with LOCKTENDER_."""
_BOOTTIME: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class ChildGuard:
    """The guard, as the worker sees it."""

    def __init__(self, deadline_fd: int) -> None:
        self._deadline_fd = deadline_fd
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def watch(self, group: int, mark: str, others: Mapping[int, str]) -> None:
        """Watch `group`; a new guard gets the `others` too: group → mark."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = self._start()
            for each, its_mark in others.items():
                self._send(f"+{each} {its_mark}\n")
        self._send(f"+{group} {mark}\n")

    def forget(self, group: int) -> None:
        self._send(f"-{group}\n")

    def close(self) -> None:
        """It ends when its pipe closes."""
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

    def _send(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            try:
                self._process.stdin.write(line.encode())
            except OSError:
                return  # it is gone or stuck: children also end by themselves


def main(deadline_fd: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with its pipe, and only then
    deadline = mmap.mmap(deadline_fd, mmap.PAGESIZE, prot=mmap.PROT_READ)
    groups: dict[int, str] = {}
    rest = b""
    while True:
        if select.select([0], [], [], POLL_SECONDS)[0]:
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

    Those are found by their parents, so all are stopped first: what is stopped starts and reaps nothing,
    and the list is complete when a search finds nothing new. (Where a child has died before, its
    descendants have other parents already: `end_marked` finds them. Other systems than Linux keep no such list.)
    """
    _signal(os.killpg, group, signal.SIGSTOP)
    found: set[int] = set()
    for _ in range(MAX_ROUNDS):
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
    for _ in range(MAX_ROUNDS):
        found = False
        for pid in _all_pids():
            found = _end_if_marked(pid, wanted) or found
        if not found:
            return
        time.sleep(SETTLE_SECONDS)  # what was killed takes a moment to be gone, or has just forked


def _end_if_marked(pid: int, wanted: list[bytes]) -> bool:
    fd = -1
    try:
        # The descriptor first: what is read then is of the process it names, or the signal finds none.
        fd = os.pidfd_open(pid)
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            environment = file.read()
        if not any(mark in environment for mark in wanted):
            return False
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    except (OSError, AttributeError):
        return False  # it is gone, another user's, or the system has no such descriptors
    else:
        return True
    finally:
        if fd >= 0:
            os.close(fd)


def _all_pids() -> list[int]:
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
