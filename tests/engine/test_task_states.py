"""B5, B13, C1–C4, D1, D2 with real bodies: the states of a task, and which process may write them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from locktender import Run, RunState, TaskState, flow, step
from locktender.base.changes import End
from locktender.base.clock import MILLISECOND, SECOND, ManualClock
from locktender.base.model import WorkerRow
from locktender.base.states import TASK_CHANGES, Owner
from locktender.store.protocol import Accept, Finish, Heartbeat
from locktender.store.sqlite import SqliteStore
from locktender.testing import Engines, Overlap, eventually, recording
from locktender.testing.overlap import alive
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin"]

STEPS_FILE = Path(__file__).parents[1] / "steps" / "engine_steps.py"
steps: Any = load(source(STEPS_FILE))
SIDES_FILE = Path(__file__).parents[1] / "steps" / "side_steps.py"
sides: Any = load(source(SIDES_FILE))
TIMEOUT = "60s"
EXECUTORS = ("async", "thread", "process")
T = TypeVar("T")


@step(retries=1, retry_delay="1ms")
def second_time(path: str) -> int:
    with recording("second_time"):
        if not Path(path).exists():
            Path(path).touch()
            raise OSError("the first time")
    return 1


@step
async def plus(value: int) -> int:
    with recording("plus"):
        return value + 1


@step(needs={"role": "special"})
async def special() -> str:
    with recording("special"):
        return "done"


@flow
def retried(path: str) -> int:
    return plus(second_time(path))


@flow
def specials() -> str:
    return special()


@flow
def held_and_more(executor: str, latch: str) -> int:
    held = {
        "async": steps.held,
        "thread": steps.held_in_thread,
        "process": steps.held_in_process,
    }[executor]
    return plus(held(latch, 1))


@flow(max_parallel=1)
def one_by_one(latch: str) -> list[int]:
    return [steps.held(latch, 1), steps.held(latch, 2)]


def ask(path: Path, question: Callable[[SqliteStore], Awaitable[T]]) -> T:
    """Asks the store itself, beside the engine, as another process would."""

    async def asking() -> T:
        store = SqliteStore(path)
        await store.open()
        try:
            return await question(store)
        finally:
            await store.close()

    return asyncio.run(asking())


def changes(run: Run[Any], subject: str, name: str | None = None) -> list[tuple[str, str]]:
    return [
        (event.before, event.after)
        for event in run.events()
        if event.subject == subject and (name is None or event.name == name)
    ]


# -- acceptance ------------------------------------------------------------------------------------


def test_b5_a_task_is_running_before_its_body_begins(make_engine: Engines):
    """The body reads its own row: in the leader's process, and where another leads."""
    engine = make_engine()
    expected = [TaskState.RUNNING] * 3
    assert engine.submit(steps.own_states, str(make_engine.path)).result(TIMEOUT) == expected


def test_b5_in_another_process_than_the_leaders(make_engine: Engines):
    leader = make_engine(async_permits=1, thread_permits=0, process_permits=0)
    other = make_engine.process(STEPS_FILE).ready()
    run = leader.submit(steps.own_states, str(make_engine.path))
    assert run.result(TIMEOUT) == [TaskState.RUNNING] * 3
    workers = {task.worker for task in run.tasks() if task.name != "own_state_on_loop"}
    assert [f"-{other.pid}-" in str(worker) for worker in workers] == [True]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_b5_it_is_shown_running_while_the_body_blocks(
    make_engine: Engines, overlap: Overlap, tmp_path: Path, executor: str
):
    run = make_engine().submit(steps.BLOCKING[executor], str(tmp_path / "latch"))
    eventually(lambda: overlap.count("held") == 1)

    assert [task.state for task in run.tasks()] == [TaskState.RUNNING]
    (tmp_path / "latch").touch()
    assert run.result(TIMEOUT) == 0


def test_b13_attempts_never_share_a_work_directory(make_engine: Engines, overlap: Overlap):
    engine = make_engine()

    results = engine.submit(steps.workdirs, list(range(6))).result(TIMEOUT)

    used = overlap.labels("workdir")
    assert len(used) == len(set(used)) == 3 * (6 + 3)  # one per attempt: every second was retried
    assert {path for several in results for path in several} <= set(used)
    assert all(Path(path).is_relative_to(engine.settings.work_dir) for path in used)
    root = Path(engine.settings.work_dir)
    assert [each for each in root.rglob("*") if each.is_dir() and each.parent != root] == []
    engine.close()
    assert [each for each in root.iterdir() if each.is_dir()] == []


# -- one owner per state ---------------------------------------------------------------------------


def test_c1_one_write_per_change_by_its_owner(make_engine: Engines, tmp_path: Path):
    run = make_engine().submit(retried, str(tmp_path / "tried"))
    assert run.result(TIMEOUT) == 2

    assert changes(run, "run") == [
        ("new", "queued"),
        ("queued", "running"),
        ("running", "succeeded"),
    ]
    assert changes(run, "task", "second_time") == [
        ("new", "requested"), ("requested", "scheduled"), ("scheduled", "running"),
        ("running", "failed"), ("failed", "requested"), ("requested", "scheduled"),
        ("scheduled", "running"), ("running", "completed"),
    ]  # fmt: skip
    assert changes(run, "task", "plus") == [
        ("new", "requested"), ("requested", "scheduled"), ("scheduled", "running"),
        ("running", "completed"),
    ]  # fmt: skip


