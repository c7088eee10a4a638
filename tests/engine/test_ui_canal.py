"""Rates and charts of the overview, of the times of runs."""

from __future__ import annotations

import pytest

from locktender.base.clock import SECOND
from locktender.server.ui.canal import RunRates, rates, series
from locktender.server.ui.reading import BUCKETS, MAX_RUNS
from locktender.store.protocol import RecentRun, Traffic

NOW = 10**15
LATELY = [
    RecentRun("queued", NOW - 5 * SECOND, 0, 0),
    RecentRun("running", NOW - 50 * SECOND, NOW - 20 * SECOND, 0),
    RecentRun("failed", NOW - 90 * SECOND, NOW - 80 * SECOND, NOW - 10 * SECOND),
    RecentRun("cancelled", NOW - 90 * SECOND, 0, NOW - 10 * SECOND),
    RecentRun("succeeded", NOW - 900 * SECOND, NOW - 300 * SECOND, NOW - 70 * SECOND),
]


@pytest.mark.parametrize(
    ("read", "oldest_at", "found"),
    [
        (5, NOW - 900 * SECOND, RunRates(2, 1, 2, 1)),
        (MAX_RUNS, NOW - 900 * SECOND, RunRates(2, 1, 2, 1)),
        # More came in the last 15 seconds than were read: what is known is of these seconds.
        (MAX_RUNS, NOW - 15 * SECOND, RunRates(4, 0, 8, 4)),
    ],
)
def test_rates_are_of_the_last_minute_or_of_the_time_read(
    read: int, oldest_at: int, found: RunRates
):
    assert rates(Traffic(NOW, [], LATELY, read, oldest_at)) == found


def test_charts_have_ends_and_waits_of_a_quarter_of_an_hour():
    found = series(Traffic(NOW, [], LATELY, 5, NOW - 900 * SECOND))
    assert len(found.times) == BUCKETS
    assert (sum(found.succeeded), sum(found.failed)) == (8, 4)
    assert [each for each in found.median if each is not None] == [600, 10, 30]
