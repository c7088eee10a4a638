"""The store's clock is set: rates, back-offs and time-outs go on as if it had not been (F6)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.support.worlds import graph, items, needs, numbers, run_row, settle, step, world

from locktender.base.clock import SECOND
from locktender.base.graph import RetryPolicy
from locktender.base.ids import run_of
from locktender.base.limits import Limits
from locktender.base.states import RunState, TaskState
from locktender.kernel.clock_jump import ClockWatch, move_instants, restore_held
from locktender.kernel.scheduler import Scheduler
from locktender.simulate.world import SimWorld

JUMPS = [30 * SECOND, -30 * SECOND]
CHANGES = [False, True]


def test_only_a_certain_jump_counts():
    watch = ClockWatch()
    for store, before, after in (
        (100, 0, 0),
        (103, 3, 3),
        (4_000, 3_900, 3_900),
        (4_002, 3_901, 3_901),
    ):
        assert watch.observe(store * SECOND, before * SECOND, after * SECOND) == 0
    assert watch.observe(4_033 * SECOND, 3_902 * SECOND, 3_902 * SECOND) == 30 * SECOND
    assert watch.observe(4_004 * SECOND, 3_903 * SECOND, 3_903 * SECOND) == -30 * SECOND


def test_a_leader_paused_while_it_asks_sees_no_jump():
    watch = ClockWatch()
    watch.observe(100 * SECOND, 50 * SECOND, 50 * SECOND)
    assert watch.observe(101 * SECOND, 51 * SECOND, 60 * SECOND) == 0  # answered at once, seen late
    assert watch.observe(111 * SECOND, 61 * SECOND, 61 * SECOND) == 0
    # asked at once, answered late
    assert watch.observe(121 * SECOND, 62 * SECOND, 71 * SECOND) == 0


def jumps(made: SimWorld, by: int, *, changes: bool) -> None:
    """The clock is set after 2.5 s; where the leader `changes`, another leads half a second later."""
    made.plan(2 * SECOND + SECOND // 2, lambda: made.jump_clock(by))
    if changes:
        made.plan(2 * SECOND + SECOND // 2, made.kill_leader)
        made.plan(3 * SECOND, made.lead)


@pytest.mark.parametrize("by", JUMPS)
@pytest.mark.parametrize("changes", CHANGES)
def test_a_rate_neither_stands_still_nor_bursts(by: int, changes: bool):
    rate = {"count": 1, "per_us": SECOND, "burst": 1}
    made = world(rules={("pool", "api"): {"limit": -1, "rate": rate}})
    began = made.steady
    made.submit(graph(items("api", pools=needs(api=1))), consts=numbers(8))
    jumps(made, by, changes=changes)
    settle(made)
    starts = sorted(body.start for body in made.bodies)
    pauses = [later - earlier for earlier, later in pairwise(starts)]
    assert starts[-1] - began <= 12 * SECOND
    if changes and by > 0:
        # What a leader reads is older than the jump by its own clock: the bucket is full once.
        assert sorted(pauses)[1] >= SECOND - 10_000
    else:
        assert min(pauses) >= SECOND - 10_000


@pytest.mark.parametrize("by", JUMPS)
@pytest.mark.parametrize("changes", CHANGES)
def test_a_back_off_lasts_as_long_as_it_should(by: int, changes: bool):
    tries: list[int] = []

    def fails_once(_row: object, _node: object) -> TaskState:
        tries.append(1)
        return TaskState.FAILED if len(tries) == 1 else TaskState.COMPLETED

    made = world(fate=fails_once)
    made.submit(graph(step("flaky", retry=RetryPolicy(1, 10 * SECOND, jitter=False))))
    jumps(made, by, changes=changes)
    settle(made)
    first, second = made.bodies
    # A new leader cannot know for how long nobody led.
    assert second.start - first.end <= 14 * SECOND
    if not (changes and by > 0):
        assert second.start - first.end >= 9 * SECOND


@pytest.mark.parametrize("by", JUMPS)
def test_a_deadline_is_neither_early_nor_late(by: int):
    made = world(took=60 * SECOND)
    began = made.steady
    made.submit(graph(step("slow")), deadline=10 * SECOND)
    jumps(made, by, changes=False)
    made.run(until=made.steady + 20 * SECOND)
    [ended] = [body.end for body in made.bodies]
    assert 10 * SECOND <= ended - began <= 12 * SECOND


def ended_at(lead: Scheduler, within: range) -> int:
    """The first of these instants by which the held run has ended."""
    return next(at for at in within if [end.run for end in lead.cycle(at).commit.runs_ended] == [1])


@pytest.mark.parametrize("by", JUMPS)
def test_the_deadline_of_a_held_run_moves_with_the_clock(by: int):
    now = 1_000 * SECOND
    lead = Scheduler(Limits(), term=1, owner="me")
    row = run_row(state=RunState.HELD, queued_at=now, deadline_at=now + 10 * SECOND)
    restore_held(lead, [row], (), {}, now)
    move_instants(lead, by)
    now += by
    assert ended_at(lead, range(now, now + 60 * SECOND, SECOND)) == now + 10 * SECOND


def test_a_new_leader_bounds_deadlines_of_held_runs():
    now = 10_000 * SECOND
    row = run_row(state=RunState.HELD, queued_at=now, deadline_at=now + 10 * SECOND)
    now -= 3_600 * SECOND
    lead = Scheduler(Limits(), term=1, owner="me")
    restore_held(lead, [row], (), {}, now)
    assert ended_at(lead, range(now, now + 60 * SECOND, SECOND)) == now + 10 * SECOND


@pytest.mark.parametrize("by", [*JUMPS, -3_600 * SECOND])
@pytest.mark.parametrize("changes", CHANGES)
def test_a_silent_worker_is_asked_again_after_its_pause(by: int, changes: bool):
    made = world()
    began = made.steady
    made.workers["w0"].deaf = True
    made.submit(graph(step()))
    made.run(until=made.steady + 2 * SECOND + SECOND // 4)
    assert made.model.workers["w0"].unanswered == 1  # its pause has just begun
    made.jump_clock(by)
    if changes:
        made.kill_leader()
        made.lead()
    made.workers["w0"].deaf = False
    settle(made)
    [body] = made.bodies
    # A new leader cannot know how much of the pause has passed: it bounds it by the longest.
    assert body.start - began <= (70 if changes else 5) * SECOND
    if not changes:
        assert body.start - began >= 4 * SECOND


@pytest.mark.parametrize("by", JUMPS)
def test_offers_after_a_jump_count_as_unanswered(by: int):
    made = world()
    made.workers["w0"].deaf = True
    made.submit(graph(step()))
    made.run(until=made.steady + 2 * SECOND + SECOND // 4)
    made.jump_clock(by)
    made.run(until=made.steady + 8 * SECOND)
    assert made.model.workers["w0"].unanswered == 2


@pytest.mark.parametrize("by", JUMPS)
@pytest.mark.parametrize("deaf", [False, True])
def test_a_dispatch_deadline_is_neither_early_nor_late(by: int, deaf: bool):
    made = world()
    began = made.steady
    if deaf:
        made.workers["w0"].deaf = True
    else:
        made.kill_worker("w0")
    made.submit(graph(step()), dispatch_deadline=10 * SECOND)
    jumps(made, by, changes=False)
    made.run(until=began + 20 * SECOND)
    [run] = made.model.runs.values()
    assert run.state == "failed"
    [failed] = [event.at for event in made.model.events if event.after == "failed" and event.task]
    assert 10 * SECOND <= failed - by - began <= 15 * SECOND


@pytest.mark.parametrize("by", JUMPS)
def test_a_run_without_a_place_goes_on_after_a_jump(by: int):
    """Its back-off ended while it had no place, and the clock was set before it had one again."""
    tries: list[int] = []

    def fails_once(_row: object, _node: object) -> TaskState:
        tries.append(1)
        return TaskState.FAILED if len(tries) == 1 else TaskState.COMPLETED

    made = world(fate=fails_once)
    made.submit(graph(step("flaky", retry=RetryPolicy(1, SECOND, jitter=False))))
    made.run(until=made.steady + SECOND // 2)
    made.kill_worker("w0")
    made.run(until=made.steady + 60 * SECOND)
    made.jump_clock(by)
    made.run(until=made.steady + 2 * SECOND)
    made.add_worker("late")
    began = made.steady
    made.run(until=began + 10 * SECOND)
    assert [body.worker for body in made.bodies][1:] == ["late"]


@pytest.mark.parametrize("by", JUMPS)
@pytest.mark.parametrize("changes", CHANGES)
def test_who_comes_after_a_jump_stands_behind_those_who_wait(by: int, changes: bool):
    made = world(rules={("pool", "db"): {"limit": 1}}, took=lambda _rng, _node: SECOND)
    made.submit(graph(items("early", pools=needs(db=1))), consts=numbers(6))
    jumps(made, by, changes=changes)
    made.plan(4 * SECOND, lambda: made.submit(graph(step("late", pools=needs(db=1)))))
    settle(made)
    runs = [run_of(body.task) for body in sorted(made.bodies, key=lambda body: body.start)]
    assert runs == [1] * 6 + [2]