def test_c1_the_owner_writes_where_another_leads(make_engine: Engines):
    engine = make_engine(async_permits=1, thread_permits=0, process_permits=0)
    other = make_engine.process(STEPS_FILE).ready()
    run = engine.submit(steps.hold_in_thread, "", 3)
    assert run.result(TIMEOUT) == 3

    events = [event for event in run.events() if event.subject == "task"]
    assert [(event.before, event.after) for event in events] == [
        ("new", "requested"), ("requested", "scheduled"), ("scheduled", "running"),
        ("running", "completed"),
    ]  # fmt: skip
    for event in events:
        owner = TASK_CHANGES[event.before, event.after]
        assert event.actor.startswith("worker:" if owner is Owner.WORKER else "leader:")
        assert (f"-{other.pid}-" in event.actor) == (owner is Owner.WORKER)


def test_c2_one_completion_whatever_is_delivered_again(
    make_engine: Engines, overlap: Overlap, tmp_path: Path
):
    engine = make_engine()
    latch = tmp_path / "latch"
    run = engine.submit(held_and_more, "async", str(latch))
    eventually(lambda: overlap.count("held") == 1)
    number = run.info().number
    (row,) = ask(make_engine.path, lambda store: store.tasks(number))
    worker = str(row.worker)

    def deliver(token: int, state: str, output: bytes | None = b"99") -> list[tuple[int, int]]:
        ended = End(row.id, token, state, output)
        return ask(make_engine.path, lambda store: store.finish(Finish(worker, [ended])))

    # an older and a newer attempt's word changes nothing
    assert deliver(row.token - 1, TaskState.COMPLETED) == [(row.id, row.token - 1)]
    assert deliver(row.token + 1, TaskState.FAILED, None) == [(row.id, row.token + 1)]
    latch.touch()
    assert run.result(TIMEOUT) == 2
    # the same once more is not news; another outcome comes too late
    assert deliver(row.token, TaskState.COMPLETED) == []
    assert deliver(row.token, TaskState.FAILED, None) == [(row.id, row.token)]
    assert run.result(TIMEOUT) == 2
    assert (overlap.count("held"), overlap.count("plus")) == (1, 1)
    assert [after for _, after in changes(run, "task", "held")].count("completed") == 1


# -- cancel ----------------------------------------------------------------------------------------


def test_c3_cancel_before_hand_off_and_no_worker_sees_it(
    make_engine: Engines, overlap: Overlap, tmp_path: Path
):
    """One run waits in the queue, one task waits for its run's only place."""
    engine = make_engine(max_concurrent_runs=1)
    latch = tmp_path / "latch"
    running, queued = (
        engine.submit(one_by_one, str(latch)),
        engine.submit(steps.hold, str(latch), 3),
    )
    eventually(lambda: overlap.count("held") == 1)

    queued.cancel()
    assert queued.wait(TIMEOUT) == RunState.CANCELLED
    assert queued.tasks() == []
    running.cancel()
    assert running.wait(TIMEOUT) == RunState.CANCELLED

    assert overlap.labels("held") == ["1"]
    waited = running.tasks()[1]
    assert waited.state == TaskState.CANCELLED
    assert (waited.started_at, waited.worker) == (None, None)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_c3_cancel_after_hand_off_stops_the_body(
    make_engine: Engines, overlap: Overlap, tmp_path: Path, executor: str
):
    engine = make_engine()
    run = engine.submit(held_and_more, executor, str(tmp_path / "latch"))
    eventually(lambda: overlap.count("held") == 1)

    run.cancel("not needed")

    assert run.wait(TIMEOUT) == RunState.CANCELLED
    (span,) = overlap.spans("held")
    if executor == "async":
        assert span.error == "CancelledError"
    elif executor == "thread":
        assert span.finished  # it was asked, and saw it
    else:
        assert span.ended_us is None
        assert not alive(span.pid)
    held = next(task for task in run.tasks() if task.name.startswith("held"))
    assert held.state == TaskState.CANCELLED
    assert "plus" not in overlap.names()
    assert all(task.state == TaskState.SKIPPED for task in run.tasks() if task.name == "plus")


def test_c3_a_cancelled_thread_keeps_its_slot_until_it_ends(
    make_engine: Engines, overlap: Overlap, tmp_path: Path
):
    """Its capacity is not given away while the thread still runs."""
    engine = make_engine()
    engine.pools.set("deaf", limit=1)
    latch = tmp_path / "latch"
    stuck = engine.submit(deafly, str(latch))
    eventually(lambda: overlap.count("deaf") == 1)

    stuck.cancel()
    eventually(lambda: stuck.status() == RunState.CANCELLING)
    waiting = engine.submit(deafly, str(latch))
    eventually(lambda: "pool deaf" in str(waiting.why()))
    assert overlap.count("deaf") == 1
    assert engine.pools.get("deaf").used == 1
    latch.touch()

    assert stuck.wait(TIMEOUT) == RunState.CANCELLED
    assert waiting.wait(TIMEOUT) == RunState.SUCCEEDED
    assert overlap.peak("deaf") == 1


