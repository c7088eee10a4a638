"""G3: one run per tick over ten simulated years: daylight saving, crashes, long absences, clocks set back."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from locktender.base.clock import SECOND
from locktender.base.schedules import ScheduledRun, ScheduleSpec, ScheduleState
from locktender.base.ticks import CronExpression, instant, moment
from locktender.kernel.schedules import LATE_US, decide

ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata")
BEGIN = instant(datetime(2025, 1, 1, tzinfo=UTC))
YEARS = 10 * 365 * 86_400 * SECOND
HOUR = 3_600 * SECOND


def local_times(cron_hour: int, cron_minute: int, zone: str) -> list[int]:
    """Every day's local time as an instant, without the code under test: by walking the minutes around it."""
    tz, found = ZoneInfo(zone), []
    day = datetime(2025, 1, 1, tzinfo=UTC).astimezone(tz).replace(tzinfo=None)
    for number in range(10 * 365 + 3):
        wanted = (day + timedelta(days=number)).replace(
            hour=cron_hour, minute=cron_minute, second=0, microsecond=0
        )
        at = wanted.replace(tzinfo=tz).astimezone(UTC) - timedelta(hours=3)
        while at.astimezone(tz).replace(tzinfo=None) < wanted:
            at += timedelta(minutes=15)
        found.append(instant(at))
    return found


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize(("hour", "minute"), [(2, 30), (1, 45)])
def test_g3_a_local_time_is_due_once_when_clocks_change(zone: str, hour: int, minute: int):
    timing = CronExpression(f"{minute} {hour} * * *", zone)
    expected = [at for at in local_times(hour, minute, zone) if BEGIN < at < BEGIN + YEARS]
    found = list(takewhile(lambda at: at < BEGIN + YEARS, timing.ticks(BEGIN)))
    assert found == expected


def test_g3_skipped_and_repeated_times_are_due_once():
    berlin = CronExpression("30 2 * * *", "Europe/Berlin")
    gap = berlin.next_after(instant(datetime(2026, 3, 29, 0, 0, tzinfo=UTC)))
    assert gap == instant(datetime(2026, 3, 29, 1, 0, tzinfo=UTC))  # 03:00 summer time
    first = berlin.next_after(instant(datetime(2026, 10, 24, 23, 0, tzinfo=UTC)))
    assert first == instant(datetime(2026, 10, 25, 0, 30, tzinfo=UTC))
    assert first is not None
    assert berlin.next_after(first) == instant(datetime(2026, 10, 26, 1, 30, tzinfo=UTC))
    # every 15 minutes is elapsed time: 25 hours of that day have 100 of them
    often = CronExpression("*/15 * * * *", "Europe/Berlin")
    at, count = instant(datetime(2026, 10, 24, 22, 0, tzinfo=UTC)) - 1, 0
    while (at := often.next_after(at) or 0) < instant(datetime(2026, 10, 25, 23, 0, tzinfo=UTC)):
        count += 1
    assert count == 100


class ScheduleWorld:
    """A schedule under leaders that come and go: each decision is stored whole, or not at all."""

    def __init__(self, spec: ScheduleSpec, seed: int) -> None:
        self.spec = spec
        self.draw = random.Random(seed)
        self.state = ScheduleState(anchor=BEGIN, last=BEGIN)
        self.made: list[int] = []
        self.missed: list[tuple[int, str]] = []
        self.ends: dict[int, int] = {}
        self.peak = 0

    def look(self, now: int, steady: int, lasts: int) -> None:
        """`steady`: a clock that is never set, by which runs last."""
        active = [run for run in self.state.runs if self.ends[run.seq] > steady]
        decision = decide("nightly", self.spec, self.state, active, now)
        if self.draw.random() < 0.2:
            return  # killed before its commit: nothing of it exists
        runs = list(decision.state.runs)
        for tick in decision.fires:
            seq = len(self.made)
            self.made.append(tick)
            if self.spec.overlap == "replace" and runs:
                self.ends[runs[-1].seq] = steady
            self.ends[seq] = steady + lasts
            runs.append(ScheduledRun(seq, f"r{seq}", tick))
        self.peak = max(self.peak, sum(end > steady for end in self.ends.values()))
        self.state = msgspec.structs.replace(decision.state, runs=tuple(runs))
        self.missed += decision.missed


_WORLDS = given(
    cron=st.sampled_from(["30 2 * * *", "0 3 * * 1-5", "0 */6 * * *", "15 1 1 * *", "0 0 29 2 *"]),
    zone=st.sampled_from(ZONES),
    overlap=st.sampled_from(["skip", "queue", "replace", "allow"]),
    catch_up=st.sampled_from(["none", "last", "all"]),
    jitter=st.sampled_from([0, 30 * SECOND]),
    seed=st.integers(0, 10_000),
)


