"""`locktender schedules` with the real executable, from a file of flows to the last tick."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.cli_harness import locktender

FLOWS = """
from locktender import flow, step

@step
def note(n: int) -> int:
    return n

@flow(name="cli noted")
def noted(n: int, k: int = 1) -> int:
    return note(n + k)
"""


def test_schedules_are_set_shown_paused_and_deleted(tmp_path: Path):
    url = str(tmp_path / "s.db")
    file = tmp_path / "cli_noted_flows.py"
    file.write_text(FLOWS)

    def said(*words: str, code: int = 0, plain: bool = False) -> Any:
        done = locktender(*words, "--url", url, *([] if plain else ["--json"]), cwd=tmp_path)
        assert done.code == code, done.out + done.err
        return done.out if plain else json.loads(done.out or done.err)

    made = said(
        "schedules", "set", "nightly", f"{file}:noted", "--args", '{"n": 3}',
        "--cron", "0 3 * * 1-5", "--tz", "Europe/Berlin", "--overlap", "queue",
        "--tag", "team=search", "--jitter", "30s",
    )  # fmt: skip
    assert (made["flow"], made["args"], made["overlap"]) == ("cli noted", {"n": 3}, "queue")
    assert len(made["next"]) == 5
    # by its announced name, without the file
    said("schedules", "set", "other", "cli noted", "--args", '{"n": 1}', "--every", "15m")
    wrong = said("schedules", "set", "x", "cli noted", "--cron", "0 0 30 2 *", code=2)
    assert wrong["field"] == "cron"
    unknown = said("schedules", "pause", "nightl", code=2)
    assert unknown["hint"] == "Did you mean 'nightly'?"
    said("schedules", "pause", "nightly")
    shown = said("schedules", "show", "nightly", plain=True)
    assert "paused" in shown
    assert "0 3 * * 1-5 Europe/Berlin" in shown
    assert "max_active 1 · set by an operator" in shown
    assert 'args {"n":3} · tags team=search · jitter 30s' in shown
    said("schedules", "resume", "nightly")
    assert "scheduled: next tick" in said("why", "nightly", plain=True)
    run = said("schedules", "run-now", "nightly")
    assert said("runs", "show", run["id"])["run"]["tags"] == {
        "schedule": "nightly",
        "team": "search",
    }
    listed = said("schedules", "list", plain=True)
    assert "nightly" in listed
    assert "every 15m" in listed
    said("schedules", "set", "s1", "cli noted", "--args", '{"n": 1}', "--every", "15m")
    assert "scheduled: next tick" in said("why", "s1", plain=True)
    said("schedules", "delete", "s1")
    said("schedules", "delete", "other")
    assert [each["name"] for each in said("schedules", "list")] == ["nightly"]
    changes = [each["what"] for each in said("schedules", "history", "nightly")]
    assert changes == ["resumed", "paused", "set"]


def test_to_delete_a_declared_schedule_is_said_not_to_last(tmp_path: Path):
    (tmp_path / "cli_hourly_flows.py").write_text(
        FLOWS.replace(
            'name="cli noted"', 'name="hourly", schedule={"every": "1h", "args": {"n": 1}}'
        )
    )
    url = str(tmp_path / "s.db")
    ran = locktender(
        "run", "cli_hourly_flows.py:noted", "--args", "[1]", "--url", url, cwd=tmp_path
    )
    assert ran.code == 0, ran.err
    shown = locktender("schedules", "show", "hourly", "--url", url, cwd=tmp_path)
    assert "max_active 1 · declared by code" in shown.out
    gone = locktender("schedules", "delete", "hourly", "--url", url, cwd=tmp_path)
    assert gone.out == "schedule hourly is removed. Its runs go on.\n"
    assert "it comes back with the next worker" in gone.err
