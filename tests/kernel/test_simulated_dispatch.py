"""Seed 001 and 003, simulated: bounded dispatch (B2, B3, B4, B7, B10) and the claim (D6)."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from tests.support.worlds import graph, items, needs, numbers, settle, step, world

from locktender.base.clock import MILLISECOND, SECOND
from locktender.base.states import TaskState
from locktender.kernel.claim import ClaimPolicy, Load, PressureSignals, claim_size
from locktender.kernel.explain import Typical, explain_task
from locktender.kernel.lifecycle import Defaults
from locktender.simulate.scenarios import violations
from locktender.simulate.world import SimWorld

PACK = {("engine", "placement"): {"value": "pack"}}
ONE = graph(step())


def workers_of(sim: SimWorld) -> list[str]:
    return [body.worker for body in sim.bodies]


def test_b2_pack_offers_to_the_first_worker_every_time():
    sim = world(workers=3, permits={"async": 4}, rules=PACK)
    for index in range(12):
        sim.plan(index * 100 * MILLISECOND, lambda: sim.submit(ONE))
    settle(sim)
    assert workers_of(sim) == ["w0"] * 12


def test_b2_pack_rotates_past_a_busy_worker():
    sim = world(workers=3, permits={"async": 2}, rules=PACK)
    sim.submit(graph(items()), consts=numbers(5))
    settle(sim)
    assert sorted(workers_of(sim)) == ["w0", "w0", "w1", "w1", "w2"]


def test_b2_pack_rotates_past_a_vanished_worker():
    sim = world(workers=2, permits={"async": 2}, rules=PACK)
    sim.plan(5 * MILLISECOND, lambda: sim.kill_worker("w0"))
    sim.plan(6 * MILLISECOND, lambda: sim.submit(ONE))
    settle(sim)
    # Offered to the dead one at first, withdrawn, taken by the next: late, but neither lost nor failed.
    assert workers_of(sim) == ["w1"]
    assert sim.model.runs[1].state == "succeeded"


def test_d4_spread_shares_the_load():
    sim = world(workers=3, permits={"async": 10})
    sim.submit(graph(items()), consts=numbers(90))
    settle(sim)
    load = Counter(workers_of(sim))
    assert max(load.values()) <= 1.5 * min(load.values())


@pytest.mark.parametrize("permits", [4, 16, 100, -1])
@pytest.mark.parametrize("latency", [1, 8, 20])
def test_d4_the_leaders_own_worker_is_one_of_three(permits: int, latency: int):
    """It is handed work without a message, the others by three: its permits come round sooner."""
    sim = world(
        workers=3,
        local=True,
        permits={"async": permits},
        took=20 * MILLISECOND,
        latency=latency * MILLISECOND,
    )
    sim.submit(graph(items()), consts=numbers(1_500))
    settle(sim)
    load = Counter(workers_of(sim))
    assert max(load.values()) <= 1.5 * min(load.values())


def test_d4_a_worker_that_is_deaf_holds_up_the_leaders_own_once():
    """It waits for an answer for a second, and then for that worker no more."""
    sim = world(workers=2, local=True, permits={"async": 20}, took=20 * MILLISECOND)
    sim.workers["w1"].deaf = True
    start = sim.now
    sim.submit(graph(items()), consts=numbers(400))
    sim.run(until=start + 1_500 * MILLISECOND)
    # 20 permits of 20 ms make about 900 tasks a second.
    assert len([body for body in sim.bodies if body.worker == "w0"]) >= 380


def test_b3_without_a_worker_tasks_wait_and_say_so():
    sim = world(workers=0)
    sim.submit(graph(items(pools=needs(db=1))), consts=numbers(3))
    sim.run(until=sim.now + 5 * SECOND)
    assert sim.scheduler is not None
    waiting = list(sim.scheduler.lifecycle.tasks.values())
    assert {entry.state for entry in waiting} == {TaskState.REQUESTED}
    assert sim.scheduler.ledger.pool("db").used == 0  # nothing is held while it waits for a worker
    for entry in waiting:
        [reason] = explain_task(sim.scheduler, entry, Typical(), sim.now)
        assert (reason.gate, reason.text) == ("worker", "no worker is connected")
    assert sim.peak_demand == 3
    sim.add_worker("late")
    settle(sim)
    assert len(sim.bodies) == 3


def test_b8_fifteen_runs_then_three_workers_of_one_permit():
    sim = world(workers=0, rules={("runs", ""): {"limit": -1}})
    for _ in range(15):
        sim.submit(ONE)
    sim.run(until=sim.now + SECOND)
    for index in range(3):
        sim.add_worker(f"w{index}", {"async": 1})
    settle(sim)
    assert {run.state for run in sim.model.runs.values()} == {"succeeded"}
    assert sim.peak(lambda _body: 1) == 3


def test_b4_the_sixteenth_submission_leaves_no_row():
    sim = world(workers=0, rules={("active", ""): {"limit": 15}})
    first = sim.submit(ONE, key="same")
    for _ in range(14):
        assert sim.submit(ONE) is not None
    events = len(sim.model.events)
    assert sim.submit(ONE) is None
    assert len(sim.model.runs) == 15
    assert len(sim.model.events) == events
    # The key of an active run attaches to it, even at the ceiling.
    assert sim.submit(ONE, key="same") == first
    sim.add_worker("late")
    settle(sim)
    assert sim.rejections == [(15, 15, sim.rejections[0][2])]
    assert sim.submit(ONE) is not None
    settle(sim)


@pytest.mark.parametrize("changes_of_leader", [0, 3])
def test_b7_past_the_dispatch_deadline_a_task_fails(changes_of_leader: int):
    sim = world(defaults=Defaults(dispatch_deadline_us=10 * SECOND))
    sim.submit(graph(step(needs={"gpu": "a100"})))
    for index in range(changes_of_leader):
        # The clock is stored: a new leader does not start it anew.
        sim.plan((index + 1) * 3 * SECOND, sim.lead)
    start = sim.now
    settle(sim)
    assert sim.bodies == []
    run = sim.model.runs[1]
    assert run.state == "failed"
    assert b"capacity: no worker with gpu=a100" in (run.error or b"")
    assert 10 * SECOND <= run.ended_at - start <= 12 * SECOND


def test_b7_waiting_at_another_gate_does_not_count():
    rules = {("pool", "db"): {"limit": 1}}
    sim = world(took=30 * SECOND, rules=rules, defaults=Defaults(dispatch_deadline_us=10 * SECOND))
    sim.submit(graph(items(pools=needs(db=1))), consts=numbers(3))
    settle(sim)
    assert sim.model.runs[1].state == "succeeded"


def test_b7_a_long_first_step_does_not_fail_the_second():
    sim = world(took=60 * SECOND, defaults=Defaults(dispatch_deadline_us=10 * SECOND))
    sim.submit(graph(step("a"), step("b", after=(0,))))
    settle(sim)
    assert sim.model.runs[1].state == "succeeded"


@pytest.mark.parametrize("local", [True, False], ids=["local", "remote"])
def test_b10_one_cycle_starts_at_most_its_share(local: bool):
    rules = {("engine", "max_starts_per_cycle"): {"value": 10}}
    sim = world(local=local, took=SECOND, permits={"async": 500}, rules=rules)
    sim.submit(graph(items()), consts=numbers(45))
    settle(sim)
    grants = Counter(
        event.cycle for event in sim.model.events if event.after == TaskState.SCHEDULED
    )
    assert sorted(grants.values(), reverse=True) == [10, 10, 10, 10, 5]
    assert sim.peak(lambda _body: 1) == 45  # no share is lost: all run together in the end


def claims(sim: SimWorld, name: str, claim: int) -> None:
    row = sim.model.workers[name]
    sim.model.workers[name] = msgspec.structs.replace(row, claim=claim)
    sim.poke()


def test_d6_a_worker_under_pressure_is_offered_what_it_asks_for():
    sim = world(permits={"async": 100}, took=SECOND)
    full = claim_size(Load({"async": 100}, {"async": 95}), ClaimPolicy(), PressureSignals())
    assert full.standing == 0
    claims(sim, "w0", full.standing)
    sim.submit(graph(items()), consts=numbers(60))
    sim.run(until=sim.now + 100 * MILLISECOND)
    assert sim.bodies == []
    half = claim_size(Load({"async": 100}, memory=0.9), ClaimPolicy(batch=50), full.felt).standing
    claims(sim, "w0", half)
    settle(sim)
    waves = Counter(body.start for body in sim.bodies)
    assert half == 25
    assert max(waves.values()) == 25
    assert len(sim.bodies) == 60


def test_a_worker_that_joins_late_is_used_at_once():
    sim = world(permits={"async": 1}, took=SECOND)
    sim.submit(graph(items()), consts=numbers(4))
    sim.run(until=sim.now + 100 * MILLISECOND)
    sim.add_worker("late", {"async": 3})
    joined = sim.now
    settle(sim)
    late = [body.start for body in sim.bodies if body.worker == "late"]
    assert len(late) == 3
    assert max(late) - joined <= 10 * MILLISECOND
    assert violations(sim) == []
