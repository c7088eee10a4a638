"""The clock of the dispatch deadline. Tasks with no other gate have it in their rows: it costs nothing to keep."""

from __future__ import annotations

import pytest
from tests.support.worlds import graph, items, needs, numbers, run_row, step, world

from locktender.base.changes import End, TaskRow
from locktender.base.clock import SECOND
from locktender.base.graph import Graph
from locktender.base.ids import run_of
from locktender.base.limits import Limits, PauseRule, PoolRule
from locktender.base.model import WorkerRow
from locktender.base.states import TaskState
from locktender.kernel.lifecycle import Defaults
from locktender.kernel.scheduler import Scheduler
from locktender.kernel.timeouts import FIRST_TASKS, MAX_CLOCKS_STORED
from locktender.simulate.world import SimWorld

NOW = 10**15
ON_GPU = {"gpu": "a100"}


IN_POOL = graph(items(pools=needs(wide=1)))


def waiting(flow: Graph, count: int, limits: Limits | None = None) -> Scheduler:
    """A leader with a map of `count` items for which there is no worker."""
    defaults = Defaults(hold_back_us=0)
    scheduler = Scheduler(limits or Limits(), term=1, owner="test", defaults=defaults)
    scheduler.graphs[flow.flow] = flow
    scheduler.put_head(run_row(1, consts=numbers(count)))
    while scheduler.cycle(NOW).unfinished:
        pass
    return scheduler


def submitted(sim: SimWorld, flow: Graph, count: int) -> int:
    row = sim.submit(flow, consts=numbers(count))
    assert row is not None
    return row.seq


def rows_of(sim: SimWorld, run: int) -> list[TaskRow]:
    return [row for task, row in sim.model.tasks.items() if run_of(task) == run]


def test_a_waiting_map_writes_nothing_and_sets_no_timers():
    # Given 500 items that lack only a worker
    scheduler = waiting(graph(items()), 500)
    timers = len(scheduler.lifecycle.timers)
    # When a minute passes
    for second in range(60):
        now = NOW + second * SECOND
        demand = scheduler.sweep(now)
        commit = scheduler.cycle(now).commit
        # Then all of them are demand, and nothing was written for it
        assert (demand.total, demand.wants[0].since) == (500, NOW)
        assert commit.tasks_saved == []
    assert len(scheduler.lifecycle.timers) == timers