@_WORLDS
@settings(max_examples=4, deadline=None)
def test_g3_one_run_per_tick_over_ten_years(
    cron: str, zone: str, overlap: str, catch_up: str, jitter: int, seed: int
):
    check_ten_years(cron, zone, overlap, catch_up, jitter, seed)


@pytest.mark.long
@_WORLDS
@settings(max_examples=200, deadline=None)
def test_g3_one_run_per_tick_over_two_thousand_years(
    cron: str, zone: str, overlap: str, catch_up: str, jitter: int, seed: int
):
    check_ten_years(cron, zone, overlap, catch_up, jitter, seed)


def check_ten_years(
    cron: str, zone: str, overlap: str, catch_up: str, jitter: int, seed: int
) -> None:
    spec = ScheduleSpec(
        "f",
        cron=cron,
        tz=zone,
        overlap=overlap,  # pyright: ignore[reportArgumentType]
        catch_up=catch_up,  # pyright: ignore[reportArgumentType]
        jitter_us=jitter,
    )
    world, now, steady = ScheduleWorld(spec, seed), BEGIN, 0
    while now < BEGIN + YEARS:
        # mostly a look or two a day; now and then nobody leads for weeks, or the clock is set back
        step = world.draw.choice([HOUR, 6 * HOUR, 18 * HOUR, 30 * HOUR, 20 * 24 * HOUR, -2 * HOUR])
        now, steady = max(BEGIN, now + step), steady + abs(step)
        world.look(now, steady, world.draw.choice([SECOND, 5 * HOUR, 40 * HOUR]))
    world.draw.random = lambda: 1.0  # the last look is not killed
    for look in range(20):
        later = (2 * look + 48 * 3_600) * SECOND
        world.look(BEGIN + YEARS + later, steady + later, SECOND)
    end = BEGIN + YEARS - (30 * SECOND if jitter else 0)
    ticks = list(takewhile(lambda at: at < end, CronExpression(cron, zone).ticks(BEGIN)))
    decided = [*world.made, *(tick for tick, _ in world.missed)]
    waiting = [] if world.state.queued is None else [world.state.queued]
    assert len(set(world.made)) == len(world.made)
    assert len(set(decided)) == len(decided)
    assert set(ticks) <= {*decided, *waiting}
    assert all(reason for _, reason in world.missed)
    if overlap != "allow":
        assert world.peak <= 1
    if overlap == "allow" and catch_up == "all":
        assert world.missed == []
    assert world.made == sorted(world.made)


def test_g3_a_clock_set_back_repeats_nothing():
    spec = ScheduleSpec("f", every_us=HOUR, overlap="allow")
    state = ScheduleState(anchor=BEGIN, last=BEGIN)
    first = decide("s", spec, state, (), BEGIN + HOUR)
    assert first.fires == [BEGIN + HOUR]
    again = decide("s", spec, first.state, (), BEGIN + HOUR - 30 * SECOND)
    assert (again.fires, again.missed) == ([], [])
    assert decide("s", spec, first.state, (), BEGIN + 2 * HOUR).fires == [BEGIN + 2 * HOUR]


def test_g3_of_late_ticks_catch_up_decides():
    state = ScheduleState(anchor=BEGIN, last=BEGIN)
    now = BEGIN + 5 * HOUR + 2 * LATE_US
    late = [BEGIN + n * HOUR for n in range(1, 6)]
    for catch_up, fires in (("none", []), ("last", late[-1:]), ("all", late)):
        spec = ScheduleSpec("f", every_us=HOUR, overlap="allow", catch_up=catch_up)  # pyright: ignore[reportArgumentType]
        made = decide("s", spec, state, (), now)
        assert made.fires == fires
        assert [tick for tick, _ in made.missed] == [tick for tick in late if tick not in fires]
        assert made.next_at == BEGIN + 6 * HOUR
        assert moment(late[0]).isoformat() == "2025-01-01T01:00:00+00:00"


def test_g3_queue_keeps_one_tick():
    spec = ScheduleSpec("f", every_us=HOUR, overlap="queue", catch_up="all")
    running = (ScheduledRun(1, "r1", BEGIN),)
    state = ScheduleState(anchor=BEGIN, last=BEGIN, runs=running)
    made = decide("s", spec, state, running, BEGIN + 3 * HOUR)
    assert (made.fires, made.state.queued) == ([], BEGIN + HOUR)
    assert [tick for tick, _ in made.missed] == [BEGIN + 2 * HOUR, BEGIN + 3 * HOUR]
    then = decide("s", spec, made.state, (), BEGIN + 3 * HOUR + SECOND)
    assert (then.fires, then.state.queued) == ([BEGIN + HOUR], None)
