"""Limits of tags that count waiting runs (`counts_while_waiting`): a run keeps its place until it ends (G5)."""

from __future__ import annotations

import pytest
from tests.support.worlds import settle

from locktender.base.clock import MILLISECOND, SECOND
from locktender.base.events import Event
from locktender.base.graph import AwaitedEvent, Const, Graph, Node, Output
from locktender.kernel.entries import QueuedRun
from locktender.kernel.explain import Typical
from locktender.kernel.explain_runs import explain_queued
from locktender.kernel.fair_turns import Turns
from locktender.kernel.queue_position import QueuePosition
from locktender.simulate.model import Behaviour
from locktender.simulate.scenarios import random_world, violations
from locktender.simulate.world import SimWorld

QUICK = Behaviour(lambda _draw, _node: 5 * MILLISECOND)
CONSTS = b'[0,{"us":10000000},{"of":1}]'
SLEEPER = Graph(
    "sleeper",
    (
        Node("a", "a", executor="async"),
        Node("nap", "locktender:sleep", args=(Output(0), Const(1)), wait="sleep"),
        Node("b", "b", executor="async", args=(Output(1),)),
    ),
)
ASKING = Graph(
    "asking",
    (
        Node("a", "a", executor="async"),
        Node(
            "answer",
            "locktender:event",
            args=(Output(0), Const(1), Const(2)),
            wait="event",
            event=AwaitedEvent("go"),
        ),
        Node("b", "b", executor="async", args=(Output(1),)),
    ),
)
ONE = Graph("one", (Node("a", "a", executor="async"),))
MUTEX: dict[str, object] = {
    "key": "account",
    "per_value": True,
    "limit": 1,
    "counts_while_waiting": True,
}
ACCOUNT = {"account": "x"}


def made(*, runs: int = -1) -> SimWorld:
    world = SimWorld(1, QUICK)
    world.set_rule("runs", "", {"limit": runs})
    world.set_rule("tag", "account=*", MUTEX)
    world.add_worker("w", {"async": 5})
    world.lead()
    return world


def submitted(world: SimWorld, graph: Graph, **options: object) -> int:
    given = {"consts": CONSTS, "tags": ACCOUNT, **options}
    run = world.submit(graph, **given)  # type: ignore[arg-type]
    assert run is not None
    return run.seq


def changes(world: SimWorld, run: int) -> list[Event]:
    return [each for each in world.model.events if each.run == run and each.subject == "run"]


def at(world: SimWorld, run: int, state: str) -> int:
    return next(each.at for each in changes(world, run) if each.after == state)


@pytest.mark.parametrize("graph", [SLEEPER, ASKING])
@pytest.mark.parametrize("runs", [-1, 1])
def test_g5_a_waiting_run_keeps_its_place_at_a_mutex(graph: Graph, runs: int):
    world = made(runs=runs)
    first = submitted(world, graph)
    world.run(until=world.now + SECOND)
    second = submitted(world, ONE, priority=9)
    other = submitted(world, ONE, tags={"account": "y"})
    if graph is ASKING:
        world.plan(8 * SECOND, lambda: world.send(first, "go", 1))
    world.run()
    # Nobody of that account starts before the first has ended; others use the place at the run gate.
    assert at(world, second, "running") >= at(world, first, "succeeded")
    assert at(world, other, "succeeded") < at(world, first, "succeeded")
    assert violations(world) == []
    assert world.scheduler is not None
    assert not world.scheduler.ledger.kept
    assert not world.model.unplaced


@pytest.mark.parametrize("when", [5 * SECOND, 10 * SECOND])
def test_g5_the_next_leader_keeps_it_too(when: int):
    world = made(runs=1)
    first, second = submitted(world, SLEEPER), submitted(world, ONE)
    world.plan(when, world.kill_leader)
    world.plan(when + SECOND, world.lead)
    world.run()
    assert at(world, second, "running") >= at(world, first, "succeeded")
    assert violations(world) == []


