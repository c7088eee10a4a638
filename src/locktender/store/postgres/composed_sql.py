"""Several named statements as one: `WITH a AS (…), b AS (…) SELECT …`.

A verb is one statement, so that it is one round trip and one transaction, with
its fence inside. Each part counts its parameters from $1; here they get their
places. The same parts in the same order always make the same text, so that the
server plans it once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import sub
from typing import Any

from locktender.store.sql import Statements

_PARAMETER = re.compile(r"\$(\d+)")
_SCHEMA = re.compile(r"\blocktender\.(?=[a-z])")


class Dialect:
    """The statements with the schema's name in them."""

    def __init__(self, statements: Statements, schema: str) -> None:
        self._statements = statements
        self._schema = schema
        self.text: Callable[[str], str] = lru_cache(maxsize=None)(self._text)
        self._composed: dict[tuple[tuple[str, str], ...], str] = {}
        self._arrays: dict[tuple[str, ...], str] = {}

    def _text(self, name: str) -> str:
        return self.localise(self._statements.text(name))

    def localise(self, text: str) -> str:
        """`locktender.` stands for our schema, whatever it is called."""
        return _SCHEMA.sub(f"{self._schema}.", text)

    def composed(self, parts: Sequence[tuple[str, str]]) -> str:
        """The text of (statement, alias) pairs; the last one is the query itself."""
        key = tuple(parts)
        found = self._composed.get(key)
        if found is None:
            *parts, (final, _) = key
            pieces: list[str] = []
            used = 0
            for name, alias in parts:
                text, used = _shift(self.text(name), used)
                pieces.append(f"{alias} AS ({text})")
            text, _ = _shift(self.text(final), used)
            found = self._composed[key] = f"WITH {', '.join(pieces)}\n{text}" if pieces else text
        return found

    def arrays(self, names: Sequence[str], shared: str | None = None) -> str:
        """The rows of several reads, each as one array, in one row and of one snapshot.

        `shared` is a statement that they may select from.
        """
        key = (shared or "", *names)
        found = self._arrays.get(key)
        if found is None:
            pieces: list[str] = []
            first, used = _shift(self.text(shared), 0) if shared else ("", 0)
            head = f"WITH {shared} AS MATERIALIZED ({first})\n" if shared else ""
            for number, name in enumerate(names):
                text, used = _shift(self.text(name), used)
                pieces.append(f"ARRAY(SELECT ROW(q{number}.*) FROM ({text}) q{number})")  # noqa: S608
            found = self._arrays[key] = f"{head}SELECT {', '.join(pieces)}"
        return found


def _shift(text: str, by: int) -> tuple[str, int]:
    """`text` with its parameters `by` places on, and the last place it uses."""
    most = max((int(number) for number in _PARAMETER.findall(text)), default=0)
    return _PARAMETER.sub(lambda match: f"${int(match[1]) + by}", text), by + most


class Parts:
    """The parts of one verb, in the order they are added."""

    def __init__(self) -> None:
        self.names: list[tuple[str, str]] = []
        self.params: list[Any] = []

    def add(self, name: str, *params: Any, alias: str | None = None) -> None:
        self.names.append((name, alias or name))
        self.params += params


def columns(rows: Sequence[Sequence[Any]], width: int) -> list[list[Any]]:
    """Rows as one array per column."""
    if not rows:
        return [[] for _ in range(width)]
    return [list(column) for column in zip(*rows, strict=True)]


def empty_if_null(column: list[Any]) -> list[Any]:
    """An array of nothing but NULLs as an empty one: beside longer ones, `unnest` fills it up again."""
    return [] if column.count(None) == len(column) else column


def without_zeros(column: list[Any]) -> list[Any]:
    """An array of nothing but zeros or NULLs as an empty one. The statement says `coalesce(…, 0)`.

    A value costs 0.4 µs to send, and half of the columns of a new task hold nothing yet.
    """
    return column if any(column) else []


def as_offset(ids: list[int], column: list[int]) -> tuple[list[int], int | None]:
    """If `column − ids` is the same everywhere only that difference; else the array.

    The statement says `coalesce(v.column, v.id + $n)`.
    """
    offset = column[0] - ids[0] if column else 0
    differs = any(map(offset.__ne__, map(sub, column, ids)))
    return (column, None) if differs else ([], offset)


def once_if_equal(column: list[Any]) -> list[Any]:
    """An array of one value, however often, as that value alone. The statement spreads it over all rows."""
    return column[:1] if len(column) > 1 and column.count(column[0]) == len(column) else column
