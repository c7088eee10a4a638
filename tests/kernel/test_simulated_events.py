"""Waits for events, simulated: delivered once and in order, whoever leads; a wait holds nothing (G4, G5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.support.worlds import graph, step

from locktender.base.clock import MILLISECOND, SECOND
from locktender.base.graph import AwaitedEvent, Const, Graph, Node, Output, Truthy
from locktender.simulate.model import Behaviour
from locktender.simulate.scenarios import random_world, violations
from locktender.simulate.world import SimWorld

QUICK = Behaviour(lambda _draw, _node: 5 * MILLISECOND)
CONSTS = b'["nobody",{"us":60000000},{"of":1},null]'


def wait(name: str = "wait", event: str = "go", **options: Any) -> Node:
    awaited = AwaitedEvent(event, default=options.pop("default", False))
    schema = options.pop("schema", {})
    awaited = msgspec.structs.replace(awaited, schema=schema)
    args = (Const(0), Const(1), Const(2))
    given: dict[str, Any] = {"args": args, "wait": "event", "event": awaited}
    return step(name, step="locktender:event", **(given | options))


ONE = graph(wait(), step("last", args=(Output(0),)), result=Output(0))
TWO = graph(wait("a"), wait("b", after=(0,)), result=Output(1), flow="two")


def made() -> SimWorld:
    world = SimWorld(1, QUICK)
    world.set_rule("runs", "", {"limit": 1})
    world.add_worker("w", {"async": 5})
    world.lead()
    return world


def submit(world: SimWorld, flow: Graph = ONE) -> int:
    run = world.submit(flow, consts=CONSTS)
    assert run is not None
    return run.seq


def ended(world: SimWorld, run: int) -> tuple[str, bytes | None]:
    world.run()
    assert violations(world) == []
    return world.model.runs[run].state, world.model.runs[run].output


def test_g4_an_event_ends_a_wait_under_any_leader():
    world = made()
    runs = [submit(world) for _ in range(3)]
    world.plan(SECOND, world.lead)
    for run in runs:
        world.plan(2 * SECOND, lambda run=run: world.send(run, "go", run))
    world.plan(3 * SECOND, world.lead)
    assert [ended(world, run) for run in runs] == [("succeeded", str(run).encode()) for run in runs]


@pytest.mark.parametrize("killed_at", [None, 0, 1, 2, 3, 5, 8])
def test_g4_events_that_come_first_are_taken_in_order(killed_at: int | None):
    world = made()
    run = submit(world, TWO)
    for n in (1, 2, 3):
        world.send(run, "go", n)
    if killed_at is not None:
        world.plan(killed_at * MILLISECOND, world.lead)
    assert ended(world, run) == ("succeeded", b"2")
    assert len(world.model.mail_taken) == 2


@pytest.mark.parametrize("killed_at", [None, 0, 2, 5, 8])
def test_g4_the_answer_of_one_wait_is_taken_by_no_other(killed_at: int | None):
    world = made()
    run = submit(world, graph(wait("a"), wait("b"), result=Output(1), flow="both"))
    world.plan(SECOND, lambda: world.send(run, "go", "for b", max(world.model.event_waits)))
    if killed_at is not None:
        world.plan(SECOND + killed_at * MILLISECOND, world.lead)
    world.plan(2 * SECOND, lambda: world.send(run, "go", "for a"))
    assert ended(world, run) == ("succeeded", b'"for b"')


def test_a_wait_times_out_with_its_default_or_fails():
    world = made()
    patient = submit(world, graph(wait(default=True), result=Output(0), flow="patient"))
    other = submit(world, ONE)
    assert ended(world, patient) == ("succeeded", b'"nobody"')
    assert ended(world, other)[0] == "failed"
    assert b"event_timeout" in (world.model.runs[other].error or b"")


def test_g4_timeout_cancel_and_event_have_one_outcome():
    for at in range(59_998, 60_004):
        for cancels in (False, True):
            world = made()
            run = submit(world)
            world.plan(at * MILLISECOND, lambda world=world, run=run: world.send(run, "go", 7))
            if cancels:
                world.plan(60_000 * MILLISECOND, lambda world=world, run=run: world.cancel(run))
            state, output = ended(world, run)
            assert (state == "succeeded") == (output is not None)
            # A cancel may come after the event, a timeout not.
            taken = len(world.model.mail_taken)
            assert taken == {"succeeded": 1, "failed": 0}.get(state, taken)
            assert world.model.event_waits == {}


def test_g4_a_topic_reaches_each_that_matches_once():
    world = made()
    runs = [submit(world, TWO) for _ in range(3)]
    world.plan(SECOND, lambda: world.send(0, "go", "no", of=2))
    world.plan(2 * SECOND, lambda: world.send(0, "go", "first", of=1))
    world.plan(3 * SECOND, world.lead)
    world.plan(4 * SECOND, lambda: world.send(0, "go", "second"))
    for run in runs:
        assert ended(world, run) == ("succeeded", b'"second"')


def test_what_does_not_fit_its_schema_is_refused_at_delivery():
    world = made()
    run = submit(world, graph(wait(schema={"type": "integer"}), result=Output(0), flow="typed"))
    world.send(run, "go", "text")
    world.send(run, "go", 3)
    assert ended(world, run) == ("succeeded", b"3")
    refused = [event for event in world.model.events if event.after == "refused"]
    assert [event.data["reason"] for event in refused] == [
        "field 'payload' of event 'go' must be a whole number."
    ]


@pytest.mark.parametrize("seed", range(40))
def test_random_worlds_with_events_keep_every_promise(seed: int):
    world = random_world(900_000 + seed)
    world.run()
    assert violations(world) == []


def approved_in_time(world: SimWorld) -> None:
    run = submit(world)
    world.plan(2 * SECOND, lambda: world.send(run, "go", 7))


def timed_out(world: SimWorld) -> None:
    """The other branch: the default says that nobody answered."""
    asked = wait(default=True)
    late = step("late", args=(Output(0),), when=Truthy(Output(0)))
    submit(world, graph(asked, late, result=Output(1), flow="branches"))


def sent_before(world: SimWorld) -> None:
    run = submit(world, TWO)
    for n in range(3):
        world.send(run, "go", n)


def sent_to_a_topic(world: SimWorld) -> None:
    for _ in range(4):
        submit(world)
    world.plan(2 * SECOND, lambda: world.send(0, "go", "all", of=1))


@pytest.mark.parametrize("begin", [approved_in_time, timed_out, sent_before, sent_to_a_topic])
def test_g4_a_leader_lost_after_a_commit_changes_nothing(
    begin: Callable[[SimWorld], None],
):
    def outcome(lost_at: int | None) -> tuple[SimWorld, list[tuple[str, bytes | None]]]:
        world = made()
        begin(world)
        if lost_at is not None:
            world.plan(lost_at - world.now, world.lead)
        world.run()
        assert violations(world) == []
        return world, [(run.state, run.output) for run in world.model.runs.values()]

    whole, wanted = outcome(None)
    assert {state for state, _ in wanted} == {"succeeded"}
    first = made().now
    for at in sorted({event.at for event in whole.model.events if event.cycle}):
        for late in (0, 1, 3 * MILLISECOND):
            assert outcome(max(at + late, first))[1] == wanted


def test_g4_a_waiting_run_that_is_cancelled_twice_ends_once():
    """A leader reads a request again until its commit is written: both times in one cycle, if it sweeps."""
    world = made()
    run = submit(world)
    world.plan(SECOND, lambda: (world.cancel(run), world.cancel(run)))
    assert ended(world, run) == ("cancelled", None)
