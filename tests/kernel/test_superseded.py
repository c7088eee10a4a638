"""Which events of no run may go: those that say nothing about what is so at the end."""

from __future__ import annotations

from itertools import groupby

import pytest
from tests.support.history_writer import HistoryWriter

from locktender.base.clock import SECOND
from locktender.base.events import Event
from locktender.observe.prune import KEPT_US, superseded


def left(story: HistoryWriter, first_of_a_run: int = 0) -> list[tuple[str, str]]:
    """The subjects and states of what stays."""
    rows = [list(row) for _, row in groupby(story.events, key=lambda event: event.seq)]
    gone = set(superseded(rows, first_of_a_run))
    return [(each.subject, each.after) for each in story.events if each.seq not in gone]


@pytest.fixture
def story() -> HistoryWriter:
    story = HistoryWriter()
    story.lead("a")
    return story


def asked(story: HistoryWriter, kind: str, name: str, limit: int) -> None:
    data = {"kind": kind, "name": name, "rule": {"limit": limit}}
    story.event("limit", "", "asked", actor="client", data=data)


def test_the_last_leader_and_its_limits_stay(story: HistoryWriter):
    story.pool("db", 3)
    story.lead("b")
    story.pool("db", 1)
    story.pool("db", 2)
    story.pool("api", 5)
    assert left(story) == [("leader", "b"), ("limit", "in_force"), ("limit", "in_force")]


def test_a_limit_that_was_unset_does_not_come_back(story: HistoryWriter):
    with story.cycle():
        story.pool("db", 3)
        story.pool("api", 3)
    story.limit("pool", "db", None)
    assert left(story) == [("leader", "a"), *[("limit", "in_force")] * 3]


def test_what_was_asked_for_stays_until_it_is_in_force(story: HistoryWriter):
    asked(story, "active", "", 5)
    asked(story, "active", "", 6)
    assert left(story) == [("leader", "a"), ("limit", "asked")]
    story.limit("active", "", {"limit": 6})
    assert left(story) == [("leader", "a"), ("limit", "in_force")]


def test_workers_that_live_stay_with_their_last_change(story: HistoryWriter):
    story.worker("v")
    story.worker("w")
    story.worker("w", "changed")
    story.worker("w", "changed")
    story.worker("w", "stalled")
    story.worker("w", "resumed")
    assert left(story)[1:] == [
        ("worker", "joined"),
        ("worker", "joined"),
        ("worker", "changed"),
        ("worker", "resumed"),
    ]


def test_a_worker_that_left_long_ago_goes(story: HistoryWriter):
    story.worker("w")
    story.worker("w", "left")
    story.at += KEPT_US // 2
    story.worker("v")
    assert left(story)[1:] == [("worker", "left"), ("worker", "joined")]
    story.at += KEPT_US
    story.worker("u")
    assert left(story)[1:] == [("worker", "joined"), ("worker", "joined")]


def test_a_worker_that_a_kept_row_names_is_gone_again(story: HistoryWriter):
    with story.cycle():
        story.worker("w")
        story.worker("v")
    story.worker("w", "lost")
    story.at += 2 * KEPT_US
    story.worker("u")
    assert ("worker", "lost") in left(story)


def test_the_clock_stays_while_a_run_may_have_moved_with_it(story: HistoryWriter):
    story.event("clock", "", "jumped", data={"by_us": SECOND})
    jumped: Event = story.events[-1]
    story.event("term", "", "failed", data={"reason": "x"})
    story.event("request", "", "refused", data={"reason": "x"})
    assert left(story, jumped.seq) == [("leader", "a"), ("clock", "jumped")]
    assert left(story, jumped.seq + 1) == [("leader", "a")]
