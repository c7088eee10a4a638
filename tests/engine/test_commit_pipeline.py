"""What cycles decided is acted on in the order of the cycles, whichever answer of the store comes first;
and what is read of others while a commit is on its way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.db_stores import store_at

from locktender import connect_async, flow, step
from locktender.base.changes import End, Order
from locktender.base.clock import SECOND, ManualClock
from locktender.base.commits import Commit, RunMark
from locktender.base.config import load as load_settings
from locktender.base.limits import Limits
from locktender.base.states import RunState, TaskState
from locktender.flows.registry import registry
from locktender.flows.trace import trace
from locktender.kernel.commit_builder import Cycle
from locktender.kernel.scheduler import Scheduler
from locktender.leader.change_reader import ChangeReader
from locktender.leader.commit_pipeline import CommitPipeline
from locktender.leader.questions import Questions
from locktender.leader.queue_reader import QueueReader
from locktender.leader.waiting_runs import WaitingRuns
from locktender.observe.metrics import Metrics
from locktender.store.protocol import Gathered
from locktender.store.sqlite.store import SqliteStore
from locktender.worker.worker import LocalWorker

pytest_plugins = ["locktender.testing.postgres"]

LISTS = [each.name for each in msgspec.structs.fields(Commit) if each.default_factory is list]


def commit_with(name: str, value: list[object]) -> Commit:
    given: dict[str, Any] = {name: value}
    return Commit(1, 1, "leader", **given)


@pytest.mark.parametrize("name", LISTS)
def test_a_commit_with_anything_in_it_is_written(name: str):
    """A run whose deadline passes is marked, and no event says so: that mark was lost."""
    assert Commit(1, 1, "leader").empty
    assert not commit_with(name, [object()]).empty


@pytest.mark.parametrize("name", ["reservations", "lingers", "silences"])
def test_a_set_of_which_none_is_left_is_written(name: str):
    assert not commit_with(name, []).empty


class Answers:
    """A store that answers commits when it is told to."""

    def __init__(self) -> None:
        self.written: dict[int, asyncio.Event] = {}

    async def commit(self, commit: Commit) -> None:
        await self.written.setdefault(commit.cycle, asyncio.Event()).wait()

    def answer(self, cycle: int) -> None:
        self.written.setdefault(cycle, asyncio.Event()).set()


def cycle_of(number: int, *, empty: bool = False) -> Cycle:
    mark = RunMark(1, RunState.RUNNING, RunState.TIMED_OUT, None)
    return Cycle(Commit(1, number, "leader", number - 1, runs_marked=[] if empty else [mark]))


@pytest.mark.parametrize("empty", [False, True])
async def test_no_cycle_is_acted_on_before_the_one_before_it(empty: bool):
    store, acted = Answers(), list[int]()
    all_acted = asyncio.Event()

    def act(cycle: Cycle) -> None:
        acted.append(cycle.commit.cycle)
        if len(acted) == 2:
            all_acted.set()

    async def take_back(cycle: Cycle) -> None:
        assert cycle.commit.cycle in acted

    given: Any = store
    pipeline = CommitPipeline(given, act, take_back, all_acted.set, Metrics())
    await pipeline.send(cycle_of(1), [], 0.0)
    second = asyncio.create_task(pipeline.send(cycle_of(2, empty=empty), [], 0.0))
    store.answer(2)
    for _ in range(20):  # turns of the loop, in which the second one could overtake
        await asyncio.sleep(0)
    assert acted == []
    store.answer(1)
    await asyncio.wait_for(all_acted.wait(), 60)
    await second
    await pipeline.drain()
    assert acted == [1, 2]


class Draining(CommitPipeline):
    """Its commits are answered when it is drained, not before."""

    def __init__(self, answers: Answers) -> None:
        given: Any = answers

        async def take_back(cycle: Cycle) -> None: ...

        super().__init__(given, lambda cycle: None, take_back, lambda: None, Metrics())
        self.answers = answers

    async def drain(self) -> None:
        self.answers.answer(1)
        await super().drain()


@pytest.fixture
async def reader(store_url: str) -> AsyncIterator[ChangeReader]:
    store, metrics = store_at(store_url), Metrics()
    await store.open()
    queue = QueueReader(store)
    waits, questions = WaitingRuns(store, queue, metrics), Questions(store, {}, lambda: None)
    yield ChangeReader(store, queue, waits, None, metrics, questions)
    await store.close()


async def told(reader: ChangeReader, pipeline: CommitPipeline) -> list[Gathered]:
    """What is read, once it has events: transactions of any database of the server may hide them for a while."""
    scheduler, read = Scheduler(Limits(), 1, "one"), list[Gathered]()
    while not any(each.events for each in read):
        read = await reader.gather(scheduler, pipeline)
    return read


async def test_rows_of_queued_runs_are_not_read_beside_a_commit(
    reader: ChangeReader, store_url: str
):
    """The commit may start them: a row that is older would start them again."""
    pipeline = Draining(Answers())
    async with connect_async(store_url) as client:
        await client.submit(for_ever)
        [idle] = await told(reader, pipeline)
        await pipeline.send(cycle_of(1), [], 0.0)
        await client.submit(for_ever)
        [early] = await told(reader, pipeline)
    # SQLite reads them later in any case.
    assert len(idle.queued) == store_url.startswith("postgres")
    assert (len(early.events), early.queued) == (1, [])
    assert not pipeline.idle
    await pipeline.drain()


async def test_requests_are_read_after_the_commit_that_may_have_them(
    reader: ChangeReader, store_url: str
):
    pipeline = Draining(Answers())
    async with connect_async(store_url) as client:
        run = await client.submit(for_ever)
        await told(reader, pipeline)
        await pipeline.send(cycle_of(1), [], 0.0)
        await run.cancel()
        early, after = await reader.gather(Scheduler(Limits(), 1, "one"), pipeline)
    assert pipeline.idle
    assert early.requests == []
    assert [each.request.kind for each in after.requests if each.request] == ["cancel"]


class Host:
    def __init__(self) -> None:
        self.ends = asyncio.Queue[End]()

    def deliver(self, end: End) -> None:
        self.ends.put_nowait(end)

    def receive(self, orders: list[Order]) -> None: ...

    def attempts_changed(self) -> None: ...

    def live_fd(self, worker: str) -> int | None: ...


@step
async def endless() -> None:
    await asyncio.Event().wait()


@flow
def for_ever() -> None:
    endless()


async def test_what_is_stopped_before_it_begins_ends(tmp_path: Path):
    """It was accepted before its process was paused, and begins with the next renewal of the lease."""
    clock, host = ManualClock(), Host()
    settings = load_settings(overrides={"work_dir": str(tmp_path / "work")})
    store = SqliteStore(tmp_path / "locktender.db")
    await store.open()
    worker = LocalWorker(settings, clock, store, registry, host)
    clock.advance(SECOND)
    worker.extend(clock.monotonic())
    node = trace(for_ever.definition, (), {}).graph.nodes[0]
    worker.start(1 << 20, 7, 1, "run", node, b"[[],{}]")
    worker.stop(7, "cancel")
    assert not worker.begun(7)
    worker.extend(clock.monotonic() + 60 * SECOND)
    end = await asyncio.wait_for(host.ends.get(), 60)
    assert (end.token, end.state) == (7, TaskState.CANCELLED)
    await worker.close(0)
    await store.close()
