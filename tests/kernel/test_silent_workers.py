"""F1: a worker that keeps its lease and answers no offer, in the simulator: exact instants."""

from __future__ import annotations

import pytest
from tests.support.worlds import graph, items, numbers, settle, step, worker_row, world

from locktender.base.clock import MILLISECOND, SECOND
from locktender.base.states import TaskState
from locktender.kernel.entries import TaskEntry
from locktender.kernel.explain import Typical, explain_task
from locktender.kernel.placement import FIRST_PAUSE_US, MAX_PAUSE_US, WorkerSet
from locktender.simulate.world import SimWorld

TTL = 2 * SECOND


def only_task(sim: SimWorld) -> TaskEntry:
    assert sim.scheduler is not None
    [entry] = sim.scheduler.lifecycle.tasks.values()
    return entry


def demand(sim: SimWorld) -> int:
    assert sim.scheduler is not None
    return sim.scheduler.timeouts.sweep(sim.now).total


def instants(sim: SimWorld, state: str) -> list[int]:
    return [event.at for event in sim.model.events if event.after == state]


def test_f1_each_unanswered_offer_doubles_the_pause():
    on = WorkerSet()
    worker = on.put(worker_row("w"))
    now = 10**15
    pauses: list[int] = []
    for _ in range(8):
        until = on.left_unanswered("w", now, now)
        assert until is not None
        assert worker.room("async") == (0, "silent")
        pauses.append(until - now)
        now = until
    assert pauses[:3] == [FIRST_PAUSE_US, 2 * FIRST_PAUSE_US, 4 * FIRST_PAUSE_US]
    assert pauses[-1] == MAX_PAUSE_US
    on.clear_silence("w")
    assert worker.room("async")[1] == ""
    assert on.silences() == []


def test_f1_offers_made_together_count_once():
    on = WorkerSet()
    worker = on.put(worker_row("w"))
    assert on.left_unanswered("w", 100, 100 + TTL) is not None
    assert on.left_unanswered("w", 150, 150 + TTL) is None
    assert worker.unanswered == 1


@pytest.mark.parametrize("deadline", [SECOND, 5 * SECOND, 17 * SECOND])
def test_f1_the_dispatch_deadline_runs_from_the_first_offer(deadline: int):
    sim = world()
    sim.workers["w0"].deaf = True
    sim.submit(graph(step()), dispatch_deadline=deadline)
    settle(sim)
    [run] = sim.model.runs.values()
    assert (run.state, b"capacity: " in (run.error or b"")) == ("failed", True)
    [failed] = [event.at for event in sim.model.events if event.after == "failed" and event.task]
    late = failed - instants(sim, "scheduled")[0] - deadline
    assert 0 <= late <= 10 * MILLISECOND
    assert sim.bodies == []


def test_f1_the_clock_goes_on_under_the_next_leader():
    sim = world()
    sim.workers["w0"].deaf = True
    sim.submit(graph(step()), dispatch_deadline=9 * SECOND)
    first = sim.now
    for _ in range(3):
        sim.run(until=sim.now + 2_500 * MILLISECOND)
        sim.lead()
    settle(sim)
    [failed] = [event.at for event in sim.model.events if event.after == "failed" and event.task]
    assert failed - first <= 9 * SECOND + 20 * MILLISECOND
    # its pauses are stored: the last leader does not begin with the shortest
    assert sim.model.workers["w0"].unanswered >= 2


def test_f1_a_task_offered_in_vain_counts_in_demand():
    sim = world()
    sim.workers["w0"].deaf = True
    sim.submit(graph(step()))
    start = sim.now
    # from the end of the first offer on: between two offers, and during each of them
    for tenth in range(25, 200, 5):
        sim.run(until=start + tenth * SECOND // 10)
        assert demand(sim) == 1, f"after {tenth / 10} s"


def test_f1_a_worker_that_comes_takes_the_task_of_a_silent_one():
    sim = world()
    sim.workers["w0"].deaf = True
    sim.submit(graph(step()))
    sim.run(until=sim.now + 3 * SECOND)
    sim.add_worker("late")
    settle(sim)
    assert [body.worker for body in sim.bodies] == ["late"]


def test_f1_a_worker_that_answers_again_gets_as_many_as_before():
    sim = world(permits={"async": 20}, took=100 * MILLISECOND)
    sim.workers["w0"].deaf = True
    sim.submit(graph(items()), consts=numbers(60))
    sim.run(until=sim.now + 3 * SECOND)
    sim.workers["w0"].deaf = False
    settle(sim)
    assert sim.peak(lambda _body: 1) == 20
    assert sim.model.workers["w0"].unanswered == 0


def test_f1_the_reason_names_the_silence_and_its_end():
    sim = world()
    sim.workers["w0"].deaf = True
    sim.submit(graph(step()))
    sim.run(until=sim.now + 3 * SECOND)
    entry = only_task(sim)
    assert entry.state == TaskState.REQUESTED
    assert sim.scheduler is not None
    [reason] = explain_task(sim.scheduler, entry, Typical({}, None), sim.now)
    assert reason.gate == "worker"
    assert "the only worker that could take it left 1 offer unanswered" in reason.text
    assert "is passed over for 1" in reason.text
    assert reason.estimate_us is None


def test_f1_a_worker_that_declines_is_not_silent():
    on = WorkerSet()
    worker = on.put(worker_row("w"))
    on.left_unanswered("w", 0, TTL)
    on.clear_silence("w")
    assert (worker.unanswered, worker.passed_over) == (0, False)
