"""Runs that wait for their time, in the simulator: leaders change, clocks are set, limits hold."""

from __future__ import annotations

import pytest

from locktender.base.clock import MILLISECOND, SECOND
from locktender.base.graph import Graph, Node
from locktender.simulate.model import Behaviour
from locktender.simulate.scenarios import random_world, violations
from locktender.simulate.world import SimWorld

QUICK = Behaviour(lambda _draw, _node: 5 * MILLISECOND)
ONE = Graph("one", (Node("a", "a", executor="async"),))


def made() -> SimWorld:
    world = SimWorld(1, QUICK)
    world.set_rule("runs", "", {"limit": 1})
    world.add_worker("w", {"async": 5})
    world.lead()
    return world


def woken_after(world: SimWorld, run: int) -> int:
    """From its submission, by the store's clock."""
    of_run = [event for event in world.model.events if event.run == run and event.subject == "run"]
    return next(event.at for event in of_run if event.after == "queued") - of_run[0].at


def test_g1_a_delayed_run_is_woken_on_time_by_whoever_leads():
    world = made()
    run = world.submit(ONE, delay=60 * SECOND)
    assert run is not None
    other = world.submit(ONE)
    assert other is not None
    world.plan(30 * SECOND, world.lead)
    world.run()
    assert 0 <= woken_after(world, run.seq) - 60 * SECOND <= 100 * MILLISECOND
    assert violations(world) == []


def test_a_woken_run_goes_before_younger_ones_of_its_priority():
    world = made()
    older = world.submit(ONE, delay=SECOND)
    assert older is not None
    slow = Behaviour(lambda _draw, _node: 2 * SECOND)
    world.behaviour = slow
    younger = [world.submit(ONE) for _ in range(3)]
    world.run()
    started = [
        event.run
        for event in world.model.events
        if event.subject == "run" and event.after == "running"
    ]
    assert started[1] == older.seq
    assert len(younger) == 3
    assert violations(world) == []


@pytest.mark.parametrize("by", [-30, 30])
def test_g1_a_clock_that_is_set_wakes_nobody_early(by: int):
    world = made()
    run = world.submit(ONE, delay=60 * SECOND)
    assert run is not None
    world.plan(10 * SECOND, lambda: world.jump_clock(by * SECOND))
    world.run()
    # By the clock that people read: it was told to be woken when that shows a certain time.
    assert 0 <= woken_after(world, run.seq) - 60 * SECOND <= 1_100 * MILLISECOND
    assert violations(world) == []


def test_a_waiting_run_that_is_cancelled_never_starts():
    world = made()
    run = world.submit(ONE, delay=60 * SECOND)
    assert run is not None
    world.plan(SECOND, lambda: world.cancel(run.seq))
    world.run()
    assert world.model.runs[run.seq].state == "cancelled"
    assert world.bodies == []
    assert violations(world) == []


def test_a_waiting_run_and_its_deadline():
    world = made()
    run = world.submit(ONE, delay=10 * SECOND, deadline=30 * SECOND)
    assert run is not None
    world.run()
    assert world.model.runs[run.seq].state == "succeeded"
    assert violations(world) == []


@pytest.mark.parametrize("seed", [5_086, 5_113])
def test_waits_beside_pauses_and_cancels(seed: int):
    """A sleep whose time has come stood in line when its run was resumed; a place was taken again in the cycle
    that took the run up, and the row still said that it had none."""
    world = random_world(seed)
    world.run()
    assert violations(world) == []
