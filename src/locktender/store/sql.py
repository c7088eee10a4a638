"""Named SQL statements, read from `.sql` files: one folder per dialect, the same names in each.

A file holds statements of this form:

    -- name: task_finish
    -- End attempts by compare-and-set.
    WITH v (id, state) AS (VALUES /*rows*/ (?, ?))
    UPDATE task SET state = v.state FROM v WHERE task.id = v.id

`/*rows*/` marks the tuple that is repeated once per row. A list is written in
chunks of 256, 128, … 32 rows and a rest of up to 16, so that one step of the
database handles many rows: a step hands the interpreter's lock over, and beside
a busy event loop each such hand-over may cost 5 ms. Powers of two keep the number
of distinct texts small enough for every connection's statement cache; a few rows,
which most commits are, go in one step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")

MAX_ROWS = 256
MAX_ROWS_LEFT = 16
"""Up to so many are written in one step."""

_NAME = "\n-- name: "
_ROWS = re.compile(r"/\*rows\*/\s*(\([^()]*\))")


class Statement(msgspec.Struct, frozen=True):
    name: str
    description: str
    text: str


class Statements:
    """The statements of one dialect."""

    def __init__(self, statements: Iterable[Statement]) -> None:
        self._statements: dict[str, Statement] = {}
        self._expanded: dict[tuple[str, int], str] = {}
        for statement in statements:
            if statement.name in self._statements:
                raise ValueError(f"statement {statement.name!r} is defined twice")
            self._statements[statement.name] = statement

    @property
    def names(self) -> list[str]:
        return sorted(self._statements)

    def get(self, name: str) -> Statement:
        return self._statements[name]

    def text(self, name: str) -> str:
        return self._statements[name].text

    def rows(self, name: str, count: int) -> str:
        """The text of `name` with its marked tuple repeated `count` times."""
        found = self._expanded.get((name, count))
        if found is None:
            found, marks = _ROWS.subn(
                lambda match: ",".join([match[1]] * count), self._statements[name].text
            )
            if marks != 1:
                raise ValueError(f"statement {name!r} has {marks} /*rows*/ marks, not one")
            self._expanded[name, count] = found
        return found


def read(folder: Path) -> Iterator[Statement]:
    """The statements of all `.sql` files in `folder`."""
    for path in sorted(folder.glob("*.sql")):
        yield from parse(path.read_text(encoding="utf-8"))


def parse(text: str) -> Iterator[Statement]:
    """The statements in `text`; comments right under a name are its description."""
    for part in f"\n{text}".split(_NAME)[1:]:
        name, _, body = part.partition("\n")
        body, comments = body.strip(), list[str]()
        while body.startswith("--"):
            comment, _, body = body.partition("\n")
            comments.append(comment.removeprefix("--").strip())
        yield Statement(name.strip(), " ".join(comments), body.strip().rstrip(";"))


def chunks(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """`rows` in pieces of 256, then of falling powers of two, and the last few together."""
    start, left, size = 0, len(rows), MAX_ROWS
    while left:
        if left <= MAX_ROWS_LEFT:
            yield rows[start:] if start else rows
            return
        while size > left:
            size >>= 1
        yield rows[start : start + size]
        start += size
        left -= size
