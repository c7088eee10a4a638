"""D4: how much each worker has had, and when the leader's own is ahead of an equal one."""

from __future__ import annotations

import itertools

import pytest

from locktender.base.clock import MILLISECOND, SECOND
from locktender.kernel.tally import A_WHILE_US, FEW, SLACK, SPAN, Tally

tasks = itertools.count(1)


def tally(**given: int) -> Tally:
    """Counts as if all had been there from the beginning; the second starts where the first is, at one."""
    made = Tally()
    for turn in range(max(given.values())):
        for worker, count in given.items():
            if turn < count:
                give(made, worker)
    return made


def give(counted: Tally, worker: str) -> int:
    counted.gave(worker, task := next(tasks), 0, offered=False)
    return task


@pytest.mark.parametrize(
    ("own", "other", "ahead"),
    [
        (1, 1, False),
        (SLACK, 1, False),  # so few are no imbalance
        (SLACK + 1, 1, False),
        (SLACK + 2, 1, True),
        (120 + SLACK, 90, False),
        (121 + SLACK, 90, True),
        (90, 120, False),
    ],
)
def test_d4_ahead_is_a_third_more_than_an_equal_worker(own: int, other: int, ahead: bool):
    counted = tally(own=own, other=other)
    assert counted.ahead("own", "other") is ahead


@pytest.mark.parametrize(
    ("own_ms", "other_ms", "slower"),
    [
        (20, 20, False),
        (20, 35, False),  # a busy loop explains as much
        (20, 60, True),
        (200, 290, False),
        (200, 320, True),
        (200, 100, False),
    ],
)
def test_d4_a_slower_worker_is_no_equal_and_rightly_gets_fewer(
    own_ms: int, other_ms: int, slower: bool
):
    counted = Tally()
    for _ in range(FEW):
        assert not counted.slower("other", "own")  # the first bodies of a process take longest
        counted.lasted("own", own_ms * MILLISECOND)
        counted.lasted("other", other_ms * MILLISECOND)
    assert counted.slower("other", "own") is slower


def test_d4_one_slow_task_does_not_make_a_slow_worker():
    counted = Tally()
    for worker in ("own", "other"):
        for _ in range(2 * FEW):
            counted.lasted(worker, 20 * MILLISECOND)
    counted.lasted("other", 500 * MILLISECOND)
    assert not counted.slower("other", "own")


def test_d4_who_comes_later_starts_at_the_present():
    counted = tally(own=500, other=400)
    assert not counted.ahead("own", "late")
    give(counted, "late")
    assert counted.ahead("own", "late") is counted.ahead("own", "other") is False


@pytest.mark.parametrize(("permits", "others"), [(10, 10), (10, 5), (100, 10)])
def test_d4_shares_are_compared_by_permit(permits: int, others: int):
    counted = tally(own=10 * permits, other=10 * others)
    assert not counted.ahead("own", "other", permits, others)
    for _ in range(4 * permits + SLACK):
        give(counted, "own")
    assert counted.ahead("own", "other", permits, others)


def test_d4_who_was_gone_on_without_has_nothing_to_catch_up():
    counted = tally(own=1_000, other=100)
    counted.excuse("own", "other")
    assert not counted.ahead("own", "other")
    taken = 0
    while not counted.ahead("own", "other"):
        give(counted, "own")
        taken += 1
    assert taken <= SLACK + 3


def test_d4_what_was_long_ago_does_not_count():
    """One that was busy with other work for an hour is not to be given all that comes in the next."""
    counted = tally(own=10, other=10 * SPAN)
    more = 0
    while not counted.ahead("own", "other"):
        give(counted, "own")
        more += 1
    assert more <= 2 * SPAN


def test_d4_what_is_in_hand_is_waited_for():
    counted = Tally()
    assert counted.awaited_until("other", "own", SECOND) is None
    counted.gave("other", 1, 100, offered=True)
    counted.gave("other", 2, 200, offered=True)
    assert counted.awaited_until("other", "own", SECOND) == 100 + SECOND  # since the first of them
    counted.answered("other", 1, 300)
    counted.answered("other", 2, 400)
    assert counted.awaited_until("other", "own", SECOND) == 0  # nobody knows how long bodies take
    counted.lasted("own", 20 * MILLISECOND)
    expected = 400 + A_WHILE_US + 40 * MILLISECOND  # since the last
    assert counted.awaited_until("other", "own", SECOND) == expected
    counted.lasted("own", 2 * SECOND)
    assert counted.awaited_until("other", "own", SECOND) == 0
    counted.left("other", 1)
    counted.left("other", 2)
    counted.left("other", 3)  # given before anybody counted
    assert counted.awaited_until("other", "own", SECOND) is None
    assert counted.in_flight == 0


def test_d4_bodies_that_take_longer_than_here_are_stuck():
    counted = Tally()
    counted.lasted("own", 20 * MILLISECOND)
    for task, since in ((1, 0), (2, SECOND), (3, 2 * SECOND)):
        counted.gave("other", task, since, offered=False)
    assert counted.stuck("other", "own", 2 * SECOND) == 2
    assert counted.stuck("nobody", "own", 2 * SECOND) == 0


def test_d4_no_more_than_a_round_is_to_be_caught_up():
    counted = tally(own=400, other=10)
    counted.forgive("own", "other", 1, 1, 8)
    assert counted.ahead("own", "other")
    for _ in range(9):
        give(counted, "other")
    assert not counted.ahead("own", "other")
    counted.forgive("own", "nobody", 1, 1, 8)
    assert not counted.ahead("own", "nobody")


def test_d4_a_worker_that_left_is_forgotten():
    counted = tally(own=100, other=10)
    counted.forget("other")
    assert not counted.ahead("own", "other")
    assert counted.in_flight == 100
    counted.clear()
    assert counted.in_flight == 0
