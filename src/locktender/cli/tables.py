"""Tables that fit the terminal, ages, short ids, and user text without control characters.

Tags, keys, names and messages come from any program that may submit a run, and an
escape sequence in them can overwrite a terminal or fill its clipboard. So all
text for people goes through a console that removes such characters. JSON is
unchanged.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TextIO

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from locktender.base.clock import SystemClock
from locktender.base.durations import spoken
from locktender.base.names import without_controls

if TYPE_CHECKING:
    from locktender.client.views import StubbornInfo


def shown(text: str) -> str:
    """A text of the user's, as text: neither our markup nor a command to the terminal that shows it."""
    return escape(without_controls(text))


class PlainConsole(Console):
    """Writes no control character but its own."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(without_controls(text), style)


UNCUT = 10_000
"""Columns of what is read by another program: nothing is cut or wrapped for it."""


def width_of(stream: TextIO) -> int | None:
    """None: the terminal's own, or what COLUMNS says."""
    return None if stream.isatty() or os.environ.get("COLUMNS") else UNCUT


SHORTEST = 12
"""Characters of a run's id: its millisecond and a little chance."""

GAP = 3
"""Blanks between two columns."""

STATE_COLOURS = {
    "waiting": "yellow",
    "queued": "yellow",
    "requested": "yellow",
    "scheduled": "cyan",
    "running": "cyan",
    "cancelling": "magenta",
    "held": "red",
    "succeeded": "green",
    "completed": "green",
    "cached": "green",
    "failed": "red",
    "timed_out": "red",
    "abandoned": "red",
    "cancelled": "magenta",
    "skipped": "dim",
    "handed_back": "dim",
}


def now() -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=SystemClock().now())


def state(text: str) -> str:
    """A state in its colour."""
    colour = STATE_COLOURS.get(text)
    return f"[{colour}]{text}[/]" if colour else text


def ago(at: datetime | None, since: datetime) -> str:
    if at is None:
        return "-"
    passed = since - at
    if abs(passed) < timedelta(seconds=1):
        return "just now"
    whole = timedelta(seconds=abs(passed) // timedelta(seconds=1))
    return f"in {took(whole)}" if passed < timedelta(0) else f"{took(whole)} ago"


def took(passed: timedelta) -> str:
    return spoken(passed // timedelta(microseconds=1))


def lasted(start: datetime | None, end: datetime | None, since: datetime) -> str:
    return "-" if start is None else took((end or since) - start)


def stop_note(stubborn: StubbornInfo, since: datetime) -> str:
    """Of an attempt that was asked to stop and still runs."""
    return f"asked to stop {ago(stubborn.since, since)}: {stubborn.reason}"


def size(number: int) -> str:
    """Bytes, as people read them."""
    size = float(number)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1_000 or unit == "GB":
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1_000
    raise AssertionError("unreachable")


def shorten(ids: Iterable[str]) -> dict[str, str]:
    """Id → as much of it as no other id begins with."""
    several = list(ids)
    length = SHORTEST
    while len({each[:length] for each in several}) < len(set(several)):
        length += 1
    return {each: each[:length] for each in several}


def tags(given: Mapping[str, str]) -> str:
    return shown(" ".join(f"{key}={value}" for key, value in sorted(given.items())))


def table(*columns: str, rows: Iterable[Sequence[str]]) -> Table:
    """Columns headed `>name` stand to the right; `name…` may be cut, `name~` may wrap, others keep their width."""
    several = list(rows)
    widths = [_widest(column, [row[at] for row in several]) for at, column in enumerate(columns)]
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1))
    for column, width in zip(columns, _fit(columns, widths), strict=True):
        made.add_column(
            _title(column),
            justify="right" if column.startswith(">") else "left",
            no_wrap=not column.endswith("~"),
            overflow="fold" if column.endswith("~") else "ellipsis",
            width=width,
        )
    for row in several:
        made.add_row(*row)
    return made


def _title(column: str) -> str:
    return column.strip(">…~").upper()


def _widest(column: str, cells: Iterable[str]) -> int:
    return max([len(_title(column)), *(Text.from_markup(cell).cell_len for cell in cells)])


def _fit(columns: Sequence[str], widths: Sequence[int]) -> list[int]:
    """Widths that fit the terminal: what may give way shares what the others leave, the narrow first."""
    fitted = list(widths)
    yielding = [at for at, column in enumerate(columns) if column.endswith(("…", "~"))]
    fixed = sum(width for at, width in enumerate(widths) if at not in yielding)
    left = Console(width=width_of(sys.stdout)).width - fixed - GAP * (len(columns) - 1) - 1
    for done, at in enumerate(sorted(yielding, key=lambda at: widths[at])):
        share = left // (len(yielding) - done)
        fitted[at] = max(len(_title(columns[at])), min(widths[at], share))
        left -= fitted[at]
    return fitted
