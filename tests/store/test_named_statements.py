"""The loader of named statements, and the statements themselves."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

import locktender.store as stores
from locktender.store.sql import MAX_ROWS, MAX_ROWS_LEFT, Statements, chunks, parse, read
from locktender.store.sqlite.opening import MIGRATIONS, split
from locktender.store.sqlite.session import SQL

TEXT = """
-- A file may open with an essay.

-- name: first
-- What it does,
-- in two lines.
SELECT 1;

-- name: many
-- Several rows.
INSERT INTO t (a, b) VALUES /*rows*/ (?, ?)
ON CONFLICT DO NOTHING
"""


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    db = sqlite3.connect(":memory:")
    db.create_function("locktender_now", 0, lambda: 1)
    for migration in MIGRATIONS:
        for statement in split(migration.text):
            db.execute(statement)
    yield db
    db.close()


def test_statements_are_found_with_their_descriptions() -> None:
    first, many = parse(TEXT)
    assert (first.name, first.description, first.text) == (
        "first",
        "What it does, in two lines.",
        "SELECT 1",
    )
    assert many.text.startswith("INSERT")


def test_the_marked_tuple_is_repeated() -> None:
    statements = Statements(parse(TEXT))
    assert "VALUES (?, ?),(?, ?),(?, ?)\n" in statements.rows("many", 3)
    with pytest.raises(ValueError, match="0 /"):
        statements.rows("first", 2)


def test_a_name_is_given_once() -> None:
    with pytest.raises(ValueError, match="twice"):
        Statements([*parse(TEXT), *parse(TEXT)])


def test_statements_are_read_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text(TEXT, encoding="utf-8")
    (tmp_path / "ignored.txt").write_text("-- name: other\n-- x\nSELECT 2", encoding="utf-8")
    assert [each.name for each in read(tmp_path)] == ["first", "many"]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 15, 16, 17, 31, 33, 200, 255, 256, 257, 1000])
def test_chunks_are_few_and_of_few_sizes(count: int) -> None:
    pieces = list(chunks(list(range(count))))
    assert [n for piece in pieces for n in piece] == list(range(count))
    sizes = [len(piece) for piece in pieces]
    assert all(size <= MAX_ROWS_LEFT or size & (size - 1) == 0 for size in sizes)
    assert sum(size < MAX_ROWS_LEFT for size in sizes) <= 1
    assert len(pieces) <= count // MAX_ROWS + 5


@pytest.mark.parametrize("name", SQL.names)
def test_every_statement_has_a_description(name: str) -> None:
    statement = SQL.get(name)
    assert statement.text
    assert len(statement.description) > 5
    assert statement.description.endswith((".", "…"))


@pytest.mark.parametrize("name", [name for name in SQL.names if not name.startswith("connect")])
def test_every_statement_compiles(db: sqlite3.Connection, name: str) -> None:
    db.execute(SQL.text("migration_table"))
    text = SQL.rows(name, 256) if "/*rows*/" in SQL.text(name) else SQL.text(name)
    if text.startswith(("PRAGMA", "BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE")):
        return
    db.execute(f"EXPLAIN {text}", [None] * _parameters(db, text))


HOT = [
    "run_start", "queue_remove", "run_mark", "runs_open", "run_end", "key_free", "runs_awaited",
    "task_save", "task_end", "order_remove", "offer_remove", "request_done",
    "task_accept", "tasks_accepted", "tasks_owned", "task_finish", "task_abandon", "task_hand_back",
    "task_withdraw", "worker_tasks", "tasks_executing", "ended_tasks", "tasks_of_run",
    "runs_by_id", "runs_by_key", "runs_finished_by_key", "counters_by_name", "orders_of",
    "events_after", "events_of_run", "heads", "lanes_queued", "queued_after", "run_by_id",
    "runs_executing", "run_waits_on", "queue_place",
]  # fmt: skip


@pytest.mark.parametrize("name", HOT)
def test_hot_statements_scan_no_table(db: sqlite3.Connection, name: str) -> None:
    """Cost grows with what is asked for, not with what is stored."""
    text = SQL.rows(name, 256) if "/*rows*/" in SQL.text(name) else SQL.text(name)
    wanted = _parameters(db, text)
    plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {text}", [None] * wanted)]
    tables = {row[0] for row in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    short = {"t": "task", "r": "run", "a": "active_key", "n": "node_input"}
    scanned = [
        line
        for line in plan
        if line.startswith("SCAN") and short.get(line.split()[1], line.split()[1]) in tables
    ]
    assert scanned == [], plan


READS_ALL = {
    "active_tags": "to count active runs anew",
    "runs_misplaced": "up to its LIMIT",
}
"""Statements that may read all queued runs, of which there may be a million, and when."""


def test_no_statement_reads_all_queued_runs_by_their_state(db: sqlite3.Connection) -> None:
    found: set[str] = set()
    for name in SQL.names:
        text = SQL.text(name)
        if "'queued'" in text and "/*rows*/" not in text:
            wanted = [None] * _parameters(db, text)
            plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {text}", wanted)]
            found |= {name for line in plan if "run_state (state=?)" in line}
    assert found == READS_ALL.keys()


def _parameters(db: sqlite3.Connection, text: str) -> int:
    try:
        db.execute(f"EXPLAIN {text}", ())
    except sqlite3.ProgrammingError as error:
        return int(str(error).split("uses ")[1].split(",")[0])
    return 0


def test_no_index_mentions_a_tasks_state(db: sqlite3.Connection) -> None:
    found = db.execute("SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'task'")
    assert found.fetchall() == []


def test_no_statement_for_sqlite_has_numbered_parameters():
    """Python 3.12.0 to 3.12.3 takes them for named ones, which need a mapping."""
    assert [name for name in SQL.names if re.search(r"\?\d", SQL.text(name))] == []


def test_every_statement_is_used() -> None:
    store = Path(stores.__file__).parent
    code = "\n".join(path.read_text(encoding="utf-8") for path in store.rglob("*.py"))
    families = tuple(set(re.findall(r'f"(\w+_)\{', code)))
    files = store.rglob("*.sql")
    names = {
        name
        for path in files
        for name in re.findall(r"^-- name: *(\w+)", path.read_text("utf-8"), re.MULTILINE)
    }
    unused = {
        name
        for name in names
        if not re.search(rf"\b{name}\b", code) and not f"{name}_".startswith(families)
    }
    assert len(names) > 300
    assert not unused
