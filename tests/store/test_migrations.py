"""Migrations: numbered, forward, checksummed."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from locktender.base.errors import SchemaTooNew, StoreError
from locktender.store.migrate import Migration, pending, read_migrations
from locktender.store.sqlite import SqliteStore, opening
from locktender.store.sqlite.opening import MIGRATIONS, split

ONE = Migration(1, "one", "CREATE TABLE a (x);")
TWO = Migration(2, "two", "CREATE TABLE b (x);")


def test_what_is_not_applied_is_pending() -> None:
    assert pending([ONE, TWO], {}) == [ONE, TWO]
    assert pending([ONE, TWO], {1: ONE.checksum}) == [TWO]
    assert pending([ONE, TWO], {1: ONE.checksum, 2: TWO.checksum}) == []


def test_a_newer_schema_is_refused() -> None:
    with pytest.raises(SchemaTooNew, match="schema 2"):
        pending([ONE], {1: ONE.checksum, 2: TWO.checksum})


def test_a_changed_migration_is_refused() -> None:
    with pytest.raises(StoreError, match="0001_one"):
        pending([ONE, TWO], {1: "other"})


def test_numbers_have_no_gap(tmp_path: Path) -> None:
    (tmp_path / "0001_one.sql").write_text(ONE.text)
    assert read_migrations(tmp_path) == [ONE]
    (tmp_path / "0003_three.sql").write_text("SELECT 1;")
    with pytest.raises(ValueError, match="0002"):
        read_migrations(tmp_path)


def test_a_script_is_split_into_its_statements() -> None:
    script = "-- a; comment\nCREATE TABLE a (\n  x TEXT DEFAULT ';'\n);\n\nSELECT 1;\n"
    assert [part.strip().splitlines()[-1] for part in split(script)] == [");", "SELECT 1;"]


async def _open(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    await store.close()


def _applied(path: Path) -> list[tuple[int, str]]:
    db = sqlite3.connect(path)
    found = db.execute("SELECT number, checksum FROM migration").fetchall()
    db.close()
    return found


def _change(path: Path, statement: str, *params: object) -> None:
    db = sqlite3.connect(path)
    with db:
        db.execute(statement, params)
    db.close()


async def test_each_is_applied_once(tmp_path: Path) -> None:
    path = tmp_path / "locktender.db"
    await _open(path)
    await _open(path)
    assert _applied(path) == [(each.number, each.checksum) for each in MIGRATIONS]


async def test_a_file_of_a_newer_locktender_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "locktender.db"
    await _open(path)
    _change(path, "INSERT INTO migration VALUES (?, 'future', 'x', 0)", len(MIGRATIONS) + 1)
    before = _applied(path)
    with pytest.raises(SchemaTooNew) as refused:
        await _open(path)
    assert refused.value.hint
    assert _applied(path) == before


async def test_a_file_with_other_migrations_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "locktender.db"
    await _open(path)
    _change(path, "UPDATE migration SET checksum = 'x' WHERE number = 1")
    with pytest.raises(StoreError, match="differs"):
        await _open(path)


async def test_an_older_file_is_brought_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "locktender.db"
    await _open(path)
    text = "CREATE TABLE later (x);\nINSERT INTO later VALUES (1);\n"
    newer = [*MIGRATIONS, Migration(len(MIGRATIONS) + 1, "later", text)]
    monkeypatch.setattr(opening, "MIGRATIONS", newer)
    await _open(path)
    assert len(_applied(path)) == len(newer)


async def test_a_migration_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "locktender.db"
    await _open(path)
    before = _applied(path)
    text = "CREATE TABLE later (x);\nINSERT INTO nowhere VALUES (1);\n"
    with monkeypatch.context() as patch:
        bad = Migration(len(MIGRATIONS) + 1, "bad", text)
        patch.setattr(opening, "MIGRATIONS", [*MIGRATIONS, bad])
        with pytest.raises(StoreError):
            await _open(path)
    assert _applied(path) == before
    await _open(path)
