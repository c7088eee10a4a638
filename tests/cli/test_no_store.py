"""Commands that only look, where there is no store: they say so, and make none."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.cli_harness import batch, locktender

from locktender.testing.postgres_server import connected, run, with_options

pytest_plugins = ["locktender.testing.postgres"]

LOOKING = {
    "runs": ["runs", "list"],
    "workers": ["workers", "list"],
    "pools": ["pools", "list"],
    "events": ["events"],
    "why": ["why", "0000000000"],
    "audit": ["audit"],
}


async def schemas(url: str) -> list[str]:
    async with connected(url) as conn:
        rows = await conn.fetch("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'typ%'")
    return [row[0] for row in rows]


def test_a_schema_that_is_not_there_is_not_made_by_looking(postgres_url: str, tmp_path: Path):
    url = with_options(postgres_url, schema="typo")
    said = batch({name: [*words, "--url", url] for name, words in LOOKING.items()}, tmp_path)
    for name, answer in said.items():
        assert answer.code == 2, (name, answer)
        assert "there is no store at" in answer.err, name
        assert "schema typo yet" in " ".join(answer.err.split()), name
    assert run(schemas(postgres_url)) == []
    # Whoever has something to store makes it.
    assert locktender("pools", "set", "db", "4", "--url", url, cwd=tmp_path).code == 0
    assert run(schemas(postgres_url)) == ["typo"]
    assert locktender("runs", "list", "--url", url, cwd=tmp_path).code == 0


@pytest.mark.parametrize(
    "words",
    [["worker", "flows.py"], ["server", "--port", "0"], ["db", "migrate"], ["runs", "list"]],
)
def test_a_server_without_its_scheme_does_not_become_a_file(words: list[str], tmp_path: Path):
    (tmp_path / "flows.py").write_text("from locktender import step\n\n\n@step\ndef one(): ...\n")
    answer = locktender(*words, "--url", "localhost:5432/db", cwd=tmp_path)
    assert answer.code == 2, answer
    assert "postgresql://" in answer.err
    assert not (tmp_path / "localhost:5432").exists()
