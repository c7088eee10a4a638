"""Tables fit the terminal; what another program reads is not cut."""

from __future__ import annotations

from pathlib import Path

from tests.support.cli_harness import locktender
from tests.support.db_stores import fill

from locktender.cli import tables
from locktender.cli.blame import COLUMNS, cost_rows
from locktender.cli.output import plain
from locktender.observe.holders import LimitCost, LostTo

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


def test_costs_of_limits_fit_a_hundred_columns() -> None:
    """A line for each holder, with as much of its id as tells it from others."""
    to = tuple(
        LostTo(f"06gyg4t22ya2{n}gszmqhajdt6jb", 1_200_000, {"tenant": "acme"}) for n in range(5)
    )
    cost = LimitCost("pool:database", 12_300_000, 40, to)
    short = tables.shorten(each.run for each in to)
    rows = list(cost_rows(cost, short))
    assert [row[0] for row in rows] == ["pool:database", "", "", "", ""]
    shown = tables.table(*COLUMNS, rows=rows).lines()
    assert shown is not None
    assert max(len(plain(line)) for line in shown) <= 100
