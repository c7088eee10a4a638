"""C5, E3–E5, E11 with real bodies: slots are taken all or none, and freed exactly once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from locktender import InvalidInput, RunFailed, RunState, TaskState, flow, step
from locktender.testing import (
    Engines,
    MaxConcurrent,
    Overlap,
    VirtualClock,
    eventually,
    load_history,
    recording,
)
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin"]

steps: Any = load(source(Path(__file__).parents[1] / "steps" / "engine_steps.py"))
TIMEOUT = "60s"


# -- every terminal path (C5) ----------------------------------------------------------------------

ENDS = {
    "success": (RunState.SUCCEEDED, TaskState.COMPLETED),
    "failure": (RunState.FAILED, TaskState.FAILED),
    "timeout": (RunState.FAILED, TaskState.TIMED_OUT),
    "cancel": (RunState.CANCELLED, TaskState.CANCELLED),
    "retry": (RunState.SUCCEEDED, TaskState.COMPLETED),
    "unserialisable": (RunState.FAILED, TaskState.FAILED),
    "killed": (RunState.FAILED, TaskState.FAILED),
}
PATHS = [
    (executor, how)
    for executor in ("async", "thread", "process")
    for how in ENDS
    if how != "killed" or executor == "process"  # elsewhere the body's process is the engine's
]


@pytest.mark.parametrize(("executor", "how"), PATHS)
def test_c5_every_end_frees_its_slots_once(
    make_engine: Engines, overlap: Overlap, tmp_path: Path, executor: str, how: str
):
    """Two tasks of two slots fill the pool, two wait; afterwards a probe needs every slot there is."""
    engine = make_engine(process_permits=2)
    engine.pools.set("slots", limit=4)
    engine.pools.set("other", limit=2)
    state, task_state = ENDS[how]

    run = engine.submit(steps.endings, executor, how, str(tmp_path / "latch"), 4)
    if how == "cancel":
        eventually(lambda: overlap.count("ending") == 2)
        run.cancel()

    assert run.wait(TIMEOUT) == state
    assert task_state in {task.state for task in run.tasks()}
    assert engine.pools.get("slots").used == engine.pools.get("other").used == 0
    assert engine.submit(steps.probing).result(TIMEOUT)
    assert overlap.peak("ending") <= 4
    began = {"cancel": 2, "retry": 8}.get(how, 4)
    if how == "timeout":  # a child may be stopped before its body's first line
        assert 1 <= overlap.count("ending") <= began + 1
    else:
        assert overlap.count("ending") == began + 1


def test_c5_an_error_of_our_own_frees_the_slots(
    make_engine: Engines, overlap: Overlap, monkeypatch: pytest.MonkeyPatch
):
    from locktender.worker.executors import thread

    def broken(*_: Any) -> Any:
        raise RuntimeError("a bug")

    engine = make_engine()
    engine.pools.set("slots", limit=4)
    engine.pools.set("other", limit=2)
    with monkeypatch.context() as patch:
        patch.setattr(thread, "perform", broken)
        run = engine.submit(steps.endings, "thread", "success", "", 4)
        with pytest.raises(RunFailed, match="internal"):
            run.result(TIMEOUT)

    assert engine.pools.get("slots").used == 0
    assert engine.submit(steps.probing).result(TIMEOUT)


# -- parallelism -----------------------------------------------------------------------------------


@step(pool="scarce")
async def scarce(latch: str, item: int) -> None:
    with recording("all"), recording("scarce", label=str(item)):
        await steps.until_open(latch)


@step
async def free(latch: str, item: int) -> None:
    with recording("all"), recording("free", label=str(item)):
        await steps.until_open(latch)


@flow(max_parallel=8)
def eight_at_once(latch: str) -> None:
    for item in range(10):
        scarce(latch, item)
    for item in range(20):
        free(latch, item)


@flow(max_parallel={"async": 3, "thread": 2})
def by_executor(latch: str) -> None:
    for item in range(9):
        steps.held(latch, item, "loop")
        steps.held_in_thread(latch, item, "thread")


@step
async def link(value: int, name: str) -> int:
    with recording(name):
        return value + 1


@flow
def two_branches(latch: str) -> int:
    slow = steps.held(latch, 1)
    fast = link(link(link(0, "fast-1"), "fast-2"), "fast-3")
    return link.with_options(after=[fast])(slow, "slow-2")


def test_e3_max_parallel_stacks_with_a_pool(make_engine: Engines, overlap: Overlap, tmp_path: Path):
    engine = make_engine()
    engine.pools.set("scarce", limit=2)
    run = engine.submit(eight_at_once, str(tmp_path / "latch"))

    eventually(lambda: overlap.count("all") == 8)
    assert (overlap.count("scarce"), overlap.count("free")) == (2, 6)
    gates = {reason.gate for group in run.why().waiting for reason in group.reasons}
    assert gates == {"pool:scarce", "run:parallel"}
    (tmp_path / "latch").touch()

    assert run.wait(TIMEOUT) == RunState.SUCCEEDED
    assert (overlap.peak("all"), overlap.peak("scarce")) == (8, 2)
    assert overlap.count("all") == 30


def test_e3_max_parallel_per_executor(make_engine: Engines, overlap: Overlap, tmp_path: Path):
    run = make_engine().submit(by_executor, str(tmp_path / "latch"))
    eventually(lambda: len(overlap.spans("loop") + overlap.spans("thread")) == 5, "60s")
    (tmp_path / "latch").touch()
    assert run.wait(TIMEOUT) == RunState.SUCCEEDED

    assert (overlap.peak("loop"), overlap.peak("thread")) == (3, 2)


def test_e4_no_barrier_between_levels(make_engine: Engines, overlap: Overlap, tmp_path: Path):
    run = make_engine().submit(two_branches, str(tmp_path / "latch"))

    eventually(lambda: "fast-3" in overlap.names())
    assert "slow-2" not in overlap.names()
    (tmp_path / "latch").touch()
    assert run.result(TIMEOUT) == 2


# -- pools -----------------------------------------------------------------------------------------


@step(pools={"left": 1, "right": 1})
async def both(item: int) -> int:
    with recording("both"), recording("left"), recording("right"):
        await asyncio.sleep(0.004)
    return item


@step(pool="left")
async def left(item: int) -> int:
    with recording("left"):
        await asyncio.sleep(0.003)
    return item


@step(pools={"right": 2})
async def right(item: int) -> int:
    with recording("right", weight=2):
        await asyncio.sleep(0.003)
    return item


@step(pool="one")
async def holding(latch: str, item: int) -> int:
    with recording("one", label=str(item)):
        await steps.until_open(latch)
    return item


@step(pools={"left": 1, "one": 1})
async def left_and_one(latch: str) -> None:
    with recording("left_and_one"):
        await steps.until_open(latch)


@step(pools={"api[{tenant}]": 1})
async def api(item: int, tenant: str) -> int:
    with recording(f"api-{tenant}"):
        await asyncio.sleep(0.003)
    return item


@flow
def mixed(count: int) -> None:
    for item in range(count):
        both(item)
        left(item)
        right(item)


@flow
def hold_one(latch: str, item: int = 0) -> int:
    return holding(latch, item)


@flow
def wants_both(latch: str) -> None:
    left_and_one(latch)


@flow
def lefts(count: int) -> list[int]:
    return left.map(list(range(count)))


@flow
def apis(count: int, tenant: str) -> list[int]:
    return api.map(list(range(count)), tenant=tenant)


@flow
def rights() -> int:
    return right(1)


def test_e5_several_pools_with_weights(
    make_engine: Engines, overlap: Overlap, assert_max_concurrent: MaxConcurrent
):
    engine = make_engine(max_concurrent_runs=-1)
    engine.pools.set("left", limit=3)
    engine.pools.set("right", limit=5)
    runs = [engine.submit(mixed, 6) for _ in range(4)]

    assert {run.wait(TIMEOUT) for run in runs} == {RunState.SUCCEEDED}

    assert assert_max_concurrent("left", 3) == 3
    assert assert_max_concurrent("right", 5) >= 4
    assert overlap.count("both") == 24


def test_e5_all_or_none(make_engine: Engines, overlap: Overlap, tmp_path: Path):
    """A task that waits for one pool holds nothing of the other."""
    engine = make_engine()
    engine.pools.set("left", limit=1)
    engine.pools.set("one", limit=1)
    latch, other = tmp_path / "latch", tmp_path / "other"
    holder = engine.submit(hold_one, str(latch))
    eventually(lambda: overlap.count("one") == 1)
    other.touch()
    waiter = engine.submit(wants_both, str(other))
    eventually(lambda: "pool one" in str(waiter.why()))

    assert engine.pools.get("left").used == 0
    assert engine.submit(lefts, 3).result(TIMEOUT) == [0, 1, 2]  # nobody is in the way
    assert "left_and_one" not in overlap.names()
    latch.touch()

    assert waiter.wait(TIMEOUT) == holder.wait(TIMEOUT) == RunState.SUCCEEDED


def test_e5_a_limit_is_raised_lowered_and_unset(
    make_engine: Engines, overlap: Overlap, tmp_path: Path
):
    engine = make_engine(max_concurrent_runs=-1, poll="1h")  # what is set is in force at once
    gates = [tmp_path / str(n) for n in range(20)]
    engine.pools.set("one", limit=1)
    runs = [engine.submit(hold_one, str(gate), n) for n, gate in enumerate(gates)]
    eventually(lambda: overlap.count("one") == 1)

    engine.pools.set("one", limit=5)
    eventually(lambda: overlap.count("one") == 5)
    engine.pools.set("one", limit=2)  # holders finish, nothing new starts above it
    for gate in gates[:3]:
        gate.touch()
    assert {run.wait(TIMEOUT) for run in runs[:3]} == {RunState.SUCCEEDED}
    assert (overlap.count("one"), overlap.levels("one")[-1]) == (5, 2)
    engine.pools.delete("one")
    eventually(lambda: overlap.count("one") == 20)
    assert engine.pools.get("one").limit_text == "unlimited (never set)"

    for gate in gates:
        gate.touch()
    assert {run.wait(TIMEOUT) for run in runs} == {RunState.SUCCEEDED}


def test_e5_what_can_never_be_had_is_refused(make_engine: Engines):
    engine = make_engine()
    engine.pools.set("right", limit=1)

    with pytest.raises(InvalidInput, match="right"):
        engine.submit(rights)
    assert engine.runs.list() == []

    engine.pools.set("right", limit=2)
    engine.pools.pause("right")
    run = engine.submit(rights)
    eventually(lambda: "paused" in str(run.why()))
    engine.pools.set("right", limit=1)
    eventually(lambda: "never" in str(run.why()))
    engine.pools.set("right", limit=2)
    engine.pools.resume("right")
    assert run.result(TIMEOUT) == 1


def test_e5_a_key_has_slots_of_its_own(make_engine: Engines, overlap: Overlap):
    engine = make_engine()
    engine.pools.set("api[*]", limit=2)
    engine.pools.set("api[big]", limit=4)
    runs = [engine.submit(apis, 10, tenant) for tenant in ("a", "b", "big")]

    assert {run.wait(TIMEOUT) for run in runs} == {RunState.SUCCEEDED}

    assert [overlap.peak(f"api-{tenant}") for tenant in ("a", "b", "big")] == [2, 2, 4]


def test_e5_a_release_wakes_the_next_at_once(
    make_engine: Engines, overlap: Overlap, tmp_path: Path
):
    """In the very commit that has the end of the holder, or the next one. Nothing is polled for."""
    engine = make_engine(max_concurrent_runs=-1, poll="1h")
    engine.pools.set("one", limit=1)
    gates = [tmp_path / str(n) for n in range(10)]
    runs = [engine.submit(hold_one, str(gate), n) for n, gate in enumerate(gates)]
    for number, gate in enumerate(gates):
        eventually(lambda n=number: overlap.count("one") == n + 1)
        gate.touch()
    assert [run.result(TIMEOUT) for run in runs] == list(range(10))

    spans = overlap.spans("one")
    assert [span.label for span in spans] == [str(n) for n in range(10)]  # the right one, by age
    events = load_history(engine).events
    freed = [each.cycle for each in events if each.subject == "task" and each.after == "completed"]
    taken = [each.cycle for each in events if each.subject == "task" and each.after == "scheduled"]
    for release, grant in zip(freed[:-1], taken[1:], strict=True):
        assert 0 <= grant - release <= 1


def test_e5_a_task_that_waits_too_long_fails(
    engine_clock: VirtualClock, make_engine: Engines, overlap: Overlap, tmp_path: Path
):
    engine = make_engine()
    engine.pools.set("one", limit=1)
    latch = tmp_path / "latch"
    holder = engine.submit(hold_one, str(latch), 1)
    eventually(lambda: overlap.count("one") == 1)
    waiter = engine.submit(hold_one, str(latch), 2, queue_timeout="10m")
    eventually(lambda: "pool one" in str(waiter.why()))

    engine_clock.move("9m59s")
    assert waiter.status() == RunState.RUNNING
    engine_clock.move("2s")

    with pytest.raises(RunFailed, match="queue_timeout: pool:one"):
        waiter.result(TIMEOUT)
    assert overlap.labels("one") == ["1"]
    latch.touch()
    assert holder.result(TIMEOUT) == 1


def test_e11_fifty_claimers_of_one_slot(make_engine: Engines, overlap: Overlap, tmp_path: Path):
    engine = make_engine(max_concurrent_runs=-1)
    engine.pools.set("one", limit=1)
    latch = tmp_path / "latch"
    runs = engine.submit_many(hold_one, [(str(latch), n) for n in range(50)])
    eventually(lambda: overlap.count("one") == 1 and engine.pools.get("one").waiting == 49)

    assert engine.pools.get("one").used == 1
    states = [run.tasks()[0].state for run in runs]
    assert (states.count(TaskState.RUNNING), states.count(TaskState.REQUESTED)) == (1, 49)
    latch.touch()

    assert [run.result(TIMEOUT) for run in runs] == list(range(50))
    assert (overlap.peak("one"), overlap.count("one")) == (1, 50)
