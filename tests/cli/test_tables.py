"""Tables fit the terminal; what another program reads is not cut."""

from __future__ import annotations

from pathlib import Path

from tests.support.cli_harness import locktender
from tests.support.db_stores import fill

LONG = "a-worker-with-a-name-of-" + "x" * 90


async def test_nothing_is_cut_in_a_pipe(tmp_path: Path) -> None:
    await fill(str(tmp_path / "locktender.db"), 1)
    locktender("pools", "set", LONG, "3", "--url", "locktender.db", cwd=tmp_path)
    for command in (["pools", "list"], ["events"]):
        whole = locktender(*command, "--url", "locktender.db", cwd=tmp_path, COLUMNS="")
        assert LONG in whole.out
        assert "…" not in whole.out
        narrow = locktender(*command, "--url", "locktender.db", cwd=tmp_path, COLUMNS="80")
        assert LONG not in narrow.out
        assert max(map(len, narrow.out.splitlines())) <= 80
