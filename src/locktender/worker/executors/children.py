"""One child process, as the worker sees it: a socket to it, and its certain end.

The end of a child is noticed by its pidfd, not by the socket: a process that the
body forked may hold the socket open long after the child itself is gone. When it
has ended, the group is killed *before* the child is reaped: as long as it is a
zombie its number cannot be given to another group. Where there is no pidfd (macOS) a
timer looks whether it is one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
import psutil

from locktender.base.config import FOR_BODIES
from locktender.worker.executors.attempts import RunningAttempt
from locktender.worker.executors.child_protocol import (
    READY,
    Frames,
    Hello,
    Report,
    decode_report,
    frame,
)
from locktender.worker.executors.guard import ChildGuard, end_tree, marked_environment, new_mark
from locktender.worker.executors.protocol import Outcome

CHILD_START_SECONDS = 60.0
"""How long a child may take to import what it needs before it is killed."""
CLOSED_SOCKET_SECONDS = 0.5
"""How long a child that has closed its socket may take to end by itself."""
NO_PIDFD_SECONDS = 0.05
"""Between two looks at a child where the system has no pidfd."""
UNREADABLE = (
    "what it sent makes no sense (does the step write on descriptors that are not its own?)"
)


class Child:
    """Made on the loop's thread, and only there: the kernel kills a child when the *thread* that
    started it ends, so a thread of a pool must not."""

    def __init__(
        self,
        hello: Hello,
        deadline_fd: int,
        keep_fds: Sequence[int],
        guard: ChildGuard,
        on_report: Callable[[Child, Report], None],
        on_end: Callable[[Child, int], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._guard = guard
        self._on_report = on_report
        self._on_end = on_end
        self._frames = Frames()
        self._unsent = bytearray()
        self._alive = True
        self.running: RunningAttempt | None = None
        self.outcome: Outcome | None = None
        """How its last body ended, delivered when the child is gone: something of that body still runs in it."""
        self.ready: bool = False
        self.doomed: bool = False
        """Killed, or broken: what it still sends is ignored."""
        self.fault: str = ""
        """What it was killed for, if not by a stop."""
        self.mark: str = new_mark()
        """In the environment of everything it starts, and of nothing else."""
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._socket.setblocking(False)
            try:
                self._process = subprocess.Popen(  # noqa: S603 — our own module, our own interpreter
                    command(theirs.fileno(), deadline_fd),
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), deadline_fd, *keep_fds),
                    start_new_session=True,
                    env={**marked_environment(self.mark), **FOR_BODIES},
                )
            except BaseException:
                self._socket.close()
                raise
        self.pid: int = self._process.pid
        self._pidfd = _pidfd(self.pid)
        self._loop.add_reader(self._socket, self._read)
        self._look: asyncio.TimerHandle | None = None
        if self._pidfd is not None:
            self._loop.add_reader(self._pidfd, self._ended)
        else:
            self._look_soon()
        slow = f"it was not ready after {CHILD_START_SECONDS:.0f} s (what do its modules do when imported?)"
        self._boot = self._loop.call_later(CHILD_START_SECONDS, self.kill, slow)
        self.send(frame(hello))

    def send(self, data: bytes) -> None:
        if self._unsent:
            self._unsent += data
            return
        try:
            sent = self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self._socket_closed()
            return
        if sent < len(data):
            self._unsent += data[sent:]
            self._loop.add_writer(self._socket, self._flush)

    def kill(self, fault: str = "") -> None:
        """End the child and everything it started, at once. `fault`: why, if not by a stop."""
        if self._alive:
            self.fault = self.fault or fault
            self.doomed = True
            end_tree(self.pid)

    def close_when_idle(self) -> None:
        """Let an idle child end by itself, so that its exit handlers run."""
        if self._alive:
            self.doomed = True
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)

    def _flush(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._loop.remove_writer(self._socket)
            self._socket_closed()
            return
        del self._unsent[:sent]
        if not self._unsent:
            self._loop.remove_writer(self._socket)

    def _read(self) -> None:
        try:
            data = self._socket.recv(1 << 18)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._socket)
            self._socket_closed()
            return
        try:
            reports = [decode_report(body) for body in self._frames.feed(data)]
        except (ValueError, msgspec.MsgspecError):  # a body wrote on our socket
            self.kill(UNREADABLE)
            return
        for report in reports:
            if report.token == READY:
                self.ready = True
                self._boot.cancel()
            if not self.doomed:
                self._on_report(self, report)

    def _socket_closed(self) -> None:
        """Mostly the child has just died, and how is known in a moment; if it still lives it can never be
        used again."""
        if self._alive and not self.doomed:
            self.doomed = True
            self._loop.call_later(
                CLOSED_SOCKET_SECONDS, self.kill, "it has closed its socket to the worker"
            )

    def _look_soon(self) -> None:
        self._look = self._loop.call_later(NO_PIDFD_SECONDS, self._look_at_process)

    def _look_at_process(self) -> None:
        if is_running(self.pid):
            self._look_soon()
        else:
            self._ended()

    def _ended(self) -> None:
        if not self._alive:
            return
        # What it sent before it died still counts: a body may end its process after its result was sent.
        self._drain()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._guard.forget(self.pid)
        returncode = self._process.wait()
        self._alive = False
        self._boot.cancel()
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        if self._look is not None:
            self._look.cancel()
        self._socket.close()
        self._on_end(self, returncode)

    def _drain(self) -> None:
        while not self.doomed:
            try:
                data = self._socket.recv(1 << 18)
                reports = [decode_report(body) for body in self._frames.feed(data)]
            except (OSError, ValueError, msgspec.MsgspecError):
                return
            if not data:
                return
            for report in reports:
                self._on_report(self, report)


def command(line_fd: int, deadline_fd: int) -> list[str]:
    # -P: a module of the user's directory must not stand in for one of ours before sys.path is set.
    flags = [
        "-P",
        *("-O" for _ in range(sys.flags.optimize)),
        *(f"-W{each}" for each in sys.warnoptions),
    ]
    module = "locktender.worker.executors.child"
    return [sys.executable, *flags, "-m", module, str(line_fd), str(deadline_fd), str(os.getpid())]


def is_running(pid: int) -> bool:
    """False for a zombie, which is left as it is."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False


def _pidfd(pid: int) -> int | None:
    """None where the system has none: then the child is looked at again and again."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
