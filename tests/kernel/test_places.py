"""F2: runs that no live worker can go on with take no place at the run gate or in tags' limits."""

from __future__ import annotations

import msgspec
from tests.support.worlds import graph, items, numbers, runs_at_once, settle, step, world

from locktender.base.clock import MILLISECOND, SECOND
from locktender.base.graph import Graph, Output
from locktender.kernel.explain import Typical, explain_task
from locktender.kernel.lifecycle import Defaults
from locktender.simulate.world import SimWorld

GPU = {"gpu": "a100"}
ON_GPU = graph(step("g", needs=GPU), flow="on_gpu")
PLAIN = graph(step("p"), flow="plain")
TWO: dict[tuple[str, str], object] = {("runs", ""): {"limit": 2}}


def then(first: dict[str, str], second: dict[str, str]) -> Graph:
    """Two steps, one after the other, that need these labels."""
    return graph(
        step("a", needs=first),
        step("b", needs=second, args=(Output(0),)),
        flow=f"{len(first)}-{len(second)}",
    )


def ended(sim: SimWorld, flow: str) -> int:
    return sum(run.state == "succeeded" and run.flow == flow for run in sim.model.runs.values())


def places(sim: SimWorld) -> list[tuple[int, str]]:
    return [(event.run, event.after) for event in sim.model.events if event.subject == "place"]


def used(sim: SimWorld) -> int:
    assert sim.scheduler is not None
    return sim.scheduler.ledger.run_gate.used


def test_f2_ten_unplaceable_runs_leave_the_gate_to_others():
    sim = world(rules={("runs", ""): {"limit": 10}})
    for _ in range(10):
        sim.submit(ON_GPU)
    sim.run(until=sim.now + SECOND)
    assert used(sim) == 0
    for _ in range(5):
        sim.submit(PLAIN)
    sim.run(until=sim.now + SECOND)
    assert ended(sim, "plain") == 5
    # their reason is the worker, and they count in demand
    assert sim.scheduler is not None
    assert sim.peak_demand == 10
    for entry in sim.scheduler.lifecycle.tasks.values():
        [reason] = explain_task(sim.scheduler, entry, Typical(), sim.now)
        assert reason.gate == "worker"


def test_f2_without_any_worker_the_others_stay_queued():
    """Nobody could use a place that is given back; the first worker that comes can."""
    sim = world(workers=0, rules=TWO)
    for _ in range(5):
        sim.submit(ON_GPU)
    sim.submit(PLAIN)
    sim.run(until=sim.now + SECOND)
    assert (used(sim), places(sim)) == (2, [])
    sim.add_worker("plain")
    sim.run(until=sim.now + SECOND)
    assert ended(sim, "plain") == 1
    assert used(sim) == 0


def test_f2_while_every_worker_drains_the_others_stay_queued():
    """Ctrl-C of the only process: its queue must not become runs that execute without a place."""
    sim = world(workers=0, rules=TWO, took=10 * SECOND)
    sim.add_worker("last")
    for _ in range(6):
        sim.submit(then({}, {}))
    sim.run(until=sim.now + SECOND)
    workers = sim.model.workers
    workers["last"] = msgspec.structs.replace(workers["last"], draining=True)
    sim.run(until=sim.now + 15 * SECOND)  # what ran may have ended: their second steps wait
    queued = [run for run in sim.model.runs.values() if run.state == "queued"]
    assert (len(queued), places(sim)) == (4, [])
    sim.add_worker("next")
    settle(sim)
    assert ended(sim, "0-0") == 6


def test_f2_a_tags_limit_is_not_used_up_either():
    sim = world(rules={("tag", "team=*"): {"key": "team", "per_value": True, "limit": 1}})
    sim.submit(ON_GPU, tags={"team": "red"})
    sim.submit(PLAIN, tags={"team": "red"})
    sim.run(until=sim.now + SECOND)
    assert ended(sim, "plain") == 1


def test_f2_with_a_worker_they_pass_gates_in_first_order():
    sim = world(rules=TWO, took=100 * MILLISECOND)
    first = [sim.submit(ON_GPU, priority=priority) for priority in (0, 5, 0, 5)]
    sim.run(until=sim.now + SECOND)
    assert used(sim) == 0
    sim.add_worker("gpu", labels=GPU)
    settle(sim)
    assert runs_at_once(sim) == 2
    held = [run for run, after in places(sim) if after == "held"]
    assert held == [run.seq for run in (first[1], first[3], first[0], first[2]) if run is not None]


