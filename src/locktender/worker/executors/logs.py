"""What bodies log: kept per attempt, and printed in `locktender worker` and its child processes.

Every record that Python's `logging` gives to its handlers is read once
more: if the code that made it belongs to an attempt (a context variable says
so), a line is kept with the attempt. A handler on the root logger would be
simpler and wrong: with one there, `logging.basicConfig()` in a user's script
does nothing, warnings of an unconfigured program are no longer printed, and
loggers that do not propagate are missed. So `Logger.callHandlers` is wrapped:
levels, filters and the user's own handlers are all as they were.
A body that logs nothing costs nothing. The worker stores the lines of running attempts once a second, if
there are new ones, and all of them before the end.

Every printed line has its time, its level and, inside a body, its step and task. Where the user's
files set logging up themselves, only our own lines are printed. A program that embeds an engine
sets up its own logging: nothing is printed there.

    2026-01-05 10:31:07,512 INFO [flows:charge task 1048576] shop: order 7 is large
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any, Final, TextIO, cast

from locktender.base.clock import SECOND, SystemClock
from locktender.base.model import MAX_BYTES, MAX_LINE, MAX_LINES, AttemptLog, LogLine, encode_log
from locktender.base.names import without_controls
from locktender.worker.executors.protocol import CURRENT, Attempt

STEP_LOGGER: Final = "locktender.step"
MAX_KEPT_BYTES: Final = 64 * 1024 * 1024
"""Of all attempts in flight together: an attempt that logs beyond it loses its own oldest lines."""
MAX_NAME: Final = 200
MAX_LEVEL: Final = 1_000_000
MAX_AT: Final = 253_402_300_799 * SECOND
MAX_DEPTH: Final = 3
"""How deep a text may log while it is made. Each depth may make two more: this bounds the work, too."""
_OVERHEAD = 40
"""Bytes a line takes in JSON beside its texts."""
_formatter = logging.Formatter()
_clock = SystemClock()
_here = threading.local()
_wrapped: list[Callable[[logging.Logger, logging.LogRecord], None]] = []
"""Logging's own method; empty: bodies' records are not kept yet."""


class _All:
    """The bytes of all attempts' lines in this process, and the one lock on them."""

    def __init__(self) -> None:
        self.bytes = 0
        # A signal handler or a finaliser that logs may come in between, in the very thread that has it.
        self.lock = threading.RLock()


_all = _All()
# A body may fork while another thread keeps a line: the lock would never be free in the fork.
os.register_at_fork(after_in_child=lambda: setattr(_all, "lock", threading.RLock()))


class CapturedLines:
    """The newest lines of one attempt, within bounds. Bodies may log from several threads."""

    __slots__ = ("_bytes", "_closed", "_dropped", "_lines")

    def __init__(self) -> None:
        self._lines: deque[LogLine] = deque()
        self._bytes = 0
        self._dropped = 0
        self._closed = False

    def add(self, lines: Iterable[LogLine], dropped: int = 0) -> None:
        with _all.lock:
            if self._closed:
                return  # a thread that has outlived its attempt
            self._dropped += dropped
            for line in lines:
                self._lines.append(line)
                self._count(_size(line))
            while self._lines and self._too_much():
                try:
                    oldest = self._lines.popleft()
                except IndexError:
                    break  # a signal handler that logs has come in between
                self._count(-_size(oldest))
                self._dropped += 1

    def take(self, *, last: bool = False) -> AttemptLog:
        """All there is; nothing is left. After the `last` time nothing more is kept."""
        with _all.lock:
            self._closed = self._closed or last
            taken, self._lines = self._lines, deque()
            self._count(-self._bytes)
            dropped, self._dropped = self._dropped, 0
        return AttemptLog(dropped, list(taken))

    @property
    def count(self) -> int:
        """How many lines there were, also those that were dropped."""
        return self._dropped + len(self._lines)

    def peek(self) -> tuple[bytes, int, int]:
        """As it is stored while the attempt runs, how many lines there were, and when the newest was logged."""
        with _all.lock:
            log = AttemptLog(self._dropped, list(self._lines))
        return _stored(log)

    def body(self) -> tuple[bytes, int, int]:
        """The same at the end of the attempt."""
        return _stored(self.take(last=True))

    def _count(self, size: int) -> None:
        self._bytes += size
        _all.bytes += size

    def _too_much(self) -> bool:
        return (
            len(self._lines) > MAX_LINES or self._bytes > MAX_BYTES or _all.bytes > MAX_KEPT_BYTES
        )


def _stored(log: AttemptLog) -> tuple[bytes, int, int]:
    last_at = max((line.at for line in log.lines), default=0)
    return encode_log(log), log.dropped + len(log.lines), last_at


def install() -> None:
    """From here on bodies' records are kept. Once per process: others may wrap it after us."""
    if not _wrapped:
        _wrapped.append(logging.Logger.callHandlers)
        logging.Logger.callHandlers = _seen


def _seen(self: logging.Logger, record: logging.LogRecord) -> None:
    attempt = CURRENT.get(None)
    if attempt is not None:
        keep(attempt, record)
    _wrapped[0](self, record)


def keep(attempt: Attempt, record: logging.LogRecord) -> None:
    """One line of this attempt. What cannot be kept must not fail the body that logs it."""
    depth: int = getattr(_here, "depth", 0)
    if depth >= MAX_DEPTH:
        return  # a text that logs while it is made, and there makes itself again
    _here.depth = depth + 1
    try:
        line = _line(attempt, record)
    finally:
        _here.depth = depth
    if attempt.lines is None:
        attempt.lines = CapturedLines()
    attempt.lines.add((line,))
    if attempt.reporter is not None:
        attempt.reporter.wake()