@pytest.mark.parametrize("deadline", [2 * SECOND, 30 * SECOND, 300 * SECOND])
@pytest.mark.parametrize("leaders", [1, 3])
@pytest.mark.parametrize("flow", [graph(items(needs=ON_GPU)), graph(step(needs=ON_GPU))])
def test_b7_the_clock_runs_from_the_request_also_over_leaders(
    deadline: int, leaders: int, flow: Graph
):
    sim = world(defaults=Defaults(dispatch_deadline_us=deadline))
    run = submitted(sim, flow, 20)
    sim.run(until=sim.now + SECOND // 10)
    rows = rows_of(sim, run)
    for _ in range(1, leaders):
        sim.run(until=sim.now + deadline // 4)
        sim.lead()
    asked = rows[0].requested_at
    sim.run(until=asked + deadline - SECOND // 10)
    assert {row.state for row in rows_of(sim, run)} == {TaskState.REQUESTED}
    sim.run(until=asked + deadline + 2 * SECOND)
    found = rows_of(sim, run)
    assert {row.state for row in found if b"capacity" in (row.error or b"")} == {TaskState.FAILED}
    assert sim.model.runs[run].state == "failed"


def test_b7_an_item_that_stands_aside_lacks_no_worker_yet():
    # Given a sequential map whose first item runs for longer than the deadline
    flow = graph(items(), sequential=True, dispatch_deadline_us=30 * SECOND)
    scheduler = Scheduler(Limits(), term=1, owner="test")
    scheduler.graphs[flow.flow] = flow
    scheduler.put_worker(WorkerRow("w", "host", 1, "0", {"async": 1}, 1, -1), local=True)
    scheduler.put_head(run_row(1, consts=numbers(2)))
    [first] = scheduler.cycle(NOW).starts
    now = NOW + 60 * SECOND
    # When it ends, and no worker is left for the second
    scheduler.ended(End(first.id, first.token, "completed", b"1"), now, local=True)
    scheduler.worker_left("w", "done")
    [second] = scheduler.lifecycle.tasks.values()
    for later in (0, 1, 29):
        scheduler.sweep(now + later * SECOND)
        scheduler.cycle(now + later * SECOND)
        assert second.state == TaskState.REQUESTED
    assert now <= second.eligible_at <= now + SECOND
    # Then it fails a deadline after its own turn came
    scheduler.cycle(second.eligible_at + 30 * SECOND)
    assert second.state == TaskState.FAILED


def test_a_long_map_in_a_pool_with_room_writes_little():
    # Given items that a pool would let pass: since when each lacks only a worker is in no row
    scheduler = waiting(IN_POOL, 5_000)
    saved: list[int] = []
    # When two minutes pass
    for second in range(120):
        now = NOW + second * SECOND
        demand = scheduler.sweep(now)
        saved.append(len(scheduler.cycle(now).commit.tasks_saved))
        # Then all of them are demand at every sweep
        assert (demand.total, demand.wants[0].since) == (5_000, NOW if second else now)
    # And the first clocks are written at once, the others after a minute, and never many at a time
    assert sum(saved[:60]) == FIRST_TASKS
    assert max(saved) == MAX_CLOCKS_STORED
    assert sum(saved) == 5_000
    assert {task.eligible_at for task in scheduler.lifecycle.tasks.values()} == {NOW}


@pytest.mark.parametrize("deadline", [2 * SECOND, 30 * SECOND, 1_000 * SECOND])
@pytest.mark.parametrize("taken_over", [False, True])
def test_b7_a_long_map_in_a_pool_fails_at_its_deadline(deadline: int, taken_over: bool):
    sim = world(defaults=Defaults(dispatch_deadline_us=deadline))
    run = submitted(sim, graph(items(pools=needs(wide=1), needs=ON_GPU)), 3 * FIRST_TASKS)
    sim.run(until=sim.now + SECOND // 10)
    [asked] = {row.requested_at for row in rows_of(sim, run)}
    if taken_over:
        sim.run(until=asked + deadline // 2)
        sim.lead()
    sim.run(until=asked + deadline - SECOND // 10)
    assert {row.state for row in rows_of(sim, run)} == {TaskState.REQUESTED}
    sim.run(until=asked + deadline + 2 * SECOND)
    failed = [row for row in rows_of(sim, run) if row.state == TaskState.FAILED]
    # One second late at most: that is how often the leader looks.
    assert failed
    assert {b"capacity" in (row.error or b"") for row in failed} == {True}
    assert sim.model.runs[run].state == "failed"


def test_b7_a_paused_run_does_not_share_the_clock_of_its_lane():
    # Given a long lane that lacks a worker, and a run in it that is paused for half an hour
    scheduler = waiting(IN_POOL, 3 * FIRST_TASKS)
    scheduler.put_head(run_row(2, consts=numbers(3 * FIRST_TASKS)))
    while scheduler.cycle(NOW).unfinished:
        pass
    scheduler.set_limits(Limits(paused_runs={2: PauseRule("me", NOW)}), [], NOW)
    resumed = NOW + 1_800 * SECOND
    for second in range(0, 1_800, 30):
        scheduler.sweep(NOW + second * SECOND)
        scheduler.cycle(NOW + second * SECOND)
    # When it goes on
    scheduler.set_limits(Limits(), [], resumed)
    for second in range(0, 120, 10):
        scheduler.sweep(resumed + second * SECOND)
        scheduler.cycle(resumed + second * SECOND)
    # Then its own clock runs from there
    clocks = {task.run.seq: set[int]() for task in scheduler.lifecycle.tasks.values()}
    for task in scheduler.lifecycle.tasks.values():
        clocks[task.run.seq].add(task.eligible_at)
    assert clocks[1] == {NOW}
    assert min(clocks[2]) >= resumed


def test_b7_items_blocked_by_their_pool_have_no_clock():
    room = 2 * FIRST_TASKS
    limits = Limits(pools={"wide": PoolRule(limit=room)})
    scheduler = waiting(IN_POOL, 3 * FIRST_TASKS, limits)
    for second in range(120):
        demand = scheduler.sweep(NOW + second * SECOND)
        scheduler.cycle(NOW + second * SECOND)
        assert demand.total == room
    with_clock = [task for task in scheduler.lifecycle.tasks.values() if task.eligible_at]
    assert [task.idx for task in with_clock] == list(range(room))
