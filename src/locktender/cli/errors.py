"""Errors as people and scripts read them, and the exit code that goes with each.

0 it went well · 1 the run failed, or what was asked about is bad · 2 what was
asked for cannot be right · 130 interrupted.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Any

from locktender.base.errors import (
    MAX_SHOWN,
    InvalidInput,
    LocktenderError,
    NotFound,
    RunFailed,
    StoreBusy,
    StoreError,
)
from locktender.cli.context import Context
from locktender.cli.output import escape

_OURS = str(Path(__file__).parent.parent)
OK, BAD, USAGE, INTERRUPTED = 0, 1, 2, 130


class UserCode(InvalidInput):
    """The user's own file is at fault; `trace` is their part of the traceback."""

    code = "user_code"

    def __init__(self, message: str, trace: str = "", **details: Any) -> None:
        super().__init__(message, **details)
        self.trace = trace

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "traceback": self.trace}


class Usage(InvalidInput):
    """A command line that no command understands."""

    code = "usage"


class Internal(LocktenderError):
    """A fault of our own."""

    code = "internal"


def exit_code(error: LocktenderError) -> int:
    if isinstance(error, InvalidInput | NotFound):
        return USAGE
    return USAGE if isinstance(error, StoreError) and not isinstance(error, StoreBusy) else BAD


def show(error: LocktenderError, shell: Context) -> None:
    """On stderr, so that stdout never holds anything but the answer."""
    if shell.debug:
        traceback.print_exception(error)
    if shell.json:
        import msgspec

        sys.stderr.write(msgspec.json.encode(error.as_dict()).decode() + "\n")
        return
    trace = error.trace if isinstance(error, UserCode) else _workers_trace(error)
    if trace:
        shell.notes.print(escape(trace.rstrip()), soft_wrap=True, style="dim")
    shell.note(f"[bold red]error:[/] {escape(error.message)}{escape(_got(error))}")
    if error.hint:
        shell.note(f"[bold]hint:[/] {escape(error.hint)}")
    from locktender.cli.error_codes import CODES

    if error.code in CODES:
        shell.note(f"[dim]more: locktender explain {error.code}[/]")


def _got(error: LocktenderError) -> str:
    """What was given, where the message does not say it already."""
    if isinstance(error, RunFailed):
        return ""
    shown = error.shown_got()[:MAX_SHOWN]
    return f" Got {shown}." if shown else ""


def _workers_trace(error: LocktenderError) -> str:
    return theirs(error.traceback) if isinstance(error, RunFailed) else ""


def theirs(trace: str | None) -> str:
    """A worker's traceback where a line of the user's is in it: ours alone would explain nothing."""
    places = [line for line in (trace or "").splitlines() if line.strip().startswith('File "')]
    return "" if all(_OURS in line for line in places) else trace or ""
