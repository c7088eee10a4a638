"""When the items of a large map are asked for: as they can start, and after two seconds all of them."""

from __future__ import annotations

import pytest
from tests.support.worlds import (
    graph,
    items,
    needs,
    numbers,
    run_row,
    settle,
    step,
    worker_row,
    world,
)

from locktender.base.changes import End, TaskRow
from locktender.base.clock import MILLISECOND
from locktender.base.graph import Graph
from locktender.base.ids import run_of, task_id
from locktender.base.limits import Limits
from locktender.base.states import RunState, TaskState
from locktender.kernel.commit_builder import Cycle
from locktender.kernel.entries import TaskEntry
from locktender.kernel.expansion import ITEMS_PER_CYCLE, NEXT_SHARE
from locktender.kernel.scheduler import Scheduler
from locktender.kernel.timers import Defaults

NOW = 10**15
HELD_BACK_US = Defaults().hold_back_us
NEXT = ITEMS_PER_CYCLE // NEXT_SHARE
MANY = 5_000
FAILED = b'{"type":"Boom","message":"x","retryable":false}'


def leader(flow: Graph, permits: int, **more: Graph) -> Scheduler:
    scheduler = Scheduler(Limits(max_concurrent_runs=-1), term=1, owner="me")
    scheduler.graphs |= {flow.flow: flow, **more}
    scheduler.put_worker(worker_row("w", permits={"async": permits}), local=True)
    return scheduler


def settled(scheduler: Scheduler, now: int = NOW) -> list[Cycle]:
    cycles = [scheduler.cycle(now)]
    while cycles[-1].unfinished:
        cycles.append(scheduler.cycle(now))
    return cycles


def end(scheduler: Scheduler, tasks: list[TaskEntry], now: int = NOW) -> None:
    for task in tasks:
        end = End(task.id, task.token, TaskState.COMPLETED, b"1")
        assert scheduler.ended(end, now, local=True)


def test_what_cannot_start_is_not_asked_for():
    scheduler = leader(graph(items()), permits=10)
    scheduler.put_head(run_row(1, consts=numbers(MANY)))
    cycles = settled(scheduler)
    assert len(cycles[0].starts) == 10
    assert len(scheduler.lifecycle.tasks) == ITEMS_PER_CYCLE


def test_items_start_in_the_cycle_that_asks_for_them():
    scheduler = leader(graph(items()), permits=1_000)
    scheduler.put_head(run_row(1, consts=numbers(MANY)))
    first = settled(scheduler)
    running = [task for cycle in first for task in cycle.starts]
    assert len(running) == 1_000
    # When 700 end, 700 start
    end(scheduler, running[:700])
    [cycle] = settled(scheduler)
    assert len(cycle.starts) == 700
    # And the rows of most are written once, as running: all but those that were waiting and a few that wait now
    rows = [row for row in cycle.commit.tasks_new if row.state == TaskState.RUNNING]
    assert len(rows) > 700 - NEXT
    assert len(cycle.commit.tasks_new) - len(rows) < NEXT
    # In their order
    assert [task.idx for task in cycle.starts] == list(range(1_000, 1_700))


def test_after_two_seconds_all_are_asked_for():
    scheduler = leader(graph(items()), permits=10)
    scheduler.put_head(run_row(1, consts=numbers(MANY)))
    *_, last = settled(scheduler)
    assert last.next_wake is not None
    assert last.next_wake <= NOW + HELD_BACK_US
    settled(scheduler, NOW + HELD_BACK_US - 1)
    assert len(scheduler.lifecycle.tasks) == ITEMS_PER_CYCLE
    cycles = settled(scheduler, NOW + HELD_BACK_US)
    assert max(len(cycle.commit.tasks_new) for cycle in cycles) == ITEMS_PER_CYCLE
    assert len(scheduler.lifecycle.tasks) == MANY


def test_the_store_s_clock_was_set_back():
    scheduler = leader(graph(items()), permits=10)
    scheduler.put_head(run_row(1, consts=numbers(MANY)))
    settled(scheduler)
    settled(scheduler, NOW - 3_600_000_000)
    assert len(scheduler.lifecycle.tasks) == MANY


def test_a_run_of_lower_priority_does_not_come_between():
    permits = 700  # a cycle asks for no more items than that, so that other runs start in it, too
    scheduler = leader(graph(items()), permits=permits)
    scheduler.put_head(run_row(1, consts=numbers(MANY), priority=5))
    scheduler.put_head(run_row(2, consts=numbers(50)))
    running = [task for cycle in settled(scheduler) for task in cycle.starts]
    while scheduler.lifecycle.tasks and any(task.run.seq == 1 for task in running):
        assert {task.run.seq for task in running} == {1} or len(running) < permits
        end(scheduler, running)
        running = [task for cycle in settled(scheduler) for task in cycle.starts]
    assert {task.run.seq for task in running} <= {2}