def test_f2_nothing_starts_while_the_gate_is_full():
    sim = world(rules=TWO, took=500 * MILLISECOND)
    for _ in range(4):
        sim.submit(ON_GPU)
    sim.run(until=sim.now + SECOND)
    for _ in range(2):
        sim.submit(PLAIN)
    sim.run(until=sim.now + 10 * MILLISECOND)
    assert used(sim) == 2
    sim.add_worker("gpu", labels=GPU)
    sim.run(until=sim.now + 10 * MILLISECOND)
    assert sim.scheduler is not None
    waiting = [task for task in sim.scheduler.lifecycle.tasks.values() if task.spec.name == "g"]
    assert len(waiting) == 4
    for entry in waiting:
        [reason] = explain_task(sim.scheduler, entry, Typical(), sim.now)
        assert (reason.gate, reason.used) == ("runs:max_concurrent_runs", 2)
        assert "gave its place back" in reason.text
    settle(sim)
    assert runs_at_once(sim) == 2


def test_f2_a_run_whose_worker_went_gives_its_place_back():
    sim = world(workers=0, rules={("runs", ""): {"limit": 1}}, took=100 * MILLISECOND)
    sim.add_worker("plain")
    sim.add_worker("gpu", labels=GPU)
    sim.submit(then({}, GPU))
    sim.run(until=sim.now + 50 * MILLISECOND)
    sim.kill_worker("gpu")
    sim.run(until=sim.now + 15 * SECOND)  # its lease has passed
    assert used(sim) == 0
    sim.submit(PLAIN)
    sim.run(until=sim.now + SECOND)
    assert ended(sim, "plain") == 1
    sim.add_worker("gpu2", labels=GPU)
    settle(sim)
    assert ended(sim, "0-1") == 1


def test_f2_a_run_of_which_something_could_start_keeps_its_place():
    sim = world(rules={("runs", ""): {"limit": 1}}, permits={"async": 1}, took=2 * SECOND)
    sim.submit(graph(step("g", needs=GPU), items("m"), flow="mixed"), consts=numbers(2))
    sim.run(until=sim.now + 3 * SECOND)
    assert places(sim) == []
    sim.run(
        until=sim.now + 2 * SECOND
    )  # its items are done: only the step without a worker is left
    assert [after for _, after in places(sim)] == ["given_back"]


def test_f2_the_next_leader_knows_who_has_no_place():
    sim = world(rules=TWO, took=500 * MILLISECOND)
    for _ in range(5):
        sim.submit(ON_GPU)
    sim.run(until=sim.now + SECOND)
    for _ in range(2):
        sim.submit(PLAIN)
    sim.run(until=sim.now + 10 * MILLISECOND)
    # the worker comes while nobody leads: without what is stored all five would count as executing
    sim.kill_leader()
    sim.add_worker("gpu", labels=GPU)
    sim.lead()
    settle(sim)
    assert runs_at_once(sim) == 2


def test_f2_deadline_and_cancel_end_runs_without_a_place():
    sim = world(rules=TWO, defaults=Defaults(dispatch_deadline_us=5 * SECOND))
    late, cancelled = sim.submit(ON_GPU), sim.submit(ON_GPU, dispatch_deadline=60 * SECOND)
    assert late is not None
    assert cancelled is not None
    sim.run(until=sim.now + SECOND)
    sim.cancel(cancelled.seq)
    settle(sim)
    states = {run.seq: run.state for run in sim.model.runs.values()}
    assert states == {late.seq: "failed", cancelled.seq: "cancelled"}
    assert not sim.model.unplaced
    assert used(sim) == 0


def test_f2_limits_changed_meanwhile_count_for_those_that_return():
    sim = world(rules=TWO, took=100 * MILLISECOND)
    for _ in range(4):
        sim.submit(ON_GPU, tags={"team": "red"})
    sim.run(until=sim.now + SECOND)
    sim.set_rule("tag", "team=*", {"key": "team", "per_value": True, "limit": 1})
    sim.run(until=sim.now + SECOND)
    sim.add_worker("gpu", labels=GPU)
    settle(sim)
    assert runs_at_once(sim) == 1
