"""Rows of the tables beside run, task, graph and node_input, each with one wrong value.

`OWNERS` says for every table of the schema to whom its rows belong, so that a new table cannot be forgotten.
No leader reads log, limit_history, migration and frozen_clock; blobs are spoilt by tests/engine/test_held_runs.py.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import asyncpg
import msgspec
from tests.support.fault_injector import LARGEST, SHIFT, Injector, changed, paths

Owner = Literal["run", "request", "worker", "pool", "limit", "nobody"]
OWNERS: dict[str, Owner] = {
    "run": "run",  # and the next three: tests/support/fault_injector.py
    "task": "run",
    "graph": "run",
    "node_input": "run",
    "queue": "run",
    "active_key": "run",
    "orders": "run",
    "reservation": "run",
    "linger": "run",
    "unplaced": "run",
    "waiting": "run",
    "mail": "nobody",
    "mail_taken": "nobody",
    "event_wait": "nobody",
    "event_key": "nobody",
    "cached_result": "nobody",
    "throttle": "nobody",  # read by submitters only
    "blob": "run",
    "log": "run",
    "request": "request",
    "answer": "nobody",  # read by those who asked only
    "worker": "worker",
    "workers_version": "nobody",
    "lost_worker": "worker",
    "silence": "worker",
    "asked_worker": "worker",
    "bucket": "pool",
    "outbox": "nobody",  # each row is moved alone, or answered with what is wrong with it
    "flow": "nobody",
    "schedule": "nobody",
    "schedule_tick": "nobody",
    "schedule_history": "nobody",
    "idempotency": "nobody",
    "token": "nobody",  # read by HTTP servers only
    "limit_rule": "limit",
    "limit_history": "limit",
    "leader": "nobody",
    "meta": "nobody",
    "lane": "nobody",
    "counter": "nobody",
    "closed": "nobody",
    "drain": "nobody",
    "event": "nobody",
    "event_reader": "nobody",  # read by readers of the history only
    "audit_state": "nobody",  # read by audits only, which begin anew where it is unreadable
    "provisioner": "nobody",
    "migration": "nobody",
    "frozen_clock": "nobody",
}
NUMBERING = {"last_run", "xid_offset"}
"""By which PostgreSQL numbers runs and events. Without them it refuses to store any: they stand for no row."""
GHOST = "ghost"
HURT, RATED, KEY = "hurt", "rated", "one at a time"
NEVER = 1 << 52
NOBODY = 1 << 40
"""A run that there is not."""


@dataclass(frozen=True)
class StoredRow:
    table: str
    key: Mapping[str, Any]
    rest: Mapping[str, Any]
    """Its other columns. They are stored where there is no such row yet."""

    @property
    def where(self) -> str:
        return " AND ".join(f"{column} = ?" for column in self.key)


@dataclass(frozen=True)
class TableFault:
    row: StoredRow
    column: str
    kind: str
    value: Any

    def __str__(self) -> str:
        words = [each for each in self.row.key.values() if isinstance(each, str)]
        return f"{self.row.table}{words}.{self.column}-{self.kind}"


def json(value: Any) -> bytes:
    return msgspec.json.encode(value)


def rows(injector: Injector, seq: int, now: int) -> Iterator[StoredRow]:
    """A row of every table that a leader reads, of run `seq` where it is a run's."""
    task = seq * SHIFT
    yield StoredRow("queue", {"run": seq}, {"lane": 0, "rank1": 0, "rank2": 0})
    yield StoredRow("active_key", {"key": KEY}, {"run": seq})
    order = {"worker": GHOST, "token": 7, "reason": "cancelled"}
    yield StoredRow("orders", {"task": task, "kind": "stop"}, order)
    yield StoredRow("reservation", {"task": task, "pool": RATED}, {"slots": 1})
    linger = {"slots": 1, "until": now + 1_000, "worker": GHOST}
    yield StoredRow("linger", {"task": task, "token": 7, "pool": RATED}, linger)
    yield StoredRow("unplaced", {"run": seq}, {})
    yield StoredRow("waiting", {"run": seq}, {"wake_at": now + NEVER})
    cancel = {"kind": "cancel", "subject": "nobody", "priority": 1, "force": False, "who": "me"}
    yield StoredRow("request", {"at": now}, {"taken": 0, "body": json(cancel)})
    body = {
        "id": GHOST,
        "host": "h",
        "pid": 1,
        "version": "0",
        "permits": {"async": 1},
        "total": 5,
        "claim": 5,
        "labels": {"gpu": "a"},
        "steps": {"a:b": "c"},
        "full": [],
        "leaves": [[task, 7]],
        "progress": [[7, 0.5]],
        "unstopped": [[7, task, "s", "drain", 1]],
    }
    lease = {"since": now, "lease_until": now + NEVER, "lease_us": 1_000, "body": json(body)}
    yield StoredRow("worker", {"id": GHOST}, lease)
    yield StoredRow("silence", {"worker": GHOST}, {"unanswered": 1, "until": now + 1_000})
    yield StoredRow("lost_worker", {"id": "gone"}, {"lost_at": now})
    asked = {"asked_at": now, "expires_at": now, "joined_at": 0, "body": b"{}"}
    yield StoredRow("asked_worker", {"name": GHOST}, asked)
    yield StoredRow("bucket", {"pool": RATED}, {"tat": now})
    yield from limit_rows()
    columns = set(injector.columns("leader"))
    leader = {"term": 1, "owner": "", "expires_at": 0, "cycle": 0, "seq": 0}
    more = {"limits_version": 1, "backend": 1, "history": ""}
    kept = {name: value for name, value in (leader | more).items() if name in columns}
    yield StoredRow("leader", {"one": True if injector.typed else 1}, kept)
    for (name,) in injector.query("SELECT name FROM {}meta ORDER BY name"):
        if name not in NUMBERING:
            yield StoredRow("meta", {"name": name}, {"value": 0})
    [[lane]] = injector.query("SELECT min(id) FROM {}lane")
    yield StoredRow("lane", {"id": lane}, {"signature": ""})
    for table in ("counter", "closed"):
        if found := injector.columns(table):
            yield StoredRow(table, {"name": ""}, dict.fromkeys(found.keys() - {"name"}, 0))
    yield StoredRow("drain", {"slot": 1}, {"second": now // 1_000_000, "closed": 1})
    [[event]] = injector.query("SELECT max(seq) FROM {}event")
    told = {"at": now, "term": 1, "cycle": 1, "run": 0, "actor": "client", "body": b"[]"}
    yield StoredRow("event", {"seq": event}, told)
    yield StoredRow("provisioner", {"one": 1}, {"term": 1, "status": json({"text": "idle"})})


def limit_rows() -> Iterator[StoredRow]:
    rate = {"count": 5, "per_us": 1_000, "burst": 9}
    rules: dict[tuple[str, str], Any] = {
        ("pool", HURT): {"limit": 2, "rate": rate, "lease_us": 5_000},
        ("tag", "tenant"): {"key": "tenant", "limit": 2, "max_active": 50},
        ("runs", ""): {"limit": 50, "paused": False},
        ("active", ""): {"limit": 5_000},
        ("fair", "team"): {"key": "team", "weights": {"search": 2}},
        ("engine", "max_bypass"): {"value": 9},
        ("engine", "placement"): {"value": "spread"},
    }
    for (kind, name), rule in rules.items():
        both = {"declared": json(rule), "live": json(rule)}
        yield StoredRow("limit_rule", {"kind": kind, "name": name}, both)


def store_rows(injector: Injector, wanted: list[StoredRow]) -> None:
    for row in wanted:
        if not injector.query(
            f"SELECT 1 FROM {{}}{row.table} WHERE {row.where}", *row.key.values()
        ):
            columns = {**row.key, **row.rest}
            marks = ", ".join("?" * len(columns))
            injector.query(
                f"INSERT INTO {{}}{row.table} ({', '.join(columns)}) VALUES ({marks})",
                *columns.values(),
            )


def faults(injector: Injector, wanted: list[StoredRow]) -> Iterator[TableFault]:
    """Every fault that these rows can have."""
    for row in wanted:
        for column, value in row.rest.items():
            kinds: dict[str, Any] = {}
            if isinstance(value, bytes):
                kinds = {"broken": b'{"broken', "other": b"17"}
                for path in paths(msgspec.json.decode(value)):
                    inside = "".join(f".{each}" for each in path)
                    kinds[f"field{inside}"] = json(changed(msgspec.json.decode(value), path))
            elif isinstance(value, int):
                small = injector.columns(row.table)[column] == "integer" and injector.typed
                kinds = {"negative": -1_000_001, "largest": 2**31 - 1 if small else LARGEST}
                if not injector.typed:
                    kinds["text"] = "not a number"
            else:
                kinds = {"word": "bogus"}
            for kind, wrong in kinds.items():
                yield TableFault(row, column, kind, wrong)


def key_faults(injector: Injector, wanted: list[StoredRow]) -> Iterator[TableFault]:
    """Wrong keys that the store itself can hold: of nobody, of no row that there is, or no key at all.

    SQLite can number nothing behind the largest event: as without `NUMBERING`, it refuses to store anything.
    """
    for row in wanted:
        for column, value in row.key.items():
            kinds: dict[str, Any] = {"word": "bogus", "empty": "", "bytes": b"\xff\xfe"}
            if row.table == "request":
                column = "seq"  # `at` is how its row is found here
            if isinstance(value, int):
                kinds = {"negative": -1_000_001, "nobody": NOBODY, "text": "not a number"}
                if row.table not in ("event", "request"):
                    kinds["largest"] = LARGEST
                if column == "task":
                    kinds["nobody"] = NOBODY * SHIFT
            for kind, wrong in kinds.items():
                if not (injector.typed and kind in ("bytes", "text")):
                    yield TableFault(row, column, kind, wrong)


def inject_key(injector: Injector, fault: TableFault) -> bool:
    """False: the database itself refuses such a key."""
    try:
        inject(injector, fault)
    except (sqlite3.IntegrityError, asyncpg.PostgresError, asyncpg.DataError):
        return False
    return True


def inject(injector: Injector, fault: TableFault) -> Any:
    """What stood there."""
    row, column = fault.row, fault.column
    found = injector.query(
        f"SELECT {column} FROM {{}}{row.table} WHERE {row.where}", *row.key.values()
    )
    write(injector, row, column, fault.value)
    return found[0][0]


def write(injector: Injector, row: StoredRow, column: str, value: Any) -> None:
    injector.query(
        f"UPDATE {{}}{row.table} SET {column} = ? WHERE {row.where}", value, *row.key.values()
    )
