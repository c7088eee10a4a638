"""Puts one wrong value into the rows of one run: what a decoder or a range check can refuse.

`faults` lists them from the schema itself: every column of every table that a leader reads of a run, and every
field of the JSON within. `WRONG_KEYS` has the keys by which rows are found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import asyncpg
import msgspec
from tests.support.beside import opened

SHIFT = 1 << 20
KEYS = {
    "run": {"seq", "id"},
    "task": {"id"},
    "graph": {"hash"},
    "node_input": {"run", "node"},
}
TABLES = ("run", "task", "graph", "node_input")
JSON_COLUMNS = {
    ("run", "tags"),
    ("run", "params"),
    ("run", "consts"),
    ("task", "input"),
    ("task", "output"),
    ("task", "error"),
    ("task", "held"),
    ("graph", "body"),
    ("node_input", "input"),
}
LARGEST = 2**63 - 1
WRONG_KEYS: tuple[tuple[str, str, str, Any], ...] = (
    ("run", "seq", "negative", -1_000_001),
    ("run", "seq", "zero", 0),
    ("run", "seq", "nobody", 1 << 40),
    ("run", "seq", "beyond", 1 << 44),  # its tasks have no numbers
    ("run", "id", "word", "bogus"),
    ("run", "id", "empty", ""),
    ("run", "id", "bytes", b"\xff"),
    ("task", "id", "negative", -1_000_001),
    ("task", "id", "nobody", SHIFT << 20),
    ("task", "id", "largest", LARGEST),
    ("task", "id", "outside", SHIFT - 1),  # of its run
    ("graph", "hash", "word", "bogus"),
    ("graph", "hash", "empty", ""),
    ("node_input", "run", "negative", -1_000_001),
    ("node_input", "run", "nobody", 1 << 40),
    ("node_input", "node", "negative", -1_000_001),
    ("node_input", "node", "outside", 2**31 - 1),
)
"""(table, column, kind, value) of keys that a store can hold."""


@dataclass(frozen=True)
class Fault:
    table: str
    column: str
    kind: str
    """`negative`, `largest`, `text`, `word`, `broken`, `other` (JSON of another kind) or `field`."""
    path: tuple[str | int, ...] = ()

    def __str__(self) -> str:
        inside = "".join(f".{key}" for key in self.path)
        return f"{self.table}.{self.column}{inside}-{self.kind}"


class Injector:
    """The rows of a store, changed behind its back."""

    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, text: str, *params: Any) -> list[tuple[Any, ...]]:
        """`text` has `?` for parameters, and `{}` before each table's name."""
        if not self._url.startswith("postgres"):
            with opened(self._url) as db:
                return db.execute(text.replace("{}", ""), params).fetchall()
        return asyncio.run(self._query(text.replace("{}", "locktender."), params))

    async def _query(self, text: str, params: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        conn = await asyncpg.connect(self._url)
        try:
            parts = text.split("?")
            numbered = "".join(f"{part}${n}" for n, part in enumerate(parts[:-1], 1)) + parts[-1]
            return [tuple(row) for row in await conn.fetch(numbered, *params)]
        finally:
            await conn.close()

    @property
    def typed(self) -> bool:
        """Whether the database itself refuses a text in a column of numbers."""
        return self._url.startswith("postgres")

    def columns(self, table: str) -> dict[str, str]:
        """Column → its type."""
        if self.typed:
            rows = self.query(
                "SELECT column_name, data_type FROM information_schema.columns"
                " WHERE table_schema = 'locktender' AND table_name = ?",
                table,
            )
            return {str(row[0]): str(row[1]) for row in rows}
        return {row[1]: row[2].lower() for row in self.query(f"PRAGMA table_info({table})")}

    # -- rows of one run

    def where(self, table: str, seq: int) -> str:
        match table:
            case "run":
                return f"seq = {seq}"
            case "task":
                # Its last task that is not completed, else its last one.
                low, high = seq * SHIFT, (seq + 1) * SHIFT
                order = "ORDER BY CASE WHEN state = 'completed' THEN 1 ELSE 0 END, id DESC LIMIT 1"
                return f"id = (SELECT id FROM {{}}task WHERE id >= {low} AND id < {high} {order})"
            case "graph":
                return f"hash = (SELECT graph FROM {{}}run WHERE seq = {seq})"
            case _:
                return f"run = {seq}"

    def value(self, table: str, column: str, seq: int) -> Any:
        rows = self.query(f"SELECT {column} FROM {{}}{table} WHERE {self.where(table, seq)}")
        return rows[0][0] if rows else None

    def write(self, table: str, column: str, seq: int, value: Any) -> None:
        where = self.where(table, seq)
        self.query(f"UPDATE {{}}{table} SET {column} = ? WHERE {where}", value)

    # -- faults

    def faults(self, seq: int) -> Iterator[Fault]:
        """Every fault that the rows of run `seq` can have now."""
        for table in TABLES:
            if not self.query(f"SELECT 1 FROM {{}}{table} WHERE {self.where(table, seq)}"):
                continue
            for column, type_ in self.columns(table).items():
                if column in KEYS[table]:
                    continue
                if (table, column) in JSON_COLUMNS:
                    yield Fault(table, column, "broken")
                    yield Fault(table, column, "other")
                    value = self.value(table, column, seq)
                    if value is not None:
                        for path in paths(msgspec.json.decode(value)):
                            yield Fault(table, column, "field", path)
                elif "int" in type_:
                    yield Fault(table, column, "negative")
                    yield Fault(table, column, "largest")
                    if not self.typed:
                        yield Fault(table, column, "text")
                elif type_ in ("text", "character varying"):
                    yield Fault(table, column, "word")
                else:
                    yield Fault(table, column, "broken")

    def inject(self, fault: Fault, seq: int) -> None:
        old = self.value(fault.table, fault.column, seq)
        text = isinstance(old, str)
        match fault.kind:
            case "negative":
                new: Any = -1_000_001
            case "largest":
                new = LARGEST
            case "text":
                new = "not a number"
            case "word":
                new = "bogus"
            case "broken":
                new = '{"broken' if text else b'{"broken'
            case "other":
                new = "17" if text else b"17"
            case _:
                new = msgspec.json.encode(changed(msgspec.json.decode(old), fault.path))
                new = new.decode() if text else new
        self.write(fault.table, fault.column, seq, new)


def paths(value: Any, above: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place inside a JSON value."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        yield (*above, key)
        yield from paths(inner, (*above, key))


def changed(value: Any, path: tuple[str | int, ...]) -> Any:
    """`value` with something of another kind at `path`."""
    if not path:
        return {"?": 1} if isinstance(value, str | int | float | list) or value is None else 17
    key, rest = path[0], path[1:]
    if isinstance(value, dict):
        return {**value, key: changed(value[key], rest)}
    return [changed(each, rest) if n == key else each for n, each in enumerate(value)]
