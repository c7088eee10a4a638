"""The log of a worker's process as lines: its own, and what the bodies it runs log, in one form.

Who uses this: `locktender worker` and its child processes, which are ours. Whose
files set logging up themselves have that, untouched; else what any logger says
from the set level up is printed with its time, its level and, inside a body,
whose it is, and is kept with the attempt. A program that only embeds an engine
is its user's: nothing of this is done there.

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
    """Says of a line whose it is, hides the attempt's secrets, and lets nothing command a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        job = CURRENT.get(None)
        whose = "" if job is None else f"[{job.step.name} task {job.task}] "
        logger = "" if _ours(record.name) else f"{record.name}: "
        text = f"{whose}{logger}{text_of(record)}"
        if job is not None and job.redact is not None:
            text = job.redact(text)
        return without_controls(f"{self.formatTime(record)} {record.levelname} {text}")


class OthersLines(logging.StreamHandler[TextIO]):
    """On the root logger: for what nobody else prints."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(LogLines())
        self.addFilter(_printed_by_nobody)


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
    """Print what any logger says from `level` up, unless somebody has set logging up already."""
    root = logging.getLogger()
    if root.handlers:
        return
    if root.level == logging.WARNING:  # else somebody has chosen it
        root.setLevel(level)
    handler = OthersLines()
    handler.setLevel(level)  # a logger with a lower one of its own is kept, but not printed
    root.addHandler(handler)


def prints_all() -> bool:
    """Whether this process does; then its children do too."""
    return any(isinstance(each, OthersLines) for each in logging.getLogger().handlers)


def _printed_by_nobody(record: logging.LogRecord) -> bool:
    """No handler below the root has it: of such a line there would be two."""
    logger = logging.getLogger(record.name)
    while logger.parent is not None:
        if any(not isinstance(each, logging.NullHandler) for each in logger.handlers):
            return False
        logger = logger.parent
    return True


def _ours(name: str) -> bool:
    return name == OURS or name.startswith(f"{OURS}.")
