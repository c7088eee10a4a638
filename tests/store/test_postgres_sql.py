"""The statements of PostgreSQL: the same names as SQLite's, each described, each valid."""

from __future__ import annotations

from pathlib import Path

import pytest

import locktender.store.postgres
import locktender.store.sqlite
from locktender.base.errors import InvalidInput
from locktender.store.postgres.composed_sql import Dialect, Parts, columns
from locktender.store.postgres.options import parse
from locktender.store.postgres.session import SQL
from locktender.store.sql import Statements
from locktender.store.sql import parse as statements


def shared_names(package: str) -> set[str]:
    folder = Path(package).parent / "sql"
    return {
        statement.name
        for path in folder.glob("*.sql")
        if path.name != "connection.sql"
        for statement in statements(path.read_text())
    }


def test_both_dialects_define_the_same_names() -> None:
    ours = shared_names(locktender.store.postgres.__file__)
    assert ours == shared_names(locktender.store.sqlite.__file__)
    assert len(ours) > 90


def test_every_statement_says_what_it_is_for() -> None:
    assert [name for name in SQL.names if not SQL.get(name).description.endswith(".")] == []


def test_every_table_is_written_with_its_schema() -> None:
    """There is no search path: a pooler would not keep it."""
    dialect = Dialect(SQL, '"other"')
    for name in SQL.names:
        assert "locktender." not in dialect.text(name)


def test_parts_count_their_parameters_from_one() -> None:
    text = """
-- name: first
-- .
SELECT $1::int AS a, $2::int AS b
-- name: second
-- .
SELECT $1, $2 FROM first
-- name: last
-- .
SELECT * FROM second WHERE a = $1
"""
    parts = Parts()
    parts.add("first", 1, 2)
    parts.add("second", 3, 4, alias="x")
    parts.add("last", 5)
    composed = Dialect(Statements(statements(text)), '"s"').composed(parts.names)
    assert "x AS (SELECT $3, $4 FROM first)" in composed
    assert composed.endswith("WHERE a = $5")
    assert parts.params == [1, 2, 3, 4, 5]
    assert columns([], 3) == [[], [], []]
    assert columns([(1, "a"), (2, "b")], 2) == [[1, 2], ["a", "b"]]


def test_a_url_as_options() -> None:
    options = parse(
        "postgres://ann:s3cret@db:5433/jobs?schema=gate&pooled=true&sslmode=require&listen=db2:5434"
    )
    assert options.dsn == "postgresql://ann:s3cret@db:5433/jobs?sslmode=require"
    assert (options.schema, options.pooled) == ("gate", True)
    assert options.shown == "postgresql://ann@db:5433/jobs"
    assert options.listen_dsn == "postgresql://ann:s3cret@db2:5434/jobs?sslmode=require"
    assert parse("postgresql://db/jobs").schema == "locktender"
    assert parse("postgresql://db/jobs", schema="other").schema == "other"
    assert parse("postgresql://db/jobs?listen=off").listen == "off"
    assert options.lock(1) != parse("postgresql://db/jobs").lock(1)
    in_query = parse("postgresql://ann@/jobs?host=/run/db&port=5433&password=s3cret")
    assert in_query.shown == "postgresql://ann@/jobs?host=/run/db&port=5433"


def test_no_guess_where_nothing_is_near() -> None:
    with pytest.raises(InvalidInput, match="pooled is true or false") as caught:
        parse("postgresql://db/jobs?pooled=maybe")
    assert caught.value.hint == "Write pooled=true, or nothing."


@pytest.mark.parametrize("query", ["schema=pg_x", "schema=a-b", "schema=A", "pooled=perhaps"])
def test_a_url_that_cannot_be_right(query: str) -> None:
    with pytest.raises(InvalidInput):
        parse(f"postgresql://ann:s3cret@db/jobs?{query}")
