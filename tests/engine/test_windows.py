"""A1–A5 with real bodies: never more items of a map in flight than its window, and as many as it allows."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.beside import opened

from locktender import RunFailed, RunState, StepError, TaskState, flow, step
from locktender.testing import Engines, Overlap, eventually, recording
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin"]

STEPS_FILE = Path(__file__).parents[1] / "steps" / "engine_steps.py"
steps: Any = load(source(STEPS_FILE))


BEGUN: list[float] = []


@step
async def takes(seconds: float, together: int) -> float:
    """The first wait for each other until so many are in it: the window is full once, for sure."""
    BEGUN.append(seconds)
    with recording("takes"):
        while len(BEGUN) < together:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await asyncio.sleep(seconds)
    return seconds


@step
async def may_fail(item: int) -> int:
    with recording("may_fail", label=str(item)):
        await asyncio.sleep(0.002)
        if item == 2:
            raise ValueError("not this one")
    return item


@step
async def everything(values: list[Any]) -> list[Any]:
    with recording("everything"):
        return values


@step
async def weigh(item: int, context: str) -> int:
    return item + len(context)


@step
async def count(values: list[int]) -> int:
    with recording("count"):
        return sum(values)


@flow
def random_lengths(lengths: list[float], window: int, together: int = 0) -> list[float]:
    return everything(takes.map(lengths, window=window, together=together))


@flow
def failing(items: list[int]) -> list[int]:
    return everything(may_fail.map(items, window=2))


@flow
def collecting(items: list[int]) -> list[int | StepError]:
    return everything(may_fail.map(items, window=2, on_error="collect"))


@flow
def sharing(items: list[int], context: str) -> int:
    return count(weigh.map(items, context=context, window=50))


def latches(folder: Path, number: int) -> list[Path]:
    return [folder / str(index) for index in range(number)]


def test_a1_items_start_as_others_end_and_the_successor_once(
    make_engine: Engines, overlap: Overlap, tmp_path: Path
):
    engine = make_engine()
    gates = latches(tmp_path, 5)
    run = engine.submit(steps.windowed, [str(gate) for gate in gates], 3)

    eventually(lambda: overlap.count("items") == 3)
    assert overlap.labels("items") == ["0", "1", "2"]
    tasks = [task for task in run.tasks() if task.name == "gated"]
    assert [task.index for task in tasks] == [0, 1, 2, 3, 4]  # all rows are there from the start
    assert [task.state for task in tasks] == ["running"] * 3 + ["requested"] * 2
    with opened(make_engine.path) as db:
        inputs = [row[0] for row in db.execute("SELECT input FROM task WHERE idx >= 0 ORDER BY id")]
    assert all(str(gate) in bytes(sent).decode() for gate, sent in zip(gates, inputs, strict=True))

    for ended, begun in ((1, 4), (0, 5)):
        gates[ended].touch()
        eventually(lambda begun=begun: overlap.count("items") == begun)
        assert overlap.levels("items")[-1] == 3
        assert "gather" not in overlap.names()
    for gate in gates:
        gate.touch()
    assert run.result("60s") == ["0", "1", "2", "3", "4"]
    assert overlap.labels("items") == ["0", "1", "2", "3", "4"]
    assert (overlap.count("gather"), overlap.peak("items")) == (1, 3)


def test_a2_the_peak_is_exactly_the_window(make_engine: Engines, overlap: Overlap):
    BEGUN.clear()
    chance = random.Random(2)
    lengths = [chance.uniform(0.001, 0.02) for _ in range(20)]

    assert make_engine().submit(random_lengths, lengths, 3, 3).result("60s") == lengths

    assert (overlap.peak("takes"), overlap.count("takes")) == (3, 20)


def test_a2_the_window_is_regained_after_three_end_at_once(
    make_engine: Engines, overlap: Overlap, tmp_path: Path
):
    """Items of one group share a latch: they end in the same instant."""
    engine = make_engine()
    groups = latches(tmp_path, 4)
    run = engine.submit(steps.windowed, [str(groups[n // 3]) for n in range(12)], 3)
    for number, group in enumerate(groups):
        eventually(lambda n=number: overlap.count("items") == 3 * (n + 1))
        assert overlap.levels("items")[-1] == 3
        group.touch()

    assert len(run.result("60s")) == 12
    assert overlap.peak("items") == 3


def test_a3_many_end_in_one_millisecond_on_two_workers(
    make_engine: Engines, overlap: Overlap, tmp_path: Path
):
    engine = make_engine(async_permits=25)  # the window needs both
    make_engine.process(STEPS_FILE, async_permits=25).ready()
    groups = latches(tmp_path, 5)
    run = engine.submit(steps.windowed, [str(groups[n // 40]) for n in range(200)], 40)
    for number, group in enumerate(groups):
        eventually(lambda n=number: overlap.count("items") == 40 * (n + 1))
        group.touch()

    assert run.result("60s") == [str(n // 40) for n in range(200)]
    assert overlap.count("items") == 200  # none lost, none twice
    assert (overlap.count("gather"), overlap.peak("items")) == (1, 40)
    assert len({span.pid for span in overlap.spans("items")}) == 2


@pytest.mark.parametrize(("items", "window", "peak"), [(4, 100, 4), (6, 1, 1), (5, 5, 5)])
def test_a4_windows_of_any_size(
    make_engine: Engines, overlap: Overlap, items: int, window: int, peak: int
):
    BEGUN.clear()
    lengths = [0.001] * items

    assert make_engine().submit(random_lengths, lengths, window, peak).result("60s") == lengths

    assert overlap.peak("takes") == peak


def test_a4_an_empty_list_reaches_the_successor(make_engine: Engines, overlap: Overlap):
    assert make_engine().submit(random_lengths, [], 3).result("60s") == []

    assert overlap.names() == ["everything"]


def test_a4_a_failing_item_fails_the_map(make_engine: Engines, overlap: Overlap):
    run = make_engine().submit(failing, list(range(8)))

    with pytest.raises(RunFailed, match="not this one") as caught:
        run.result("60s")

    assert (caught.value.step, caught.value.error_type) == ("may_fail", "ValueError")
    assert "everything" not in overlap.names()
    states = {task.index: task.state for task in run.tasks() if task.name == "may_fail"}
    # What was in flight has finished; nothing after that has started.
    assert states[2] == TaskState.FAILED
    assert {states[n] for n in (0, 1)} == {TaskState.COMPLETED}
    assert {states[n] for n in (5, 6, 7)} == {TaskState.SKIPPED}
    assert overlap.count("may_fail") <= 5
    assert overlap.peak("may_fail") <= 2


def test_a4_errors_are_collected_as_values(make_engine: Engines, overlap: Overlap):
    result = make_engine().submit(collecting, list(range(5))).result("60s")

    error = result.pop(2)
    assert result == [0, 1, 3, 4]
    assert "not this one" in str(error)
    assert (overlap.count("may_fail"), overlap.count("everything")) == (5, 1)


def test_a4_cancel_in_the_middle(make_engine: Engines, overlap: Overlap, tmp_path: Path):
    engine = make_engine()
    gates = latches(tmp_path, 6)
    run = engine.submit(steps.windowed, [str(gate) for gate in gates], 3)
    eventually(lambda: overlap.count("items") == 3)
    gates[0].touch()
    eventually(lambda: overlap.count("items") == 4)

    run.cancel("enough")

    assert run.wait("60s") == RunState.CANCELLED
    states = [task.state for task in run.tasks() if task.name == "gated"]
    assert states.count(TaskState.COMPLETED) == 1
    assert set(states[1:]) <= {TaskState.CANCELLED, TaskState.SKIPPED}
    assert [span.error for span in overlap.spans("items")].count("CancelledError") == 3
    assert (overlap.count("items"), "gather" in overlap.names()) == (4, False)


@pytest.mark.slow
def test_a5_items_share_their_context(make_engine: Engines):
    """10,000 items with a context of 50 kB: 500 MB if each had its own."""
    engine = make_engine()
    context = "x" * 50_000
    before = resident()

    run = engine.submit(sharing, list(range(10_000)), context)

    assert run.result("240s") == sum(range(10_000)) + 10_000 * 50_000
    assert resident() - before < 120 << 20
    with opened(make_engine.path) as db:
        (inputs,) = db.execute("SELECT sum(length(input)) FROM task WHERE idx >= 0").fetchone()
        [(pages,)] = db.execute("PRAGMA page_count")
        [(page_bytes,)] = db.execute("PRAGMA page_size")
    assert inputs < 10_000 * 100
    assert pages * page_bytes < 60 << 20


def resident() -> int:
    """Bytes of memory this process has."""
    return psutil.Process().memory_info().rss
