"""A connection with its named statements: what every verb is given.

Parameters are positional: binding by name hands the interpreter's lock over
once per parameter. Numbered ones (`?2`) are made plain (`?`) when the files are read,
because Python 3.12.0 to 3.12.3 takes them for names and warns that this will fail.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from locktender.base.clock import Clock
from locktender.base.limits import Limits
from locktender.base.model import LimitRow
from locktender.store.copy_tables import expand_templates
from locktender.store.decode import encode
from locktender.store.history import RunChanges, event_rows
from locktender.store.limit_rows import compose, readable
from locktender.store.sql import Statement, Statements, chunks, read

_NUMBERED = re.compile(r"\?(\d+)")
_ORDERS: dict[str, tuple[int, ...]] = {}
"""Of statements that are written with numbers: which value stands at each place."""


def _plain(statements: Iterable[Statement]) -> Iterator[Statement]:
    for each in statements:
        text, numbers = _NUMBERED.sub("?", each.text), _NUMBERED.findall(each.text)
        if numbers and (text.count("?") != len(numbers) or "/*rows*/" in text):
            raise ValueError(f"statement {each.name!r} has numbered and plain parameters")
        if numbers:
            _ORDERS[each.name] = tuple(int(number) - 1 for number in numbers)
        yield Statement(each.name, each.description, text)


SQL = Statements(_plain(expand_templates(read(Path(__file__).parent / "sql"))))
CACHED_STATEMENTS = 1_024

Row = tuple[Any, ...]


def listed(values: Iterable[int | str]) -> str:
    """Ids as one parameter, for `IN (SELECT value FROM json_each(?))`."""
    return encode(list(values)).decode()


def mapped(tokens: Mapping[int, int]) -> str:
    """Tokens by task as one parameter, for `json_each(?)` with its key and value."""
    return encode(tokens).decode()


class SqliteSession:
    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self._limits: tuple[int, Limits] | None = None

    def now(self) -> int:
        return self.db.execute(SQL.text("now")).fetchone()[0]

    def run(self, name: str, *params: object) -> int:
        """Rows changed."""
        return self._execute(name, params).rowcount

    def one(self, name: str, *params: object) -> Row | None:
        return self._execute(name, params).fetchone()

    def row(self, name: str, *params: object) -> Row:
        """The row of a statement that always has one."""
        return self._execute(name, params).fetchone()

    def all(self, name: str, *params: object) -> list[Row]:
        return self._execute(name, params).fetchall()

    def each(self, name: str, rows: Sequence[Sequence[Any]], *after: object) -> int:
        """Runs `name` for all `rows`, many per step; the last row id an INSERT made."""
        last = 0
        for chunk in chunks(rows):
            params = list(chain.from_iterable(chunk))
            params += after
            last = self.db.execute(SQL.rows(name, len(chunk)), params).lastrowid or 0
        return last

    def _execute(self, name: str, params: tuple[object, ...]) -> sqlite3.Cursor:
        order = _ORDERS.get(name)
        if order is not None:
            params = tuple([params[place] for place in order])
        return self.db.execute(SQL.text(name), params)

    def limits(self) -> Limits:
        """What is in force in this transaction."""
        version: int = self.row("limits_version")[0]
        if self._limits is None or self._limits[0] != version:
            self._limits = version, compose(self.limit_rows())
        return self._limits[1]

    def limit_rows(self) -> list[LimitRow]:
        return readable(self.all("limit_list"))

    def forget(self) -> None:
        """After a rollback: a version that was rolled back may be given to other content."""
        self._limits = None


def resolved(path: str | Path) -> Path:
    """`path` without symbolic links: SQLite names its own companions so, and ours must be the same for all."""
    try:
        # Not `Path.resolve`: that raises for links that lead in a circle.
        return Path(os.path.realpath(path))
    except ValueError:  # no name of a file: opening it says so
        return Path(path).absolute()


WRITER_CACHE_KIB = 16_384
"""A commit takes longer the more pages are kept: with 128 MB, full, 0.7 ms more (docs/performance.md)."""
READER_CACHE_KIB = 16_384


def connect(path: Path, clock: Clock, busy_timeout_us: int, *, write: bool) -> SqliteSession:
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={'rwc' if write else 'rw'}",
        uri=True,
        isolation_level=None,
        cached_statements=CACHED_STATEMENTS,
    )
    try:
        db.create_function("locktender_now", 0, clock.now)
        timeout = busy_timeout_us // 1000
        db.execute(SQL.text("connect").format(milliseconds=timeout))
        if write:
            for name in ("wal", "durable", "keep_deleted", "wal_bound"):
                db.execute(SQL.text(name)).fetchall()
        else:
            db.execute(SQL.text("read_only"))
        kept = WRITER_CACHE_KIB if write else READER_CACHE_KIB
        db.execute(SQL.text("cache").format(kibibytes=kept))
    except BaseException:
        db.close()
        raise
    return SqliteSession(db)


def record(
    tx: SqliteSession,
    now: int,
    actor: str,
    changes: Iterable[RunChanges],
    *,
    term: int = 0,
    cycle: int = 0,
) -> int:
    """Stores (run, its changes) pairs; the last seq given, 0 if there were none."""
    return tx.each("event_add", event_rows(now, actor, changes, term=term, cycle=cycle))
