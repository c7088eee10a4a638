"""What a worker and its child processes send each other: a length, then MessagePack.

To the child: one `Hello`, then one `Work` at a time. From the child: one
`Report` when it is ready (token 0), then one per work; before that any number
of notes on what the body logged and how far it is. No pickle: a child can
say nothing that runs code in the worker.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from locktender.base.logs import AttemptLog
from locktender.base.model import Failure, Progress
from locktender.stages.executors.sources import Source

MAX_FRAME: Final = 256 * 1024 * 1024
READY: Final = 0
_LENGTH = struct.Struct("<I")


class Hello(msgspec.Struct, frozen=True, array_like=True):
    sys_path: list[str]
    steps: str
    """`module:attribute` (dotted) of the mapping from names to steps, filled by importing their source."""
    max_result: int | None
    sources: list[Source]
    """What to import before it says that it is ready."""
    log_level: int = 0
    """Of the worker's root logger, so that a body's lines pass or do not as they would there."""
    step_level: int = 0
    """Of what `current().log` writes to; the worker's own loggers may have another."""
    prints: bool = False
    """The worker prints what bodies log: so does the child."""
    own_level: int = 0
    """From where on the worker prints its own lines, and what `current().log` writes; 0: it does not."""


class Work(msgspec.Struct, frozen=True, array_like=True):
    task: int
    token: int
    run_id: str
    attempt: int
    step: str
    source: Source
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
    if size > MAX_FRAME:
        raise ValueError(f"a frame of {size:,} bytes: the stream is broken")
    return size
