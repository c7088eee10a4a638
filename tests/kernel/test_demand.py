"""Demand: tasks that lack only a worker, by their needs, without those that present workers will take."""

from __future__ import annotations

import msgspec
from tests.support.worlds import worker_row

from locktender.base.model import WorkerRow
from locktender.kernel.demand import Demand, WaitingTasks, demand_of
from locktender.kernel.gates.worker import Requirement
from locktender.kernel.placement import WorkerSet

GPU = (("gpu", "a100"),)


def requirement(
    step: str = "fetch", executor: str = "async", needs: tuple[tuple[str, str], ...] = ()
):
    return Requirement(executor, step, "s1", needs)


def worker_set(*rows: WorkerRow) -> WorkerSet:
    found = WorkerSet()
    for row in rows:
        found.put(row)
    return found


def test_without_waiters_there_is_no_demand():
    assert demand_of(worker_set(worker_row("w")), {}) == Demand(0, (), 1)


def test_demand_is_told_by_executor_labels_and_step():
    waiting = {
        requirement(): WaitingTasks(3, 20),
        requirement("train", "process", GPU): WaitingTasks(2, 10),
        requirement("store"): WaitingTasks(4, 30),
    }

    demand = demand_of(worker_set(worker_row("w", permits={"async": 1})), waiting)

    assert demand.total == 9
    assert [(want.step, want.tasks, want.since) for want in demand.wants] == [
        ("train", 2, 10),
        ("fetch", 3, 20),
        ("store", 4, 30),
    ]
    assert [want.workers for want in demand.wants] == [0, 1, 1]


def test_a_worker_with_another_step_version_does_not_match():
    old = msgspec.structs.replace(worker_row("old"), steps={"fetch": "s0"})
    new = msgspec.structs.replace(worker_row("new"), steps={"fetch": "s1"})
    leaving = msgspec.structs.replace(worker_row("leaving"), draining=True)

    [want] = demand_of(worker_set(old, new, leaving), {requirement(): WaitingTasks(1, 0)}).wants

    assert want.workers == 1


def test_room_is_what_present_workers_take_in_a_moment():
    workers = worker_set(worker_row("w", permits={"async": 10}, claim=4))
    worker = workers.by_id["w"]
    for _ in range(4):
        workers.claim_permit(worker, "async", offered=True)
    assert worker.room("async")[0] == 0  # it has as many offers as it claimed, and will answer

    [want] = demand_of(workers, {requirement(): WaitingTasks(9, 0)}).wants
    assert want.room == 4

    worker.unanswered = 1
    [want] = demand_of(workers, {requirement(): WaitingTasks(9, 0)}).wants
    assert want.room == 0


def test_room_is_bounded_by_permits_total_and_tasks():
    tight = worker_set(worker_row("w", permits={"async": 10}, total=2))
    [want] = demand_of(tight, {requirement(): WaitingTasks(9, 0)}).wants
    assert want.room == 2

    wide = worker_set(worker_row("w", permits={"async": -1}))
    [want] = demand_of(wide, {requirement(): WaitingTasks(9, 0)}).wants
    assert want.room == 9
