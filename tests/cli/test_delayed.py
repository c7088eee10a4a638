"""Runs that wait for their time, from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.cli_harness import FLOWS, locktender

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "flows.py").write_text(FLOWS)
    return tmp_path


def test_a_delayed_run_from_the_command_line(folder: Path):
    made = locktender("submit", "flows.py:build", "--delay", "2h", "--json", cwd=folder)
    assert made.code == 0, made.err
    assert made.data["state"] == "waiting"
    why = locktender("why", made.data["id"], cwd=folder)
    assert "sleeps until" in why.out
    listed = locktender("runs", "list", "--status", "waiting", "--json", cwd=folder)
    assert [each["id"] for each in listed.data] == [made.data["id"]]
    wrong = locktender("submit", "flows.py:build", "--start-at", "tomorrow", cwd=folder)
    assert wrong.code == 2
    assert "2031-05-01T09:00+02:00" in wrong.err
    past = locktender(
        "submit", "flows.py:build", "--start-at", "2001-01-01T00:00+00:00", cwd=folder
    )
    assert past.code == 2
    assert "in the past" in past.err
