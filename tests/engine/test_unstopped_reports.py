"""A body that was asked to stop and does not: logged once, sent with the beat, removed when it ends."""

from __future__ import annotations

import pytest

from locktender.base.clock import SECOND
from locktender.base.model import Unstopped
from locktender.worker.executors.protocol import Stopping
from locktender.worker.reports import MAX_LOG_LINES, MAX_UNSTOPPED, STOP_US, UnstoppedReports

NOW = 50 * SECOND


def told(token: int, since: int = NOW) -> Stopping:
    return Stopping(token, "timeout", since, task=token + 100, step="shop.fetch")


def test_f4_what_stops_in_time_is_not_reported(caplog: pytest.LogCaptureFixture):
    reports = UnstoppedReports()

    assert not reports.update(NOW + STOP_US - 1, [("thread", told(1))])
    assert not reports.update(NOW + STOP_US, [])

    assert reports.notes == []
    assert not caplog.records


def test_f4_a_body_that_does_not_stop_is_logged_once(
    caplog: pytest.LogCaptureFixture,
):
    reports = UnstoppedReports()
    reports.joined(at=1_000 * SECOND, now=10 * SECOND)
    late = NOW + STOP_US

    assert reports.update(late, [("thread", told(1))])
    assert not reports.update(late + SECOND, [("thread", told(1))])

    # in the store's time: it was told forty seconds after the worker had joined
    assert reports.notes == [Unstopped(1, 101, "shop.fetch", "timeout", 1_040 * SECOND)]
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith(
        "task 101 (step shop.fetch) was asked to stop 1s ago (timeout) and still runs"
    )
    assert "current().stop_requested" in line
    assert 'executor="process"' in line

    assert reports.update(late + SECOND, [("thread", told(1)), ("async", told(2, NOW + 1))])
    assert [each.token for each in reports.notes] == [1, 2]
    assert "CancelledError" in caplog.records[-1].getMessage()
    assert not reports.update(late + SECOND, [])
    assert reports.notes == []


def test_f4_many_flood_neither_the_log_nor_the_beat(caplog: pytest.LogCaptureFixture):
    reports = UnstoppedReports()
    many = [("async", told(token, NOW - token)) for token in range(2 * MAX_UNSTOPPED)]

    assert reports.update(NOW + STOP_US, many)

    assert len(caplog.records) == MAX_LOG_LINES + 1
    assert f"{2 * MAX_UNSTOPPED - MAX_LOG_LINES} more" in caplog.records[-1].getMessage()
    # those that were told first
    assert {each.token for each in reports.notes} == set(range(MAX_UNSTOPPED, 2 * MAX_UNSTOPPED))
