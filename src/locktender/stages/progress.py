"""How far attempts are, by their own word: the latest of each, carried by the worker's beat.

A call of `progress()` writes nothing: it replaces one value here. The beat that
renews the lease anyway takes what is there along, so that progress costs no
write of its own, however many tasks report how often, and is seen by others
within one beat. It is bounded in number and bytes, and goes with its attempt.
"""

from __future__ import annotations

import math
import threading
from typing import Final, Protocol, SupportsFloat, cast

from locktender.base.errors import InvalidInput
from locktender.base.model import Progress

MOST: Final = 256
"""How many attempts' progress a beat carries: of more, those that spoke last."""
MAX_MESSAGE: Final = 160
"""Bytes. With `MOST` it keeps a beat's share below 64 kB."""


class ProgressSink(Protocol):
    """Where an attempt's progress goes: the worker's board, or a child's line to it."""

    def put(self, progress: Progress) -> None: ...
    def forget(self, token: int) -> None: ...


class ProgressBoard:
    """Written by bodies in any thread, read by the thread that beats."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._latest: dict[int, Progress] = {}
        self._lock = threading.Lock()

    def put(self, progress: Progress) -> None:
        with self._lock:
            latest = self._latest
            latest.pop(progress.token, None)
            latest[progress.token] = progress
            if len(latest) > self._most:
                del latest[next(iter(latest))]

    def forget(self, token: int) -> None:
        """The attempt has ended."""
        if self._latest:  # nearly always empty: no lock then
            with self._lock:
                self._latest.pop(token, None)

    def notes(self) -> list[Progress]:
        """What the next beat carries."""
        with self._lock:
            return list(self._latest.values())


def progress_of(token: int, done: object, total: object, message: object) -> Progress:
    """Checked here: a number that JSON does not have would spoil the beat of the whole worker."""
    return Progress(
        token,
        _number(done, "done"),
        None if total is None else _number(total, "total"),
        str(message).encode("utf-8", "replace")[:MAX_MESSAGE].decode("utf-8", "ignore"),
    )


def _number(value: object, field: str) -> float:
    try:
        number = float(cast("SupportsFloat", value)) if not isinstance(value, str) else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise InvalidInput(
            f"progress takes numbers from 0 up, not {field}={value!r}.",
            field=field,
            got=value,
            hint="progress(done, total): e.g. progress(3, 10). Leave total out if nobody knows it.",
        )
    return number
