"""E10, E11 and two engines on one file: what happens at the same moment has one consistent outcome."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.leases import KEPT

from locktender import (
    AdmissionRejected,
    Client,
    LocktenderError,
    Run,
    RunState,
    TaskState,
    WaitTimeout,
    flow,
    step,
)
from locktender.testing import Engines, Overlap, eventually, recording
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin"]

STEPS_FILE = Path(__file__).parents[1] / "steps" / "engine_steps.py"
steps: Any = load(source(STEPS_FILE))
TIMEOUT = "90s"


@step(pool="gate")
async def brief(item: int) -> int:
    with recording("brief", label=str(item)):
        await asyncio.sleep(0)
    return item


@flow
def briefs(item: int) -> int:
    return brief(brief(item))


def outcomes(runs: list[Run[Any]], overlap: Overlap) -> dict[RunState, int]:
    """How many ended how, after it was made sure that bodies, tasks and runs tell one story."""
    ended = [run.wait(TIMEOUT) for run in runs]
    begun = overlap.labels("brief")
    finished = [span.label for span in overlap.spans("brief") if span.finished]
    counts: dict[RunState, int] = {}
    for number, (run, state) in enumerate(zip(runs, ended, strict=True)):
        counts[state] = counts.get(state, 0) + 1
        states = [task.state for task in run.tasks()]
        if state == RunState.SUCCEEDED:
            assert states == [TaskState.COMPLETED] * 2
            assert finished.count(str(number)) == 2
        else:
            assert state == RunState.CANCELLED
            assert set(states) <= {TaskState.COMPLETED, TaskState.CANCELLED, TaskState.SKIPPED}
            if states.count(TaskState.COMPLETED) == 2:
                # The last body ended while the cancel was on its way to it: the cancel came first.
                at = {event.after: event.seq for event in run.events()}
                assert at["cancelling"] <= at["completed"]
            assert begun.count(str(number)) <= 2
            # a body that was never accepted never began
            accepted = sum(task.started_at is not None for task in run.tasks())
            assert begun.count(str(number)) <= accepted
    return counts


def test_e10_cancel_against_start(make_engine: Engines, overlap: Overlap):
    """Each run is cancelled a moment after it was submitted: before, at, or after its start."""
    engine = make_engine(max_concurrent_runs=4)
    engine.pools.set("gate", limit=2)
    chance = random.Random(10)
    runs: list[Run[int]] = []
    engine.limits.pause()  # one that is certainly cancelled before its start
    runs.append(engine.submit(briefs, 0))
    runs[0].cancel()
    assert runs[0].wait(TIMEOUT) == RunState.CANCELLED
    engine.limits.resume()
    for number in range(1, 100):
        run = engine.submit(briefs, number)
        runs.append(run)
        for _ in range(chance.choice((0, 0, 1, 2, 4))):
            run.status()  # a moment: one read of the store
        run.cancel()

    counts = outcomes(runs, overlap)

    assert counts[RunState.CANCELLED] > 0
    assert sum(counts.values()) == 100
    if "brief" in overlap.names():
        assert overlap.peak("brief") <= 2


def test_e10_cancel_from_another_client_while_two_engines_work(
    make_engine: Engines, overlap: Overlap
):
    engine = make_engine(max_concurrent_runs=8, async_permits=2)
    make_engine.process(STEPS_FILE, async_permits=2).ready()
    other = make_engine.connect()
    runs = [engine.submit(steps.many, [number], 0.002) for number in range(60)]
    chance = random.Random(11)

    def cancel() -> None:
        for run in chance.sample(runs, 30):
            other.runs.cancel(run.id)

    thread = threading.Thread(target=cancel)
    thread.start()
    states = [run.wait(TIMEOUT) for run in runs]
    thread.join()

    assert set(states) <= {RunState.SUCCEEDED, RunState.CANCELLED}
    assert states.count(RunState.SUCCEEDED) >= 30
    finished = {span.label for span in overlap.spans("work") if span.finished}
    for number, state in enumerate(states):
        if state == RunState.SUCCEEDED:
            assert str(number) in finished


def test_e10_a_cancel_asked_twice_by_many(make_engine: Engines, overlap: Overlap, tmp_path: Path):
    engine = make_engine()
    run = engine.submit(steps.hold, str(tmp_path / "latch"))
    eventually(lambda: overlap.count("held") == 1)
    threads = [threading.Thread(target=run.cancel) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert run.wait(TIMEOUT) == RunState.CANCELLED
    ends = [
        event for event in run.events() if event.subject == "run" and event.after == "cancelled"
    ]
    assert len(ends) == 1
    assert overlap.spans("held")[0].error == "CancelledError"


def test_e11_fifty_threads_take_one_slot_in_turn(make_engine: Engines, overlap: Overlap):
    """`slots()` from fifty threads: one holds it, the others wait their turn."""
    engine = make_engine()
    engine.pools.set("one", limit=1)
    barrier = threading.Barrier(50)
    failed: list[LocktenderError] = []

    def claim(number: int) -> None:
        try:
            barrier.wait(90)
            with engine.slots("one", timeout=TIMEOUT), overlap.body("one", label=str(number)):
                time.sleep(0.001)
        except LocktenderError as error:
            failed.append(error)

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failed == []
    assert sorted(overlap.labels("one"), key=int) == [str(number) for number in range(50)]
    assert overlap.peak("one") == 1


def test_e11_a_claimer_that_gives_up_holds_nothing(make_engine: Engines):
    engine = make_engine()
    engine.pools.set("one", limit=1)
    with engine.slots("one"):
        with pytest.raises(WaitTimeout), engine.slots("one", timeout="30ms"):
            pass
        eventually(lambda: engine.pools.get("one").waiting == 0)
        assert engine.pools.get("one").used == 1
    with engine.slots("one", timeout=TIMEOUT):
        pass


def test_submissions_from_many_threads_meet_the_ceiling_exactly(
    make_engine: Engines, overlap: Overlap, tmp_path: Path
):
    """B4 under contention: of 40 at once on a ceiling of 15, 15 are taken."""
    engine = make_engine(max_active=15, max_concurrent_runs=3)
    second = make_engine.connect()
    latch = tmp_path / "latch"
    taken: list[Run[Any]] = []
    refused: list[AdmissionRejected] = []

    def submit(client: Client, number: int) -> None:
        try:
            taken.append(client.submit(steps.hold, str(latch), number))
        except AdmissionRejected as error:
            refused.append(error)

    threads = [
        threading.Thread(target=submit, args=(client, number))
        for number in range(20)
        for client in (engine, second)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (len(taken), len(refused)) == (15, 25)
    assert len(engine.runs.list(limit=100)) == 15
    eventually(lambda: overlap.count("held") == 3)
    latch.touch()
    assert {engine.runs.get(run.id).wait(TIMEOUT) for run in taken} == {RunState.SUCCEEDED}
    assert overlap.peak("held") == 3


def test_two_engines_on_one_file_share_every_limit(make_engine: Engines, overlap: Overlap):
    """One leads, both work: pools, windows, the run gate and tags hold over both."""
    engine = make_engine(
        max_concurrent_runs=3, async_permits=1, thread_permits=1, process_permits=1, **KEPT
    )
    engine.pools.set("db", limit=4)
    engine.pools.set("api", limit=6)
    engine.pools.set("cpu", limit=2)
    others = [make_engine.process(STEPS_FILE, max_concurrent_runs=3, **KEPT) for _ in range(2)]
    for other in others:
        other.ready()
    runs = [engine.submit(steps.pipeline, list(range(10))) for _ in range(8)]

    assert {run.result(TIMEOUT) for run in runs} == {sum((n + 1) * 2 for n in range(10))}

    for name, limit in (("db", 4), ("api", 6), ("cpu", 2)):
        assert overlap.peak(name) <= limit, name
    assert overlap.count("db") == overlap.count("api") == overlap.count("cpu") == 80
    workers = {task.worker for run in runs for task in run.tasks()}
    assert len(workers) >= 2
    leaders = {event.actor for run in runs for event in run.events() if "leader" in event.actor}
    assert len(leaders) == 1
