"""What a worker and its child processes share: messages over a socket, and a deadline in memory.

A message is a length, then MessagePack. To the child: one `Hello`, then one `Work` at a time. From
the child: one `Report` when it is ready (token 0), then one per work; before that any number of
notes with log lines and progress. No pickle: a child can send nothing that runs code in the worker.

The end of a body is sent by the thread that ran it. Notes are sent a few times a second by a thread
that starts with the first of them: a body never waits for the socket.
"""

from __future__ import annotations

import logging
import mmap
import os
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, Literal

import msgspec

from locktender.base.model import AttemptLog, Failure, Progress
from locktender.worker.executors.protocol import Attempt
from locktender.worker.executors.sources import CodeSource

log: logging.Logger = logging.getLogger(__name__)

MAX_FRAME_BYTES: Final = 256 * 1024 * 1024
READY: Final = 0
_LENGTH = struct.Struct("<I")
_INSTANT = struct.Struct("<q")


class Hello(msgspec.Struct, frozen=True, array_like=True):
    sys_path: list[str]
    steps: str
    """`module:attribute` (dotted) of the mapping from names to steps, filled by importing their source."""
    max_result: int | None
    sources: list[CodeSource]
    """What to import before it says that it is ready."""
    log_level: int = 0
    """Of the worker's root logger, so that a body's lines pass or do not as they would there."""
    step_level: int = 0
    """Of what `current().log` writes to; the worker's own loggers may have another."""
    prints: bool = False
    """The worker prints what bodies log: so does the child."""
    own_level: int = 0
    """From where on the worker prints its own lines, and what `current().log` writes; 0: it does not."""
    open_files: int | None = None
    """The bound that the worker was started with; None: the child has it already."""


class Work(msgspec.Struct, frozen=True, array_like=True):
    task: int
    token: int
    run_id: str
    attempt: int
    step: str
    source: CodeSource
    call: bytes
    work_root: str | None
    timeout_us: int | None
    flow: str = ""
    worker: str = ""
    trace: str | None = None


class Report(msgspec.Struct, frozen=True, array_like=True):
    token: int
    state: Literal["completed", "failed", "timed_out", "note"] = "completed"
    output: bytes | None = None
    failure: Failure | None = None
    log: AttemptLog | None = None
    """Lines since the last note."""
    progress: Progress | None = None
    spent: bool = False
    """The child must not be used again: its body left something that cannot be ended without it."""


_encode = msgspec.msgpack.Encoder().encode
decode_hello: Callable[[bytes], Hello] = msgspec.msgpack.Decoder(Hello).decode
decode_work: Callable[[bytes], Work] = msgspec.msgpack.Decoder(Work).decode
decode_report: Callable[[bytes], Report] = msgspec.msgpack.Decoder(Report).decode


def frame(message: Hello | Work | Report) -> bytes:
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Cuts a stream of bytes into frames again."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that `data` completes. Raises ValueError where the stream makes no sense."""
        # Nearly always one whole frame arrives at once: no copy through the buffer then.
        if not self._rest and len(data) >= 4 and len(data) == 4 + _size(data):
            return [data[4:]]
        self._rest += data
        found: list[bytes] = []
        start = 0
        while len(self._rest) - start >= 4:
            end = start + 4 + _size(self._rest, start)
            if len(self._rest) < end:
                break
            found.append(bytes(self._rest[start + 4 : end]))
            start = end
        del self._rest[:start]
        return found


def _size(data: bytes | bytearray, start: int = 0) -> int:
    (size,) = _LENGTH.unpack_from(data, start)
    if size > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {size:,} bytes: the stream is broken")
    return size


NOTE_INTERVAL_SECONDS = 0.2
"""Between two notes."""


class ChildReporter:
    def __init__(self, line: socket.socket) -> None:
        self._socket = line
        self._pid = os.getpid()
        self.spent: bool = False
        """What the last body left behind makes this process unfit for another: reported with its end."""
        self._lock = threading.Lock()
        # Not an event: a signal handler that logs may come into the middle of `put`, and only this
        # kind of queue is made for that.
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._woken = False
        self._thread: threading.Thread | None = None
        self._attempt: Attempt | None = None
        self._progress: Progress | None = None

    def send(self, report: Report) -> None:
        with self._lock:
            self._socket.sendall(frame(report))

    def begin(self, attempt: Attempt) -> None:
        with self._lock:
            self._attempt, self._progress = attempt, None

    def end(self, report: Report) -> None:
        """Send the body's end, with the lines that were not sent yet. Nothing of it is sent after that."""
        with self._lock:
            attempt, self._attempt = self._attempt, None
            if attempt is not None and attempt.lines is not None:
                report = msgspec.structs.replace(report, log=attempt.lines.take(last=True))
            if self.spent:
                report = msgspec.structs.replace(report, spent=True)
            self._socket.sendall(frame(report))

    def put(self, progress: Progress) -> None:
        attempt = self._attempt
        if attempt is not None and attempt.token == progress.token:
            self._progress = progress
            self.wake()

    def forget(self, token: int) -> None:
        """The worker forgets by itself, at the end."""

    def wake(self) -> None:
        # A process that the body forked has this object too, but must not write on the socket.
        if os.getpid() != self._pid:
            return
        if not self._woken:
            self._woken = True
            self._wakes.put(None)
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._send_notes_forever, name="locktender-notes", daemon=True
            )
            self._thread.start()

    def _send_notes_forever(self) -> None:
        while True:
            self._wakes.get()
            self._woken = False  # first: what comes from here on has a wake of its own
            try:
                self._send_note()
            except OSError:
                return  # the worker is gone: so are we, soon
            except Exception:
                log.exception("failed to send progress and log lines: internal error")
            time.sleep(NOTE_INTERVAL_SECONDS)

    def _send_note(self) -> None:
        with self._lock:
            attempt = self._attempt
            if attempt is None:
                return
            progress, self._progress = self._progress, None
            log = None if attempt.lines is None else attempt.lines.take()
            self._socket.sendall(frame(Report(attempt.token, "note", log=log, progress=progress)))


class SharedDeadline:
    """The instant by which a worker's children must be gone, in memory they share; 0: none yet.

    The worker moves it forward with each renewal of its lease. If it cannot (it is frozen, or the store
    is away), the children see the instant pass and end themselves. On the boot-time clock, which goes on
    while the machine sleeps. Eight aligned bytes are written at once: no reader sees half an instant.
    """

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
        """Again: nothing. A second signal closes what the first has closed; the number may be another's then."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            self._map.close()
            os.close(fd)


def _memory() -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("locktender-deadline")
    else:
        fd, path = tempfile.mkstemp(prefix="locktender-deadline-")
        os.unlink(path)  # noqa: PTH108 — the descriptor is all that is needed
    os.ftruncate(fd, mmap.PAGESIZE)
    return fd
