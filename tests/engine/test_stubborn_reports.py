"""What was told to stop and does not: named once in the log, carried by the beat, forgotten when it ends."""

from __future__ import annotations

import pytest

from locktender.base.clock import SECOND
from locktender.base.model import Stubborn
from locktender.worker.executors.protocol import Stopping
from locktender.worker.reports import MAX_LOG_LINES, MAX_STUBBORN, STOP_US, StubbornReports

NOW = 50 * SECOND


def told(token: int, since: int = NOW) -> Stopping:
    return Stopping(token, "timeout", since, task=token + 100, step="shop.fetch")


def test_f4_what_stops_in_time_is_nobodys_business(caplog: pytest.LogCaptureFixture):
    board = StubbornReports()

    assert not board.update(NOW + STOP_US - 1, [("thread", told(1))])
    assert not board.update(NOW + STOP_US, [])

    assert board.notes == []
    assert not caplog.records


def test_f4_what_does_not_stop_is_told_once_and_named_with_what_to_do(
    caplog: pytest.LogCaptureFixture,
):
    board = StubbornReports()
    board.joined(at=1_000 * SECOND, now=10 * SECOND)
    late = NOW + STOP_US

    assert board.update(late, [("thread", told(1))])
    assert not board.update(late + SECOND, [("thread", told(1))])

    # in the store's time: it was told forty seconds after the worker had joined
    assert board.notes == [Stubborn(1, 101, "shop.fetch", "timeout", 1_040 * SECOND)]
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith(
        "task 101 (step shop.fetch) was told to stop 1s ago (timeout) and still runs"
    )
    assert "current().stop_requested" in line
    assert 'executor="process"' in line

    assert board.update(late + SECOND, [("thread", told(1)), ("async", told(2, NOW + 1))])
    assert [each.token for each in board.notes] == [1, 2]
    assert "CancelledError" in caplog.records[-1].getMessage()
    assert not board.update(late + SECOND, [])
    assert board.notes == []


def test_f4_many_flood_neither_the_log_nor_the_beat(caplog: pytest.LogCaptureFixture):
    board = StubbornReports()
    many = [("async", told(token, NOW - token)) for token in range(2 * MAX_STUBBORN)]

    assert board.update(NOW + STOP_US, many)

    assert len(caplog.records) == MAX_LOG_LINES + 1
    assert f"{2 * MAX_STUBBORN - MAX_LOG_LINES} more" in caplog.records[-1].getMessage()
    # those that were told first
    assert {each.token for each in board.notes} == set(range(MAX_STUBBORN, 2 * MAX_STUBBORN))
