"""Printing log lines in `locktender worker` and its child processes, in one form.

Every line has its time, its level and, inside a body, its step and task. Where the user's files
set logging up themselves, only our own lines are printed. A program that embeds an engine sets up
its own logging: nothing is printed there.

    2026-01-05 10:31:07,512 INFO [flows:charge task 1048576] shop: order 7 is large
"""

from __future__ import annotations

import logging
from typing import Final, TextIO

from locktender.base.text import without_controls
from locktender.worker.executors.capture import text_of
from locktender.worker.executors.protocol import CURRENT

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
