"""E6–E8 with real bodies: what the history has, what `why` says, what an operator does beside a live engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support import cli_harness

from locktender import Run, RunState, flow, step
from locktender.testing import Engines, Overlap, eventually, recording
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin"]

STEPS_FILE = Path(__file__).parents[1] / "steps" / "engine_steps.py"
steps: Any = load(source(STEPS_FILE))
TIMEOUT = "60s"


@step(pools={"db": 2, "api": 1})
async def query(latch: str, item: int = 0) -> int:
    with recording("db", label=str(item), weight=2):
        await steps.until_open(latch)
    return item


@flow
def queries(latch: str, item: int = 0) -> int:
    return query(latch, item)


def gates(run: Run[Any]) -> set[str]:
    """Every gate that blocks a queued run, or any task of an executing one."""
    why = run.why()
    return {
        reason.gate
        for reasons in (why.reasons, *(group.reasons for group in why.waiting))
        for reason in reasons
    }


# -- events ----------------------------------------------------------------------------------------


def test_e6_events_of_the_queue_and_of_the_slots(
    make_engine: Engines, overlap: Overlap, tmp_path: Path
):
    engine = make_engine(max_concurrent_runs=2)
    engine.pools.set("db", limit=2)
    latch = tmp_path / "latch"
    first = engine.submit(queries, str(latch), 1, priority=7)
    eventually(lambda: overlap.count("db") == 1)
    second = engine.submit(queries, str(latch), 2)
    eventually(lambda: "pool:db" in gates(second))
    latch.touch()
    assert first.result(TIMEOUT) + second.result(TIMEOUT) == 3

    events = second.events()
    told = [(event.subject, event.after) for event in events]
    assert told == [
        ("run", "queued"), ("run", "running"), ("task", "requested"), ("wait", "pool:db"),
        ("task", "scheduled"), ("task", "running"), ("task", "completed"), ("run", "succeeded"),
    ]  # fmt: skip
    by = {(event.subject, event.after): event for event in events}
    assert first.events()[0].data["priority"] == 7  # RunQueued
    assert by["run", "queued"].data["priority"] == 0
    waiting = by["wait", "pool:db"].data  # StepSlotWaiting, with the reason
    assert (waiting["used"], waiting["limit"], waiting["need"]) == (2, 2, 2)
    assert by["task", "scheduled"].data["pools"] == {"db": 2, "api": 1}  # StepSlotClaimed
    # how long it waited is the time between the two, and what it waited for came in between
    waited = by["task", "scheduled"].at - by["task", "requested"].at
    released = next(event for event in first.events() if event.after == "completed")
    assert waited.total_seconds() > 0
    assert by["task", "requested"].at <= released.at <= by["task", "scheduled"].at
    assert released.seq <= by["task", "scheduled"].seq  # StepSlotReleased is the end of its holder
    assert overlap.peak("db") == 2


def test_e6_every_other_change_has_an_event_too(
    make_engine: Engines, overlap: Overlap, tmp_path: Path
):
    engine = make_engine()
    engine.pools.set("db", limit=2)
    running, waiting = (engine.submit(queries, str(tmp_path / "latch"), n) for n in (1, 2))
    eventually(lambda: overlap.count("db") == 1 and "pool:db" in gates(waiting))
    for run in (waiting, running):
        run.cancel("enough")
        assert run.wait(TIMEOUT) == RunState.CANCELLED

    ended = [(event.subject, event.before, event.after) for event in running.events()][-5:]
    assert ended[0] == ("task", "scheduled", "running")
    assert sorted(ended[1:]) == [
        ("request", "", "ordered"), ("run", "cancelling", "cancelled"), ("run", "running", "cancelling"),
        ("task", "running", "cancelled"),
    ]  # fmt: skip
    assert ("task", "requested", "cancelled") in [
        (event.subject, event.before, event.after) for event in waiting.events()
    ]


# -- why -------------------------------------------------------------------------------------------


def test_e7_every_gate_that_blocks_now_and_none_once_it_started(
    make_engine: Engines, overlap: Overlap, tmp_path: Path
):
    engine = make_engine(max_concurrent_runs=1)
    engine.limits.set_tag("tenant", per_value=True, limit=1)
    latch = tmp_path / "latch"
    first = engine.submit(queries, str(latch), 1, tags={"tenant": "a"})
    eventually(lambda: overlap.count("db") == 1)
    second = engine.submit(queries, str(latch), 2, tags={"tenant": "a"})
    third = engine.submit(queries, str(latch), 3, tags={"tenant": "b"})

    why = second.why()
    assert (why.state, why.position) == ("queued", 1)
    assert gates(second) == {"runs:max_concurrent_runs", "tag:tenant=*a"}
    assert all(reason.used == reason.limit == 1 for reason in why.reasons)
    assert {holder.run for reason in why.reasons for holder in reason.holders} == {first.id}
    assert len(third.why().reasons) == 1  # its tenant has nothing running
    assert third.why().position == 2

    # true at the moment of asking: a gate that opens is gone
    engine.limits.set_max_concurrent_runs(2)
    eventually(lambda: third.status() == RunState.RUNNING)
    eventually(lambda: len(second.why().reasons) == 2)
    engine.limits.set_max_concurrent_runs(-1)
    eventually(lambda: [reason.gate for reason in second.why().reasons] == ["tag:tenant=*a"])
    assert third.why().reasons == ()

    latch.touch()
    assert {run.wait(TIMEOUT) for run in (first, second, third)} == {RunState.SUCCEEDED}
    assert second.why().reasons == ()
    assert f"waits for nothing. Where its time went: locktender blame {second.id}" in str(
        second.why()
    )


def test_e7_a_task_names_its_pools_and_their_holders(
    make_engine: Engines, overlap: Overlap, tmp_path: Path
):
    engine = make_engine()
    engine.pools.set("db", limit=3)
    engine.pools.set("api", limit=1)
    latch = tmp_path / "latch"
    holder = engine.submit(queries, str(latch), 1)
    eventually(lambda: overlap.count("db") == 1)
    waiter = engine.submit(queries, str(latch), 2)

    eventually(lambda: gates(waiter) == {"pool:db", "pool:api"})
    (group,) = waiter.why().waiting
    numbers = {reason.gate: (reason.used, reason.limit, reason.need) for reason in group.reasons}
    assert numbers == {"pool:db": (2, 3, 2), "pool:api": (1, 1, 1)}
    task = waiter.tasks()[0]
    asked = engine.why(task.id)
    assert {reason.gate for reason in asked.reasons} == {"pool:db", "pool:api"}
    assert {h.task for reason in asked.reasons for h in reason.holders} == {holder.tasks()[0].id}
    engine.pools.set("api", limit=2)
    eventually(lambda: gates(waiter) == {"pool:db"})
    engine.pools.pause("db")
    eventually(lambda: gates(waiter) == {"paused:db"})
    engine.pools.resume("db")
    latch.touch()

    assert waiter.result(TIMEOUT) == 2
    assert gates(waiter) == set()
    assert overlap.peak("db") == 2


# -- the command line beside a live engine ---------------------------------------------------------


def locktender(path: Path, *words: str) -> Any:
    """One command as a user types it, in a process of its own."""
    said = cli_harness.locktender(*words, "--url", str(path), "--json", cwd=path.parent)
    assert said.code == 0, (words, said.out, said.err)
    return json.loads(said.out) if said.out.strip() else None


def test_e8_pools_and_queue_from_the_command_line(
    make_engine: Engines, overlap: Overlap, tmp_path: Path
):
    engine = make_engine(max_concurrent_runs=1)
    latch = tmp_path / "latch"
    running = engine.submit(queries, str(latch), 1)
    eventually(lambda: overlap.count("db") == 1)
    queued = [engine.submit(queries, str(latch), n, priority=n, tags={"team": "x"}) for n in (2, 3)]

    locktender(make_engine.path, "pools", "set", "db", "4", "--lease", "90s")
    pool = engine.pools.get("db")
    assert (pool.limit, pool.lease, pool.used) == (4, 90.0, 2)
    listed = json.dumps(locktender(make_engine.path, "pools", "list"))
    assert '"db"' in listed
    info = json.dumps(locktender(make_engine.path, "pools", "info", "db"))
    assert running.id in info or str(running.info().number) in info  # who holds it

    line = json.dumps(locktender(make_engine.path, "queue", "list"))
    assert line.index(queued[1].id) < line.index(queued[0].id)  # priority first
    why = json.dumps(locktender(make_engine.path, "queue", "why", queued[0].id))
    assert "1 of 1 runs execute" in why
    locktender(make_engine.path, "queue", "cancel", queued[0].id)
    assert queued[0].wait(TIMEOUT) == RunState.CANCELLED

    latch.touch()
    assert {running.wait(TIMEOUT), queued[1].wait(TIMEOUT)} == {RunState.SUCCEEDED}
    assert overlap.labels("db") == ["1", "3"]