def _line(attempt: Attempt, record: logging.LogRecord) -> LogLine:
    """Only plain values of bounded size: whatever is in it must pass every encoder."""
    text = _clean(attempt, text_of(record))
    if len(text) > MAX_LINE:
        text = f"{text[:MAX_LINE]}… ({len(text) - MAX_LINE:,} characters more)"
    name = _clean(attempt, _shown(record.name))[:MAX_NAME]
    try:
        at = int(record.created * SECOND)
        level = min(max(int(record.levelno), 0), MAX_LEVEL)
    except (TypeError, ValueError, OverflowError):  # a record made by hand
        at, level = _clock.now(), logging.INFO
    return LogLine(min(max(at, 0), MAX_AT), level, name, text)


def text_of(record: logging.LogRecord) -> str:
    """What it says, with its traceback. What cannot be formatted is kept as it was given, without arguments."""
    try:
        text = record.getMessage()
        if record.exc_info and record.exc_info[0] is not None:
            text = f"{text}\n{_formatter.formatException(record.exc_info)}"
        if record.stack_info:
            text = f"{text}\n{record.stack_info}"
    except Exception as error:  # noqa: BLE001 — a user's arguments and __str__ may do anything
        return f"{_shown(record.msg)} (cannot be formatted: {type(error).__name__})"
    return text


def _shown(message: object) -> str:
    """A message that cannot be formatted: as it was given, if there is any way."""
    if isinstance(message, str):
        return message
    try:
        return repr(message)
    except Exception:  # noqa: BLE001 — a user's __repr__ may do anything
        return f"<{type(message).__name__}>"


def _clean(attempt: Attempt, text: str) -> str:
    if attempt.redact is not None:
        text = attempt.redact(text)  # before it is cut: half a secret would not be found
    # Half characters are no text for any encoder.
    return text.encode("utf-8", "backslashreplace").decode()


class StepLog(logging.LoggerAdapter[logging.Logger]):
    """`current().log`: kept from INFO up, whatever level the process's logging is set to."""

    def __init__(self, attempt: Attempt) -> None:
        fields = {
            "run": attempt.run_id,
            "task": attempt.task,
            "attempt": attempt.number,
            "step": attempt.step.name,
        }
        super().__init__(logging.getLogger(STEP_LOGGER), fields)
        self._attempt = attempt

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
            text, options = self.process(msg, kwargs)
            self.logger.log(level, text, *args, **options)
        elif level >= logging.INFO:
            record = logging.LogRecord(
                STEP_LOGGER, level, "", 0, msg, args, _exc_info(kwargs.get("exc_info"))
            )
            keep(self._attempt, record)


def _exc_info(given: Any) -> Any:
    """As `Logger._log` reads it: an exception, a triple, or true for the one being handled."""
    if isinstance(given, BaseException):
        return type(given), given, given.__traceback__
    if isinstance(given, tuple):
        return cast("Any", given)
    return sys.exc_info() if given else None


def _size(line: LogLine) -> int:
    return _OVERHEAD + len(line.logger) + len(line.text.encode())


OURS: Final = "locktender"


class LogLines(logging.Formatter):
    """Names step and task, hides the attempt's secrets, and removes what would control a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        attempt = CURRENT.get(None)
        whose = "" if attempt is None else f"[{attempt.step.name} task {attempt.task}] "
        logger = "" if _ours(record.name) else f"{record.name}: "
        text = f"{whose}{logger}{text_of(record)}"
        if attempt is not None and attempt.redact is not None:
            text = attempt.redact(text)
        return without_controls(f"{self.formatTime(record)} {record.levelname} {text}")


class OthersLines(logging.StreamHandler[TextIO]):
    """On the root logger: for lines that no other handler prints."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(LogLines())
        self.addFilter(_not_printed)


def print_own(level: int) -> None:
    """Print our own lines from `level` up, and what `current().log` writes: whatever else is set up."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogLines())
    ours = logging.getLogger(OURS)
    ours.handlers[:] = [handler]
    ours.setLevel(level)
    ours.propagate = False


def prints_own() -> int:
    """From which level on this process does; 0: it does not."""
    ours = logging.getLogger(OURS)
    lines = any(isinstance(each.formatter, LogLines) for each in ours.handlers)
    return ours.level if lines else 0


def print_all(level: int) -> None:
    """Print what any logger says from `level` up, unless logging is set up already."""
    root = logging.getLogger()
    if root.handlers:
        return
    if root.level == logging.WARNING:  # else it was chosen
        root.setLevel(level)
    handler = OthersLines()
    handler.setLevel(level)  # a logger with a lower one of its own is kept, but not printed
    root.addHandler(handler)


def prints_all() -> bool:
    """Whether this process does; then its children do too."""
    return any(isinstance(each, OthersLines) for each in logging.getLogger().handlers)


def _not_printed(record: logging.LogRecord) -> bool:
    """No handler below the root prints it: such a line would be printed twice."""
    logger = logging.getLogger(record.name)
    while logger.parent is not None:
        if any(not isinstance(each, logging.NullHandler) for each in logger.handlers):
            return False
        logger = logger.parent
    return True


def _ours(name: str) -> bool:
    return name == OURS or name.startswith(f"{OURS}.")