def test_items_asked_for_late_stay_before_a_younger_run():
    flow = graph(items())
    scheduler = leader(flow, permits=10)
    scheduler.put_head(run_row(1, consts=numbers(MANY)))
    running = [task for cycle in settled(scheduler) for task in cycle.starts]
    younger = NOW + HELD_BACK_US // 4
    scheduler.put_head(run_row(2, consts=numbers(400), queued_at=younger))
    begun: list[int] = []
    for now in range(younger, younger + MANY // 10):
        begun += [task.run.seq for task in running]
        end(scheduler, running, now)
        running = [task for cycle in settled(scheduler, now) for task in cycle.starts]
    assert begun == [1] * MANY
    assert {task.run.seq for task in running} == {2}


@pytest.mark.parametrize("permits", [-1, 1_000])
def test_a_step_of_another_run_starts_beside_a_long_map(permits: int):
    """There are permits for both, and bodies end as fast as they start: no gate blocks it."""
    scheduler = leader(graph(items()), permits, other=graph(step(), flow="other"))
    scheduler.put_head(run_row(1, consts=numbers(50_000)))
    running = scheduler.cycle(NOW).starts
    for _ in range(3):
        end(scheduler, running)
        running = scheduler.cycle(NOW).starts
    scheduler.put_head(run_row(2, flow="other", graph="other", queued_at=NOW + 1))
    end(scheduler, running)
    assert 2 in {task.run.seq for task in scheduler.cycle(NOW + 1).starts}


def test_a_cycle_asks_for_a_bounded_number_of_items():
    """However many runs hold items back."""
    scheduler = leader(graph(items()), permits=10)
    for run in range(1, 201):
        scheduler.put_head(run_row(run, consts=numbers(2_000)))
    most = Limits().max_starts_per_cycle
    assert max(len(cycle.commit.tasks_new) for cycle in settled(scheduler)) < most + ITEMS_PER_CYCLE


def test_a_retried_map_asks_for_its_items_in_slices():
    """It has rows already, none of which says when it was opened."""
    scheduler = leader(graph(items()), permits=10)
    rows = [
        TaskRow(task_id(1, n), 0, n, TaskState.FAILED, 1, tries=9, error=FAILED, requested_at=NOW)
        for n in range(MANY)
    ]
    scheduler.put_head(run_row(1, consts=numbers(MANY), generation=1), rows=rows)
    settled(scheduler)
    assert len(scheduler.lifecycle.tasks) == MANY


@pytest.mark.parametrize("waited_us", [100 * MILLISECOND, 2_500 * MILLISECOND])
@pytest.mark.parametrize("takes_over", [False, True])
def test_the_order_survives_a_new_leader(takes_over: bool, waited_us: int):
    """Before and after all items were asked for."""
    made = world(took=40 * MILLISECOND, permits={"async": 2})
    older = made.submit(graph(items()), consts=numbers(600)).seq
    made.run(until=made.now + 100 * MILLISECOND)
    younger = made.submit(graph(items()), consts=numbers(300)).seq
    made.run(until=made.now + waited_us)
    if takes_over:
        made.lead()
    settle(made)
    order = [run_of(body.task) for body in made.bodies]
    assert order == [older] * 600 + [younger] * 300


@pytest.mark.parametrize(
    "flow",
    [
        graph(items(queue_timeout_us=10**9)),
        graph(items(pools=needs(api=1), queue_timeout_us=10**9)),
        graph(items(), sequential=True),
        graph(items(), queue_timeout_us=10**9),
    ],
)
def test_items_with_clocks_or_turns_are_asked_for_at_once(flow: Graph):
    scheduler = leader(flow, permits=10)
    scheduler.put_head(run_row(1, consts=numbers(MANY)))
    settled(scheduler)
    assert len(scheduler.lifecycle.tasks) == MANY


def test_a_cancelled_run_ends_with_the_items_held_back():
    scheduler = leader(graph(items()), permits=10)
    scheduler.put_head(run_row(1, consts=numbers(MANY)))
    running = [task for cycle in settled(scheduler) for task in cycle.starts]
    scheduler.cancel_run(1, NOW)
    settled(scheduler)
    for task in running:
        ended = End(task.id, task.token, TaskState.CANCELLED)
        scheduler.ended(ended, NOW, local=True)
    *_, last = settled(scheduler)
    assert [(each.run, each.state) for each in last.commit.runs_ended] == [(1, RunState.CANCELLED)]
    assert not scheduler.lifecycle.tasks


def test_the_audit_knows_the_age_of_items_asked_for_late():
    """They may start before a younger task that needs two slots, however often."""
    made = world(took=20 * MILLISECOND, permits={"async": 100}, rules={("pool", "p"): {"limit": 4}})
    made.submit(graph(items(pools=needs(p=1)), flow="a"), consts=numbers(1_200))
    made.run(until=made.now + 300 * MILLISECOND)
    made.submit(graph(step(pools=needs(p=2)), flow="b"))
    settle(made)


def test_every_item_starts_once():
    scheduler = leader(graph(items()), permits=64)
    scheduler.put_head(run_row(1, consts=numbers(MANY)))
    started: list[int] = []
    running = [task for cycle in settled(scheduler) for task in cycle.starts]
    while running:
        started += [task.idx for task in running]
        end(scheduler, running)
        running = [task for cycle in settled(scheduler) for task in cycle.starts]
    assert started == list(range(MANY))
    assert not scheduler.lifecycle.expanding
