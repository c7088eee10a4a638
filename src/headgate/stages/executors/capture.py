"""What bodies log, kept per attempt.

Every record that Python's `logging` hands to its handlers is looked at once
more: if the code that made it belongs to an attempt (a context variable says
so), a line is kept with the attempt. A handler on the root logger would be
simpler and wrong: with one there, `logging.basicConfig()` in a user's script
does nothing, warnings of an unconfigured program are no longer printed, and
loggers that do not propagate are missed. So `Logger.callHandlers` is wrapped:
levels, filters and the user's own handlers are all as they were.

A body that logs nothing costs nothing; nobody writes before the attempt ends.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any, Final, cast

from headgate.base.clock import SECOND
from headgate.base.logs import MAX_BYTES, MAX_LINE, MAX_LINES, AttemptLog, Line, encode_log
from headgate.stages.executors.protocol import CURRENT, Job

STEP_LOGGER: Final = "headgate.step"
MAX_KEPT_BYTES: Final = 64 * 1024 * 1024
"""Of all attempts in flight together: who logs beyond it loses lines of its own."""
_OVERHEAD = 40
"""Bytes a line takes in JSON beside its texts."""
_formatter = logging.Formatter()
_wrapped: list[Callable[[logging.Logger, logging.LogRecord], None]] = []
"""What was there before us; empty: bodies' records are not kept yet."""


class _All:
    """The bytes of all attempts' lines in this process, and the one lock on them."""

    def __init__(self) -> None:
        self.bytes = 0
        self.lock = threading.Lock()


_all = _All()
# A body may fork while another thread keeps a line: the lock would never be free in the fork.
os.register_at_fork(after_in_child=lambda: setattr(_all, "lock", threading.Lock()))


class Lines:
    """The newest lines of one attempt, within bounds. Bodies may log from several threads."""

    __slots__ = ("_bytes", "_closed", "_dropped", "_lines")

    def __init__(self) -> None:
        self._lines: deque[Line] = deque()
        self._bytes = 0
        self._dropped = 0
        self._closed = False

    def add(self, lines: Iterable[Line], dropped: int = 0) -> None:
        with _all.lock:
            if self._closed:
                return  # a thread that has outlived its attempt
            self._dropped += dropped
            for line in lines:
                self._lines.append(line)
                self._count(_size(line))
            while self._lines and self._too_much():
                self._count(-_size(self._lines.popleft()))
                self._dropped += 1

    def take(self, *, last: bool = False) -> AttemptLog:
        """All there is; nothing is left. After the `last` time nothing more is kept."""
        with _all.lock:
            self._closed = self._closed or last
            taken = AttemptLog(self._dropped, list(self._lines))
            self._lines.clear()
            self._count(-self._bytes)
            self._dropped = 0
        return taken

    def body(self) -> bytes:
        """As it is stored, at the end of the attempt."""
        return encode_log(self.take(last=True))

    def _count(self, size: int) -> None:
        self._bytes += size
        _all.bytes += size

    def _too_much(self) -> bool:
        return (
            len(self._lines) > MAX_LINES or self._bytes > MAX_BYTES or _all.bytes > MAX_KEPT_BYTES
        )


def install() -> None:
    """From here on bodies' records are kept. Once per process: others may wrap it after us."""
    if not _wrapped:
        _wrapped.append(logging.Logger.callHandlers)
        logging.Logger.callHandlers = _seen


def _seen(self: logging.Logger, record: logging.LogRecord) -> None:
    job = CURRENT.get(None)
    if job is not None:
        keep(job, record)
    _wrapped[0](self, record)


def keep(job: Job, record: logging.LogRecord) -> None:
    """One line of this attempt."""
    try:
        text = record.getMessage()
        if record.exc_info and record.exc_info[0] is not None:
            text = f"{text}\n{_formatter.formatException(record.exc_info)}"
        if record.stack_info:
            text = f"{text}\n{record.stack_info}"
    except Exception as error:  # noqa: BLE001 — a user's arguments and __str__ may do anything
        text = f"{record.msg!s} (cannot be formatted: {type(error).__name__})"
    if job.redact is not None:
        text = job.redact(text)
    if len(text) > MAX_LINE:
        text = f"{text[:MAX_LINE]}… ({len(text) - MAX_LINE:,} characters more)"
    # Half characters are no text for any encoder.
    text = text.encode("utf-8", "backslashreplace").decode()
    line = Line(int(record.created * SECOND), record.levelno, record.name, text)
    if job.lines is None:
        job.lines = Lines()
    job.lines.add((line,))
    if job.telling is not None:
        job.telling.wake()


class StepLog(logging.LoggerAdapter[logging.Logger]):
    """`current().log`: kept from INFO up, whatever level the process's logging is set to."""

    def __init__(self, job: Job) -> None:
        fields = {
            "run": job.run_id,
            "task": job.task,
            "attempt": job.attempt,
            "step": job.step.name,
        }
        super().__init__(logging.getLogger(STEP_LOGGER), fields)
        self._job = job

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 — logging's own name
        return level >= logging.INFO or super().isEnabledFor(level)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """The attempt's fields beside the caller's own."""
        own: Mapping[str, object] = kwargs.get("extra") or {}
        kwargs["extra"] = {**(self.extra or {}), **own}
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if self.logger.isEnabledFor(level):
            # The frame of this method is not the caller's.
            kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
            said, options = self.process(msg, kwargs)
            self.logger.log(level, said, *args, **options)
        elif level >= logging.INFO:
            record = logging.LogRecord(
                STEP_LOGGER, level, "", 0, msg, args, _exc_info(kwargs.get("exc_info"))
            )
            keep(self._job, record)


def _exc_info(given: Any) -> Any:
    """As `Logger._log` reads it: an exception, a triple, or true for the one being handled."""
    if isinstance(given, BaseException):
        return type(given), given, given.__traceback__
    if isinstance(given, tuple):
        return cast("Any", given)
    return sys.exc_info() if given else None


def _size(line: Line) -> int:
    return _OVERHEAD + len(line.logger) + len(line.text.encode())
