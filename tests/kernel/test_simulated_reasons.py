"""E7, simulated: at any instant of any world, why says exactly what the next decision will find."""

from __future__ import annotations

import pytest
from tests.support.worlds import graph, items, line_before, needs, numbers, settle, world

from locktender.base.clock import MILLISECOND, SECOND
from locktender.base.states import TaskState
from locktender.kernel.explain import Typical, explain_task
from locktender.kernel.explain_runs import explain_queued
from locktender.simulate.scenarios import random_world
from locktender.simulate.world import SimWorld

EXPLAINED = Typical(run_us=SECOND)


def ask_everybody(sim: SimWorld) -> tuple[int, int]:
    """Right after a cycle nobody who waits may be without a reason, and nobody who runs may have one."""
    lead = sim.scheduler
    if lead is None or lead.ledger.task_queue.unfinished or lead.ledger.run_queue.unfinished:
        return 0, 0
    waiting = 0
    for entry in lead.lifecycle.tasks.values():
        reasons = explain_task(lead, entry, EXPLAINED, sim.now)
        if entry.state != TaskState.REQUESTED:
            assert reasons == []
            continue
        waiting += 1
        assert reasons, f"task {entry.id} waits without a reason"
        for reason in reasons:
            if reason.gate.startswith("pool:") and not reason.never:
                pool = lead.ledger.pool(reason.gate[5:])
                held = sum(
                    dict(task.pools).get(pool.name, 0)
                    for task in lead.lifecycle.tasks.values()
                    if task.state in ("scheduled", "running")
                )
                assert (reason.used, reason.limit) == (held, pool.limit)
                assert reason.used + reason.need > reason.limit
    queued = 0
    for head in lead.ledger.heads.values():
        queued += 1
        reasons = explain_queued(lead, head, EXPLAINED, line_before(lead, head), sim.now)
        assert reasons, f"run {head.id} has no reason"
    return waiting, queued


@pytest.mark.parametrize("seed", range(12))
def test_e7_everybody_who_waits_has_a_true_reason(seed: int):
    sim = random_world(seed)
    asked = [0, 0]
    original = sim._act

    def act(*arguments: object) -> None:
        original(*arguments)  # type: ignore[arg-type]
        # Offers that were just taken back, and their tasks, are looked at with the next cycle.
        if not arguments[1].withdrawals:  # type: ignore[attr-defined]
            for index, count in enumerate(ask_everybody(sim)):
                asked[index] += count

    sim._act = act  # type: ignore[method-assign]
    settle(sim)
    assert sum(asked) > 0


def test_e7_reasons_follow_a_limit_that_changes():
    sim = world(took=SECOND, rules={("pool", "db"): {"limit": 1}})
    sim.submit(graph(items(pools=needs(db=1))), consts=numbers(4))

    def gates() -> list[str]:
        sim.run(until=sim.now + 10 * MILLISECOND)
        assert sim.scheduler is not None
        found: list[str] = []
        for entry in sim.scheduler.lifecycle.tasks.values():
            found += [each.gate for each in explain_task(sim.scheduler, entry, EXPLAINED, sim.now)]
        return found

    assert gates() == ["pool:db"] * 3
    sim.set_rule("pool", "db", {"limit": 2})
    assert gates() == ["pool:db"] * 2
    sim.set_rule("pool", "db", {"limit": 2, "paused": True})
    assert gates() == ["paused:db"] * 2
    sim.set_rule("pool", "db", None)
    assert gates() == []
    settle(sim)


def test_e7_estimates_are_near_the_truth():
    sim = world(took=SECOND, rules={("pool", "db"): {"limit": 2}})
    sim.submit(graph(items(pools=needs(db=1))), consts=numbers(9))
    sim.run(until=sim.now + 500 * MILLISECOND)
    assert sim.scheduler is not None
    typical = Typical(step_us={"m": SECOND})
    guesses = {
        entry.id: sim.now + (reason.estimate_us or 0)
        for entry in sim.scheduler.lifecycle.tasks.values()
        for reason in explain_task(sim.scheduler, entry, typical, sim.now)
    }
    settle(sim)
    begun = {body.task: body.start for body in sim.bodies}
    for task, guess in guesses.items():
        assert abs(begun[task] - guess) <= SECOND + 50 * MILLISECOND


def test_waits_are_told_once_not_at_every_tick():
    """Reasons rewritten on every queued row at every tick must not come back."""
    sim = world(took=20 * SECOND, rules={("pool", "db"): {"limit": 1}})
    for _ in range(10):
        sim.submit(graph(items(pools=needs(db=1))), consts=numbers(5))
    sim.run(until=sim.now + 15 * SECOND)
    waits = [
        event for event in sim.model.events if event.subject == "wait" and "lane" in event.data
    ]
    assert len(waits) <= 1  # one lane: its head speaks for all behind it


def _waits(sim: SimWorld, subject: str) -> list[dict[str, int]]:
    """Whole seconds at each gate, of all that waited."""
    told = [
        event.data["waits"]
        for event in sim.model.events
        if event.subject == subject and "waits" in event.data
    ]
    return [{gate: us // SECOND for gate, us in waits.items()} for waits in told]


def test_h3_a_pause_is_charged_to_those_who_wait_already():
    full = {"limit": 1}
    sim = world(took=20 * SECOND, rules={("pool", "db"): full})
    sim.submit(graph(items(pools=needs(db=1))), consts=numbers(2))
    sim.run(until=sim.now + 5 * SECOND)
    sim.set_rule("pool", "db", full | {"paused": True})
    sim.run(until=sim.now + 4 * SECOND)
    sim.set_rule("pool", "db", full)
    settle(sim)
    assert _waits(sim, "task") == [{"pool:db": 16, "paused:db": 4}]


def test_h3_a_pause_of_all_runs_is_charged_to_those_that_wait():
    sim = world(took=20 * SECOND, rules={("runs", ""): {"limit": 1}})
    for _ in range(2):
        sim.submit(graph(items()), consts=numbers(1))
    sim.run(until=sim.now + 5 * SECOND)
    sim.set_rule("runs", "", {"limit": 1, "paused": True})
    sim.run(until=sim.now + 4 * SECOND)
    sim.set_rule("runs", "", {"limit": 1})
    settle(sim)
    assert _waits(sim, "run") == [{"runs:max_concurrent_runs": 16, "paused:max_concurrent_runs": 4}]


def test_h3_a_pause_of_a_tag_is_charged_to_those_that_wait():
    one = {"key": "team", "value": "red", "limit": 1}
    sim = world(took=20 * SECOND, rules={("tag", "team=red"): one})
    for _ in range(2):
        sim.submit(graph(items()), consts=numbers(1), tags={"team": "red"})
    sim.run(until=sim.now + 5 * SECOND)
    sim.set_rule("tag", "team=red", one | {"paused": True})
    sim.run(until=sim.now + 4 * SECOND)
    sim.set_rule("tag", "team=red", one)
    settle(sim)
    assert _waits(sim, "run") == [{"tag:team=red": 16, "paused:team=red": 4}]