@step(pool="deaf")
def deaf(latch: str) -> None:
    """Does not look whether it was asked to stop."""
    with recording("deaf"):
        eventually(Path(latch).exists, "100s")


@flow
def deafly(latch: str) -> None:
    return deaf(latch)


def test_c3_a_cancel_before_anybody_leads_is_remembered(
    make_engine: Engines, overlap: Overlap, tmp_path: Path
):
    client = make_engine.connect()
    run, other = client.submit(steps.hold, "", 1), client.submit(steps.hold, "", 2)
    assert not run.cancel("changed my mind").leader

    make_engine()

    assert run.wait(TIMEOUT) == RunState.CANCELLED
    assert other.wait(TIMEOUT) == RunState.SUCCEEDED
    assert overlap.labels("held") == ["2"]


# -- losing a worker -------------------------------------------------------------------------------


def test_c4_a_worker_that_dies_after_accepting(make_engine: Engines, overlap: Overlap):
    """It accepts by the book and is never heard of again: its lease passes, another gets the task."""
    engine = make_engine()
    ghost = WorkerRow("ghost", "h", 1, "0", {"async": 1}, 1, 1, labels={"role": "special"})
    run = engine.submit(specials)

    async def accept(store: SqliteStore) -> int:
        await store.heartbeat(Heartbeat(ghost, 600 * SECOND))
        while not (orders := await store.orders("ghost")):
            await store.wait(20 * MILLISECOND)
        (started,) = await store.accept(Accept("ghost", [(orders[0].task, orders[0].token)]))
        await store.heartbeat(Heartbeat(ghost, 100 * MILLISECOND))  # its last
        return started.token

    token = ask(make_engine.path, accept)
    assert run.tasks()[0].worker == "ghost"
    make_engine(worker_labels={"role": "special"})

    assert run.result(TIMEOUT) == "done"
    assert overlap.count("special") == 1
    assert ("running", "abandoned") in changes(run, "task")
    task = run.tasks()[0]
    late = End(task.id, token, TaskState.COMPLETED, b'"ghost"')
    stale = ask(make_engine.path, lambda store: store.finish(Finish("ghost", [late])))
    assert stale == [(task.id, token)]
    # nor can it come back
    beaten = ask(
        make_engine.path, lambda store: store.heartbeat(Heartbeat(ghost, 400 * MILLISECOND))
    )
    assert beaten.lease_until == 0
    assert run.result(TIMEOUT) == "done"


def test_b12_an_expired_holder_can_write_nothing(make_engine: Engines):
    """Before it has renewed its lease again, or its row is gone."""
    clock = ManualClock()
    worker = WorkerRow("w", "h", 1, "0", {"async": 1}, 1, 1)
    beat = Heartbeat(worker, 10 * SECOND)

    async def expire() -> None:
        store = SqliteStore(make_engine.path, clock)
        await store.open()
        assert (await store.heartbeat(beat)).lease_until == clock.now() + 10 * SECOND
        clock.advance(9 * SECOND)
        assert (await store.heartbeat(beat)).lease_until == clock.now() + 10 * SECOND
        clock.advance(10 * SECOND + 1)
        assert await store.accept(Accept("w", [(1 << 20, 1)])) == []
        stale = await store.finish(Finish("w", [End(1 << 20, 1, TaskState.COMPLETED)]))
        assert stale == [(1 << 20, 1)]
        assert await store.stale_writes() == 2
        assert (await store.heartbeat(beat)).lease_until == clock.now() + 10 * SECOND
        await store.close()

    asyncio.run(expire())


# -- order and parallelism -------------------------------------------------------------------------


def test_d1_a_sequential_flow_keeps_its_order(make_engine: Engines, overlap: Overlap):
    """Ten tasks over two workers in turns, every third retried twice."""
    engine = make_engine(worker_labels={"side": "left"})
    make_engine.process(SIDES_FILE, worker_labels={"side": "right"}).ready()
    expected = [n for n in range(10) for _ in range(3 if n % 3 == 0 else 1)]

    for _ in range(2):
        assert engine.submit(sides.ten_in_order).result(TIMEOUT) == list(range(10))

    assert overlap.labels("order") == [str(n) for n in expected] * 2
    assert overlap.peak("order") == 1
    assert len({span.pid for span in overlap.spans("order")}) == 2


def test_d2_a_hundred_runs_in_parallel_on_one_worker(
    make_engine: Engines, overlap: Overlap, tmp_path: Path
):
    engine = make_engine(max_concurrent_runs=100)
    latch = tmp_path / "latch"
    runs = engine.submit_many(steps.hold, [(str(latch), n) for n in range(100)])
    eventually(lambda: overlap.count("held") == 100)
    latch.touch()

    assert [run.result(TIMEOUT) for run in runs] == list(range(100))
    assert overlap.peak("held") == 100
