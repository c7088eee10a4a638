"""B15: idle workers end themselves after `idle_exit`, any worker after `max_lifetime` or `max_tasks`."""

from __future__ import annotations

import asyncio

import pytest

from locktender.base.clock import SECOND, ManualClock
from locktender.base.config import Settings
from locktender.worker.lifetime import NO_END, Bounds, Life, Lifetime, ending, next_look

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
IDLE = Bounds(idle_us=5 * MINUTE)
OLD = Bounds(age_us=HOUR)
MANY = Bounds(tasks=1_000)
ALL = Bounds(5 * MINUTE, HOUR, 1_000)


@pytest.mark.parametrize(
    ("bounds", "life", "now", "expected"),
    [
        # Nothing bounds it: it lives on.
        (Bounds(), Life(0, 0, tasks=10**9), 10**15, None),
        # Idle: nothing in flight and no offer for so long.
        (IDLE, Life(0, 0), 5 * MINUTE - 1, None),
        (IDLE, Life(0, 0), 5 * MINUTE, "idle for 5m00s"),
        (IDLE, Life(0, 3 * MINUTE), 8 * MINUTE - 1, None),
        (IDLE, Life(0, 3 * MINUTE), 8 * MINUTE, "idle for 5m00s"),
        (IDLE, Life(0, 0, in_flight=1), 10**12, None),  # a long body is not idleness
        (IDLE, Life(0, 0), 7 * MINUTE, "idle for 7m00s"),
        # Old: whatever it does.
        (OLD, Life(0, 0), HOUR - 1, None),
        (OLD, Life(0, 0, in_flight=9), HOUR, "lived 1h00m"),
        (OLD, Life(7, HOUR), HOUR + 6, None),
        (OLD, Life(7, HOUR), HOUR + 7, "lived 1h00m"),
        # Worn: so many tasks have ended.
        (MANY, Life(0, 0, tasks=999, in_flight=50), 10**15, None),
        (MANY, Life(0, 0, tasks=1_000), 1, "ran 1,000 tasks"),
        (MANY, Life(0, 0, tasks=1_049, in_flight=3), 1, "ran 1,049 tasks"),
        # Several: the firmest reason is named.
        (ALL, Life(0, 0, tasks=1_000), 2 * HOUR, "ran 1,000 tasks"),
        (ALL, Life(0, 0, tasks=999), 2 * HOUR, "lived 2h00m"),
        (ALL, Life(0, 0, tasks=999), 5 * MINUTE, "idle for 5m00s"),
        (ALL, Life(0, 0, tasks=999, in_flight=1), 5 * MINUTE, None),
    ],
)
def test_b15_when_a_worker_ends(bounds: Bounds, life: Life, now: int, expected: str | None):
    assert ending(life, bounds, now) == expected


@pytest.mark.parametrize(
    ("bounds", "life", "now", "expected"),
    [
        (Bounds(), Life(0, 0), 5, None),
        (MANY, Life(0, 0), 5, None),  # no time ends it: it is looked at after each end
        (IDLE, Life(0, 0), 5, 5 * MINUTE),
        (IDLE, Life(0, 7), 9, 5 * MINUTE + 7),
        (IDLE, Life(0, 7, in_flight=1), 9, 5 * MINUTE + 9),
        (IDLE, Life(0, 0), 6 * MINUTE, 6 * MINUTE),  # due already
        (OLD, Life(3, 9, in_flight=1), 9, HOUR + 3),
        (ALL, Life(0, 0), 1, 5 * MINUTE),
        (ALL, Life(0, 59 * MINUTE), 59 * MINUTE, HOUR),
    ],
)
def test_b15_when_to_look_again(bounds: Bounds, life: Life, now: int, expected: int | None):
    assert next_look(life, bounds, now) == expected


@pytest.mark.parametrize("bounds", [IDLE, OLD, ALL])
@pytest.mark.parametrize("busy_at", [0, 90 * SECOND, 59 * MINUTE])
def test_b15_checks_at_due_times_are_never_late_or_early(bounds: Bounds, busy_at: int):
    life, now = Life(0, busy_at), busy_at
    at = next_look(life, bounds, now)

    assert at is not None
    assert ending(life, bounds, at) is not None
    assert ending(life, bounds, at - 1) is None


async def test_b15_a_worker_counts_its_own_life():
    clock = ManualClock()
    settings = Settings(idle_exit_us=5 * MINUTE, max_lifetime_us=HOUR, max_tasks=3)
    life = Lifetime(settings, clock)
    assert life.bounded
    assert life.room == NO_END  # nobody would end it
    ended = asyncio.create_task(life.passed(lambda: 0))
    await asyncio.sleep(0)

    clock.advance(4 * MINUTE)
    life.began(clock.monotonic())
    assert life.room == 2
    clock.advance(4 * MINUTE)
    assert life.over(clock.monotonic(), in_flight=0) is None  # it was wanted four minutes ago
    life.ended(clock.monotonic())
    clock.advance(5 * MINUTE)
    assert life.over(clock.monotonic(), in_flight=1) is None
    assert life.over(clock.monotonic(), in_flight=0) == "idle for 5m00s"
    life.began(clock.monotonic())
    life.began(clock.monotonic())
    assert life.room == 0
    assert life.over(clock.monotonic(), in_flight=0) == "ran 3 tasks"
    assert life.next_look(clock.monotonic(), in_flight=0) == clock.monotonic() + 5 * MINUTE
    assert await ended == "ran 3 tasks"


async def test_b15_that_enough_tasks_were_begun_is_noticed_at_once():
    life = Lifetime(Settings(max_tasks=2), ManualClock())
    ended = asyncio.create_task(life.passed(lambda: 2))
    await asyncio.sleep(0)
    life.began(0)
    life.began(0)
    for _ in range(3):  # not by looking every now and then: the clock stands still
        await asyncio.sleep(0)

    assert ended.done()
    assert await ended == "ran 2 tasks"


async def test_b15_what_is_being_accepted_is_no_longer_to_be_offered():
    life = Lifetime(Settings(max_tasks=3), ManualClock())
    assert life.offerable == NO_END  # nobody would end it
    ended = asyncio.create_task(life.passed(lambda: 0))
    await asyncio.sleep(0)

    life.accepting(2)
    assert (life.room, life.offerable) == (3, 1)
    life.began(0)
    assert (life.room, life.offerable) == (2, 1)
    life.accepting(0)  # the other was withdrawn in time
    assert (life.room, life.offerable) == (2, 2)
    life.accepting(9)
    assert life.offerable == 0
    ended.cancel()


def test_b15_by_default_nothing_ends_a_worker():
    clock = ManualClock()
    life = Lifetime(Settings(), clock)
    clock.advance(10_000 * HOUR)

    assert not life.bounded
    assert life.over(clock.monotonic(), in_flight=0) is None
    assert life.next_look(clock.monotonic(), in_flight=0) is None
