"""A paused run or flow starts nothing, holds no place, says who paused it, and goes on when it is resumed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.steps import word_steps as flows

from locktender import Client, InvalidInput, NotFound, RunCancelled, RunState, RunTimedOut
from locktender.client.run import Run
from locktender.testing import VirtualClock, eventually

pytest_plugins = ["locktender.testing.plugin"]

ALL_TRANSPORTS = "long"


@pytest.fixture(autouse=True)
def _gate() -> Iterator[None]:
    flows.GATE.clear()
    yield
    flows.GATE.set()


def states(run: Run[int]) -> dict[str, str]:
    return {task.name: str(task.state) for task in run.tasks()}


def paused_events(run: Run[int]) -> list[str]:
    return [event.after for event in run.events() if event.subject == "pause"]


def in_flight(run: Run[int], step: str) -> None:
    eventually(lambda: states(run).get(step) == "running")


def test_what_runs_ends_and_nothing_follows_until_resumed(engine: Client):
    engine.limits.set_max_concurrent_runs(1)
    run = engine.submit(flows.two_steps, 1)
    in_flight(run, "gated")
    run.pause("a look at the data")
    eventually(lambda: "paused" in paused_events(run))
    # What runs of it keeps its place.
    other = engine.submit(flows.beside, 5)
    flows.GATE.set()
    # Then the place is free for others, though the run executes.
    assert other.result("60s") == 6
    eventually(lambda: states(run) == {"gated": "completed", "plus_one": "requested"})
    assert run.status() is RunState.RUNNING
    why = str(run.why())
    assert "the run is paused by" in why
    assert "a look at the data" in why
    run.resume()
    assert run.result("60s") == 2
    assert paused_events(run) == ["paused", "resumed"]


def test_a_queued_run_waits_and_lets_others_pass(engine: Client):
    engine.limits.pause()
    run = engine.submit(flows.beside, 1)
    run.pause()
    run.pause("again: the first pause stands")
    engine.limits.resume()
    assert engine.submit(flows.beside, 2).result("60s") == 3
    assert run.status() is RunState.QUEUED
    assert "the run is paused by" in str(run.why())
    assert "again" not in str(run.why())
    run.resume()
    assert run.result("60s") == 2


def test_a_paused_flow_stops_its_runs_and_no_others(engine: Client):
    run = engine.submit(flows.two_steps, 1)
    in_flight(run, "gated")
    engine.flows.pause(flows.two_steps.name, "the partner is down")
    eventually(lambda: "paused" in paused_events(run))
    flows.GATE.set()
    queued = [engine.submit(flows.two_steps, n) for n in range(3)]
    assert engine.submit(flows.beside, 5).result("60s") == 6
    eventually(lambda: states(run).get("plus_one") == "requested")
    assert {each.status() for each in queued} == {RunState.QUEUED}
    for each in (run, queued[0]):
        assert f"flow {flows.two_steps.name} is paused by" in str(each.why())
    [paused] = engine.flows.paused()
    assert (paused.name, paused.reason) == (flows.two_steps.name, "the partner is down")
    assert any(each.name.endswith(flows.two_steps.name) for each in engine.limits.list())
    engine.flows.resume(flows.two_steps.name)
    assert run.result("60s") == 2
    assert [each.result("60s") for each in queued] == [1, 2, 3]
    assert engine.flows.paused() == []
    assert engine.limits.history()[0].kind == "flow"


def test_a_cancel_ends_a_paused_run_with_its_clean_up(engine: Client, tmp_path: Path):
    run = engine.submit(flows.cleaning, str(tmp_path), 1)
    in_flight(run, "gated")
    run.pause()
    eventually(lambda: "paused" in paused_events(run))
    flows.GATE.set()
    eventually(lambda: states(run).get("plus_one") == "requested")
    run.cancel()
    with pytest.raises(RunCancelled):
        run.result("60s")
    assert (tmp_path / "cleaned").exists()
    assert "lifted" in paused_events(run)
    # Its pause ends with it: a retry goes on.
    eventually(lambda: not [each for each in engine.limits.list() if each.kind == "run"])
    assert run.retry().result("60s") == 2


def test_the_deadline_ends_paused_runs(engine_clock: VirtualClock, engine: Client):
    running = engine.submit(flows.two_steps, 1, deadline="1h")
    in_flight(running, "gated")
    running.pause()
    engine.limits.pause()
    queued = engine.submit(flows.beside, 1, deadline="1h")
    queued.pause()
    for run in (running, queued):
        eventually(lambda run=run: "paused" in paused_events(run))
    engine.limits.resume()
    flows.GATE.set()
    eventually(lambda: states(running) == {"gated": "completed", "plus_one": "requested"})
    assert queued.status() is RunState.QUEUED
    engine_clock.move("61m")
    for run in (running, queued):
        with pytest.raises(RunTimedOut):
            run.result("60s")


def test_what_cannot_be_paused_or_resumed_is_refused(engine: Client):
    run = engine.submit(flows.beside, 1)
    run.result("60s")
    with pytest.raises(InvalidInput, match="it has ended succeeded"):
        run.pause()
    with pytest.raises(NotFound, match="is not paused"):
        engine.flows.resume("nobody")
    name = flows.beside.name
    with pytest.raises(NotFound, match=f"Did you mean '{name}'"):
        engine.flows.pause(f"{name}s")
    engine.flows.pause(name)
    with pytest.raises(NotFound, match=f"Did you mean '{name}'"):
        engine.flows.resume(f"{name}s")
    with pytest.raises(InvalidInput):
        engine.flows.pause("")
    run.resume()  # is not paused: nothing to do