def test_g5_woken_it_passes_the_other_gates_and_not_its_mutex():
    world = made(runs=1)
    first = submitted(world, SLEEPER)
    world.run(until=world.now + 5 * SECOND)
    world.behaviour = Behaviour(lambda _draw, _node: 20 * SECOND)
    busy = submitted(world, ONE, tags={})
    rival = submitted(world, ONE, priority=9)
    world.run(until=world.now + 8 * SECOND)
    assert world.model.runs[first].state == "queued"
    assert world.model.runs[rival].state == "queued"
    world.lead()  # queued again, it still has its mutex for the next leader
    world.run()
    assert at(world, busy, "succeeded") <= changes(world, first)[-2].at
    assert at(world, rival, "running") >= at(world, first, "succeeded")
    assert violations(world) == []


def test_a_cancelled_holder_gives_the_mutex_back():
    world = made()
    first, second = submitted(world, SLEEPER), submitted(world, ONE)
    world.plan(3 * SECOND, lambda: world.cancel(first))
    world.run()
    assert world.model.runs[first].state == "cancelled"
    assert at(world, first, "cancelled") <= at(world, second, "running") < world.now
    assert at(world, second, "running") - at(world, first, "cancelled") < SECOND
    assert violations(world) == []


def test_a_limit_that_says_it_no_more_frees_the_place():
    world = made()
    first, second = submitted(world, SLEEPER), submitted(world, ONE)
    off = {**MUTEX, "counts_while_waiting": False}
    world.plan(3 * SECOND, lambda: world.set_rule("tag", "account=*", off))
    world.run()
    assert at(world, second, "running") < at(world, first, "succeeded")
    assert violations(world) == []


def test_g5_a_paused_run_keeps_its_mutex():
    world = made()
    first = submitted(world, SLEEPER)
    world.plan(MILLISECOND, lambda: world.set_rule("flow", "sleeper", {"by": "me"}))
    world.plan(30 * SECOND, lambda: world.set_rule("flow", "sleeper", None))
    second = submitted(world, ONE)
    world.plan(20 * SECOND, world.lead)
    world.run()
    assert at(world, second, "running") >= at(world, first, "succeeded")
    assert violations(world) == []


def test_a_paused_run_that_sleeps_is_without_a_place_no_more():
    # It gave its place back twice: for the pause, and for the sleep.
    world = made()
    world.set_rule("tag", "account=*", None)
    first = submitted(world, SLEEPER)
    world.plan(7 * MILLISECOND, lambda: world.set_rule("flow", "sleeper", {"by": "me"}))
    world.plan(5 * SECOND, lambda: world.set_rule("flow", "sleeper", None))
    world.run(until=world.now + 8 * SECOND)
    assert world.model.runs[first].state == "waiting"
    assert not world.model.unplaced
    world.run()
    assert violations(world) == []


def test_why_names_the_waiting_holder():
    world = made()
    first, second = submitted(world, SLEEPER), submitted(world, ONE)
    world.run(until=world.now + 5 * SECOND)
    lead = world.scheduler
    assert lead is not None
    head = lead.ledger.heads[second]
    assert isinstance(head, QueuedRun)
    line = QueuePosition(Turns(), "", 0, [])
    reason, *_ = explain_queued(lead, head, Typical(), line, world.now)
    assert reason.gate == "tag:account=*x"
    assert [(each.run, each.waiting) for each in reason.holders] == [(f"run-{first}", True)]
    assert reason.text == (
        f"tag account=x: 1 of 1 runs execute or wait and keep their place (run-{first})"
    )
    assert reason.estimate_us is None


@pytest.mark.parametrize("seed", range(300, 310))
def test_g5_random_worlds_with_a_mutex(seed: int):
    world = random_world(seed)
    rule = {"key": "tenant", "per_value": True, "limit": 1, "counts_while_waiting": True}
    world.set_rule("tag", "tenant=*", rule)
    settle(world)
    assert violations(world) == []
