"""What cycles decided is acted on in the order of the cycles, whichever answer of the store comes first."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from locktender import flow, step
from locktender.base.changes import End, Order
from locktender.base.clock import SECOND, ManualClock
from locktender.base.commits import Commit, RunMark
from locktender.base.config import load as load_settings
from locktender.base.states import RunState, TaskState
from locktender.flows.registry import registry
from locktender.flows.trace import trace
from locktender.kernel.commit_builder import Cycle
from locktender.leader.commit_pipeline import CommitPipeline
from locktender.observe.metrics import Metrics
from locktender.store.sqlite.store import SqliteStore
from locktender.worker.worker import LocalWorker

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
