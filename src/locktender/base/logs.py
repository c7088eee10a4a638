"""What a body logged: lines, and the one row an attempt's lines are kept in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

MAX_LINES: Final = 1_000
MAX_BYTES: Final = 64 * 1024
MAX_LINE: Final = 4_000
"""Of one attempt: the newest lines and bytes are kept. A longer line is cut."""


class Line(msgspec.Struct, frozen=True, array_like=True):
    at: int
    """The process's own clock, in microseconds since the epoch."""
    level: int
    logger: str
    text: str


class AttemptLog(msgspec.Struct, frozen=True, array_like=True):
    """The lines of one attempt, as stored."""

    dropped: int
    """Earlier lines that were more than is kept."""
    lines: list[Line]


class LogRow(NamedTuple):
    task: int
    token: int
    attempt: int
    body: bytes


class LogFilter(NamedTuple):
    """The logs of a run's attempts, by (task, token); `after` is where the last page ended."""

    run: int
    task: int | None = None
    after: tuple[int, int] = (0, 0)
    limit: int = 200


encode_log: Callable[[AttemptLog], bytes] = msgspec.json.Encoder().encode
decode_log: Callable[[bytes], AttemptLog] = msgspec.json.Decoder(AttemptLog).decode
