"""B5, C1–C5 over processes: one owner per state, one write per end, every slot freed once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.support.fleet import TIMEOUT, Fleet, ask, changes, fleet, steps
from tests.support.leases import lapse_worker

from locktender import RunState, TaskState
from locktender.base.changes import End
from locktender.base.clock import MILLISECOND, SECOND
from locktender.base.model import WorkerRow
from locktender.base.states import TASK_CHANGES, Owner
from locktender.store.open import settings_for, store_for
from locktender.store.protocol import Accept, Finish, Heartbeat, Store
from locktender.testing import eventually
from locktender.testing.overlap import alive

pytest_plugins = [
    "locktender.testing.plugin",
    "locktender.testing.postgres",
    "tests.support.shared_cluster",
]

T = TypeVar("T")
EXECUTORS = ("async", "thread", "process")
PLAIN = [("new", "requested"), ("requested", "scheduled"), ("scheduled", "running")]
LEASE_US = 600 * SECOND
"""It ends where a test says so."""


def test_b5_a_task_is_running_before_its_body_begins(standing: Fleet):
    """The body asks through a client of its own, and blocks meanwhile: on the loop, everybody."""
    states = standing.client.submit(fleet.own_states, standing.url).result(TIMEOUT)

    assert [tuple(each) for each in states] == [(RunState.RUNNING, TaskState.RUNNING)] * 3


def test_c1_one_write_per_change_by_its_owner(standing: Fleet, tmp_path: Path):
    run = standing.client.submit(fleet.retried, str(tmp_path / "tried"))
    assert run.result(TIMEOUT) == 2

    queued = [("new", "queued"), ("queued", "running"), ("running", "succeeded")]
    assert changes(run, "run") == queued
    again = [("running", "failed"), ("failed", "requested"), *PLAIN[1:]]
    assert changes(run, "task", "second_time") == [*PLAIN, *again, ("running", "completed")]
    assert changes(run, "task", "plus") == [*PLAIN, ("running", "completed")]
    leader = ask(standing.url, lambda store: store.leader())
    workers = {f"worker:{worker.id}" for worker in standing.client.workers.list()}
    for event in run.events():
        if event.subject == "task":
            owner = TASK_CHANGES[event.before, event.after]
            assert (event.actor in workers) == (owner is Owner.WORKER), event
            assert (event.actor == f"leader:{leader}") == (owner is Owner.LEADER), event


class Ghost:
    """A worker by the book, through the store's verbs alone: it does what no worker of ours would.

    It lives as long as its store is open: on one machine a closed one is known to be dead at once.
    """

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.row = WorkerRow(name, "h", 1, "0", {"async": 1}, 1, 1, labels={"role": "special"})
        self._runner = asyncio.Runner()
        self._store: Store | None = None

    def __enter__(self) -> Ghost:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        self._runner.close()

    def _close(self) -> None:
        if self._store is not None:
            self._runner.run(self._store.close())
            self._store = None

    def _ask(self, question: Callable[[Store], Awaitable[T]]) -> T:
        async def asking() -> T:
            if self._store is None:
                self._store = store_for(settings_for(self.url, {}))
                await self._store.open()
            return await question(self._store)

        return self._runner.run(asking())

    def heartbeat(self) -> int:
        return self._ask(lambda store: store.heartbeat(Heartbeat(self.row, LEASE_US))).lease_until

    def offered(self) -> tuple[int, int]:
        """Waits for an offer, alive meanwhile."""

        async def wait(store: Store) -> tuple[int, int]:
            while not (orders := await store.orders(self.row.id)):
                await store.heartbeat(Heartbeat(self.row, LEASE_US))
                await store.wait_for_offers(self.row.id, 20 * MILLISECOND)
            return orders[0].task, orders[0].token

        return self._ask(wait)

    def accept(self, task: int, token: int) -> list[int]:
        wanted = Accept(self.row.id, [(task, token)])
        return [each.task for each in self._ask(lambda store: store.accept(wanted))]

    def finish(self, task: int, token: int, state: str, output: bytes | None = None) -> bool:
        """Whether it was news or known; False: it was stale and changed nothing."""
        said = Finish(self.row.id, [End(task, token, state, output)])
        return self._ask(lambda store: store.finish(said)) == []

    def leave(self) -> None:
        self._ask(lambda store: store.leave(self.row.id))

    def die(self) -> None:
        """Its lease is over. It may come back."""
        self._close()
        lapse_worker(self.url, self.row.id)


@pytest.fixture
def ghost(request: pytest.FixtureRequest, standing: Fleet) -> Iterator[Ghost]:
    with Ghost(standing.url, f"ghost-{request.node.originalname}") as made:
        yield made


def test_c2_repeated_or_late_deliveries_complete_once(standing: Fleet, ghost: Ghost):
    run = standing.client.submit(fleet.special_and_more)
    task, token = ghost.offered()

    # before it was accepted, and in the name of other attempts
    assert not ghost.finish(task, token, TaskState.COMPLETED, b"1")
    assert ghost.accept(task, token - 1) == ghost.accept(task, token + 1) == []
    assert ghost.accept(task, token) == [task]
    assert not ghost.finish(task, token - 1, TaskState.COMPLETED, b"2")
    assert not ghost.finish(task, token + 1, TaskState.FAILED)
    # twice, and then something else
    assert ghost.finish(task, token, TaskState.COMPLETED, b"41")
    assert ghost.finish(task, token, TaskState.COMPLETED, b"41")
    assert not ghost.finish(task, token, TaskState.FAILED)
    assert run.result(TIMEOUT) == 42
    # late
    assert not ghost.finish(task, token, TaskState.CANCELLED)
    assert ghost.accept(task, token) == []
    ghost.leave()

    assert run.result(TIMEOUT) == 42
    assert changes(run, "task", "special") == [*PLAIN, ("running", "completed")]
    assert standing.overlap.names() == ["plus"]
    assert standing.overlap.count("plus") == 1


def test_c4_b12_a_worker_lost_after_accepting_is_fenced(standing: Fleet, ghost: Ghost):
    """Nothing of it was run: its lease passes, another gets the task, and its word counts for nothing."""
    standing.client.pools.set("desk", limit=1)
    run = standing.client.submit(fleet.special_and_more)
    task, token = ghost.offered()
    assert ghost.accept(task, token) == [task]
    assert run.tasks()[0].worker == ghost.row.id
    assert standing.client.pools.get("desk").used == 1
    ghost.die()
    eventually(lambda: ("running", "abandoned") in changes(run, "task"))

    # it can neither renew, nor complete, nor fail, nor release, nor take anything
    assert ghost.heartbeat() == 0
    for state in ("completed", "failed", "timed_out", "cancelled", "handed_back"):
        assert not ghost.finish(task, token, state, b"0" if state == "completed" else None)
    assert ghost.accept(task, token) == []
    assert (
        standing.client.pools.get("desk").used == 0
    )  # C5: freed by its end, and not by what it says later
    assert standing.overlap.names() == []
    special = standing.cluster.worker(
        *(Path(each.__file__) for each in (fleet, steps)), labels={"role": "special"}
    ).ready()

    assert run.result(TIMEOUT) == 42
    assert not ghost.finish(task, token, TaskState.COMPLETED, b"0")
    assert [(each.attempt, str(each.state)) for each in run.tasks()] == [
        (2, "completed"),
        (1, "completed"),
    ]
    assert standing.overlap.count("special") == standing.overlap.count("plus") == 1
    assert special.close() == 0


# -- cancel ----------------------------------------------------------------------------------------


def test_c3_cancel_before_hand_off_and_no_worker_sees_it(standing: Fleet, tmp_path: Path):
    """One run waits in the queue; a task of the other waits for a worker with its label."""
    latch = tmp_path / "latch"
    standing.client.limits.set_max_concurrent_runs(1)
    waiting = standing.client.submit(fleet.special_and_more)
    eventually(lambda: [str(task.state) for task in waiting.tasks()] == ["requested"])
    running = standing.client.submit(fleet.held_and_more, "async", str(latch))
    eventually(lambda: standing.overlap.names() == ["async"])
    queued = standing.client.submit(fleet.special_and_more)

    for run in (queued, waiting):
        assert run.cancel().leader
        assert run.wait(TIMEOUT) == RunState.CANCELLED

    assert queued.tasks() == []
    task = waiting.tasks()[0]
    assert (task.state, task.started_at, task.worker) == (TaskState.CANCELLED, None, None)
    assert standing.overlap.names() == ["async"]
    latch.touch()
    assert running.wait(TIMEOUT) == RunState.SUCCEEDED


def test_c3_cancel_after_hand_off_stops_the_body(standing: Fleet, tmp_path: Path):
    """On the loop it is cancelled, in a thread asked, in a process killed; what comes behind is skipped."""
    runs = {
        executor: standing.client.submit(fleet.held_and_more, executor, str(tmp_path / "latch"))
        for executor in EXECUTORS
    }
    overlap = standing.overlap
    eventually(lambda: set(overlap.names()) == set(EXECUTORS))

    for run in runs.values():
        run.cancel("not needed")

    assert {run.wait(TIMEOUT) for run in runs.values()} == {RunState.CANCELLED}
    spans = {executor: overlap.spans(executor) for executor in EXECUTORS}
    assert [len(found) for found in spans.values()] == [1, 1, 1]
    assert spans["async"][0].error == "CancelledError"
    assert spans["thread"][0].finished  # it was asked, and saw it
    assert spans["process"][0].ended_us is None
    assert not alive(spans["process"][0].pid)
    for run in runs.values():
        assert [str(task.state) for task in run.tasks()] == ["cancelled", "skipped"]
        owner = f"worker:{run.tasks()[0].worker}"
        (event,) = [event for event in run.events() if event.after == "cancelled" and event.task]
        assert event.actor == owner


# -- every terminal path ---------------------------------------------------------------------------

ENDS: dict[str, tuple[RunState, TaskState, int]] = {
    "success": (RunState.SUCCEEDED, TaskState.COMPLETED, 4),
    "failure": (RunState.FAILED, TaskState.FAILED, 4),
    "timeout": (RunState.FAILED, TaskState.TIMED_OUT, 4),
    "cancel": (RunState.CANCELLED, TaskState.CANCELLED, 2),
    "retry": (RunState.SUCCEEDED, TaskState.COMPLETED, 8),
    "unserialisable": (RunState.FAILED, TaskState.FAILED, 4),
    "killed": (RunState.FAILED, TaskState.FAILED, 4),
}
"""How runs and tasks end, and how many bodies begin."""


@pytest.mark.parametrize("executor", EXECUTORS)
def test_c5_every_end_frees_its_slots_once(standing: Fleet, tmp_path: Path, executor: str):
    """Two tasks of two slots fill the pool, two wait; afterwards a probe needs every slot there is."""
    client, overlap = standing.client, standing.overlap
    client.pools.set("slots", limit=4)
    client.pools.set("other", limit=2)
    for how, (state, task_state, bodies) in ENDS.items():
        if how == "killed" and executor != "process":
            continue  # the body's process is the worker's own
        overlap.path.write_bytes(b"")

        run = client.submit(steps.endings, executor, how, str(tmp_path / "latch"), 4)
        if how == "cancel":
            eventually(lambda: overlap.count("ending") == 2)
            run.cancel()

        assert run.wait(TIMEOUT) == state, how
        assert task_state in {task.state for task in run.tasks()}, how
        used: dict[str, Any] = {name: client.pools.get(name).used for name in ("slots", "other")}
        assert used == {"slots": 0, "other": 0}, how
        assert client.submit(steps.probing).result(TIMEOUT), how
        assert overlap.peak("ending") <= 4, how
        if how == "timeout":  # a body may need longer than its 50 ms to begin
            assert overlap.count("ending") <= bodies + 1
        else:
            assert overlap.count("ending") == bodies + 1, how
