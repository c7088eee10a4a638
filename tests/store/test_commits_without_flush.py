"""Which commits need not wait for the disk: those that nobody acts on before another write."""

from __future__ import annotations

from typing import Any

import pytest

from locktender.base.changes import Bucket, Order, TaskRow
from locktender.base.commits import Commit, MailTaken, RunEnd, RunMark, RunStart, TaskEnd, TaskSave


def _saved(state: str, eligible_at: int = 0) -> TaskSave:
    return TaskSave(1, state, 1, 1, 0, 1, 7, "w", None, None, 0, 0, 0, 0, 0, eligible_at)


@pytest.mark.parametrize(
    "parts",
    [
        {"runs_started": [RunStart(1, 1)], "tasks_new": [TaskRow(1, 0, -1, "requested")]},
        {"tasks_new": [TaskRow(1, 0, -1, "scheduled")], "orders": [Order("w", 1, 7, "offer")]},
        {"tasks_saved": [_saved("scheduled", eligible_at=5)], "buckets": [Bucket("api", 5)]},
        {"tasks_saved": [_saved("requested")], "reservations": []},
        {"tasks_again": [TaskRow(1, 0, -1, "completed")], "mail_taken": [MailTaken(1, 1, 1)]},
    ],
)
def test_what_only_waits_or_is_offered_prepares(parts: dict[str, Any]):
    assert Commit(1, 1, "leader:me", **parts).preparing


@pytest.mark.parametrize("state", ["running", "failed", "cancelled", "skipped", "completed"])
def test_what_begins_here_or_ends_does_not(state: str):
    assert not Commit(1, 1, "leader:me", tasks_saved=[_saved(state)]).preparing
    assert not Commit(1, 1, "leader:me", tasks_new=[TaskRow(1, 0, -1, state)]).preparing


@pytest.mark.parametrize(
    "parts",
    [
        {"runs_ended": [RunEnd(1, "succeeded", b"1", None, 1)]},
        {"runs_marked": [RunMark(1, "cancelling", "cancelled", None)]},
        {"tasks_ended": [TaskEnd(1, 7, b"1", 1)]},
        {"tasks_again": [TaskRow(1, 0, -1, "completed", token=7)]},
        {"tasks_again": [TaskRow(1, 0, -1, "pending")]},
        {"orders": [Order("w", 1, 7, "stop")]},
        {"requests_done": [3]},
        {"reprioritised": [(1, 5)]},
        {"lingers": []},
        {"own_ends": True},
        {"tasks_saved": [_saved("requested", eligible_at=5)]},
    ],
)
def test_what_somebody_was_promised_does_not(parts: dict[str, Any]):
    prepared: dict[str, Any] = {"tasks_saved": [_saved("scheduled")]}
    assert not Commit(1, 1, "leader:me", **{**prepared, **parts}).preparing
