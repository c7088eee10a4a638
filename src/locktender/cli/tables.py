"""Tables that fit the terminal, ages, short ids."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from locktender.base.clock import SystemClock
from locktender.base.durations import spoken
from locktender.base.names import without_controls
from locktender.cli.output import escape, plain, width_of

if TYPE_CHECKING:
    from rich.table import Table

    from locktender.client.views import UnstoppedInfo


def shown(text: str) -> str:
    """A text of the user's, as text: neither our markup nor a command to the terminal that shows it."""
    return escape(without_controls(text))


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


def stop_note(unstopped: UnstoppedInfo, since: datetime) -> str:
    """Of an attempt that was asked to stop and still runs."""
    return f"asked to stop {ago(unstopped.since, since)}: {unstopped.reason}"


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


def table(*columns: str, rows: Iterable[Sequence[str]]) -> TextTable:
    """Columns headed `>name` stand to the right; `name…` may be cut, `name~` may wrap, others keep their width."""
    return TextTable(columns, [list(row) for row in rows])


class TextTable(msgspec.Struct, frozen=True):
    columns: Sequence[str]
    rows: list[list[str]]

    def lines(self) -> Iterator[str] | None:
        """With markup; None: something has to be cut or wrapped."""
        widths = self._widths()
        wide = sum(widths) + GAP * (len(widths) - 1) > columns_shown()
        if not self.rows or wide or widths != _fit(self.columns, widths):
            return None
        if any("\n" in cell for row in self.rows for cell in row):
            return None
        return self._lines(widths)

    def _lines(self, widths: list[int]) -> Iterator[str]:
        titles = [f"[bold]{_title(each)}[/]" for each in self.columns]
        yield self._line(titles, widths)
        yield "─" * (sum(widths) + GAP * (len(widths) - 1))
        for row in self.rows:
            yield self._line(row, widths)

    def _line(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        found: list[str] = []
        for column, cell, width in zip(self.columns, cells, widths, strict=True):
            blank = " " * (width - length(cell))
            found.append(f"{blank}{cell}" if column.startswith(">") else f"{cell}{blank}")
        return (" " * GAP).join(found)

    def _widths(self) -> list[int]:
        cells = zip(*self.rows, strict=True) if self.rows else ((),) * len(self.columns)
        return [
            max([len(_title(column)), *map(length, several)])
            for column, several in zip(self.columns, cells, strict=True)
        ]

    def __rich__(self) -> Table:
        from rich import box
        from rich.table import Table

        made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1))
        for column, width in zip(self.columns, _fit(self.columns, self._widths()), strict=True):
            made.add_column(
                _title(column),
                justify="right" if column.startswith(">") else "left",
                no_wrap=not column.endswith("~"),
                overflow="fold" if column.endswith("~") else "ellipsis",
                width=width,
            )
        for row in self.rows:
            made.add_row(*row)
        return made


def _title(column: str) -> str:
    return column.strip(">…~").upper()


_DRAWN = str.maketrans(dict.fromkeys("━╸╌└…·", "-"))
"""Characters of our own, each as wide as a letter."""


def length(cell: str) -> int:
    """Columns that a text takes on a terminal."""
    text = without_controls(plain(cell))
    if text.translate(_DRAWN).isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def columns_shown() -> int:
    """How many characters a line has."""
    return width_of(sys.stdout) or shutil.get_terminal_size((80, 25)).columns


def _fit(columns: Sequence[str], widths: Sequence[int]) -> list[int]:
    """Widths that fit the terminal: what may give way shares what the others leave, the narrow first."""
    fitted = list(widths)
    yielding = [at for at, column in enumerate(columns) if column.endswith(("…", "~"))]
    fixed = sum(width for at, width in enumerate(widths) if at not in yielding)
    left = columns_shown() - fixed - GAP * (len(columns) - 1) - 1
    for done, at in enumerate(sorted(yielding, key=lambda at: widths[at])):
        share = left // (len(yielding) - done)
        fitted[at] = max(len(_title(columns[at])), min(widths[at], share))
        left -= fitted[at]
    return fitted
