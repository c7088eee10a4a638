"""The timeline draws the time that `blame` counts: of every task, without a gap, under the same words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby, pairwise

import pytest
from tests.support.worlds import settle

from locktender.base.events import Change, Event, EventRow, pack
from locktender.base.graph import Graph
from locktender.observe.run_times import RunTimes, times_of
from locktender.observe.timeline import TimelinePart, drawn_exactly, drawn_quickly
from locktender.observe.timeline_spans import Bins, slim_history
from locktender.simulate.scenarios import random_world

SAMPLE, WHOLE = 6, 40


def stored(history: list[Event]) -> list[EventRow]:
    """The history as the store has it: a row per commit, with what happened at one instant together."""
    rows: list[EventRow] = []
    for at, events in groupby(history, key=lambda event: event.at):
        several = list(events)
        changes = [
            Change(each.subject, each.task, each.before, each.after, each.token, each.data)
            for each in several
        ]
        first = several[0]
        rows.append(
            EventRow(first.seq, at, first.term, first.cycle, first.actor, first.run, pack(changes))
        )
    return rows


def worlds(seed: int) -> Iterator[tuple[list[Event], Graph, RunTimes, int]]:
    sim = random_world(seed, clock_jumps=False)
    settle(sim)
    for seq, row in sim.model.runs.items():
        history = [event for event in sim.model.events if event.run == seq]
        graph = sim.model.graphs[row.graph]
        yield history, graph, times_of(history, graph, sim.now), sim.now


SEEDS = [
    *range(SAMPLE),
    *(pytest.param(seed, marks=pytest.mark.long) for seed in range(SAMPLE, WHOLE)),
]


@pytest.mark.parametrize("seed", SEEDS)
def test_spans_of_a_task_are_its_time(seed: int):
    for _, graph, times, _ in worlds(seed):
        drawn = drawn_exactly(times, graph, TimelinePart())
        rows = {row.task: row for row in drawn.rows}
        for task in times.tasks:
            spans = rows[task.id].spans
            assert sum(each.end - each.start for each in spans) == task.end - task.start
            for one, other in pairwise(spans):
                assert one.end == other.start
            names = list(drawn.whats.numbers)
            spent = Counter[str]()
            for each in spans:
                spent[names[each.what]] += each.end - each.start
            assert spent == Counter(task.spent())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_large_history_has_the_same_sums(seed: int):
    for history, graph, times, now in worlds(seed):
        quick = slim_history(stored(history), graph, now)
        assert (quick.start, quick.end) == (times.start, times.end)
        found: dict[int, Counter[str]] = {}
        spans = [(task, *kind) for kind, tasks in quick.spans.items() for task in tasks]
        for number, _, what, start, end, _ in spans:
            found.setdefault(number, Counter())[what] += end - start
        for task in times.tasks:
            spent, other = Counter(task.spent()), found.get(task.id, Counter[str]())
            assert sum(spent.values()) == sum(other.values()), task
            assert spent["work"] == other["work"]
            assert spent["back-off"] == other["back-off"]
        drawn = drawn_quickly(quick, graph, TimelinePart())
        assert {row.task for row in drawn.rows} == {task.id for task in times.tasks}


def test_bins_have_all_the_time_of_their_spans():
    bins = Bins(1_000, 2_000, 7)
    bins.add(0, 1_000, 2_000)
    bins.add(0, 1_210, 1_230)
    bins.add(1, 900, 1_500)
    bins.add(1, 1_990, 2_500)
    bins.add(2, 2_000, 2_100)

    series = bins.series()

    width = 1_000 / 7
    assert set(series) == {0, 1}
    assert sum(series[0]) * width == pytest.approx(1_020, abs=7)
    assert sum(series[1]) * width == pytest.approx(510, abs=7)
    assert min(series[0]) >= 1.0


def test_many_items_are_folded_and_few_rows_are_sent():
    rows, at = [EventRow(1, 0, 1, 1, "client", 1, pack([Change("run", 0, "new", "queued")]))], 0
    for item in range(3_000):
        task, at = item + 1, at + 10
        changes = [
            Change("task", task, "new", "requested", 0, {"node": 0, "index": item}),
            Change("task", task, "requested", "scheduled", 0, {"waits": {"pool:db": 5}}),
        ]
        rows.append(EventRow(2 + 3 * item, at, 1, 1, "leader", 1, pack(changes[:1])))
        rows.append(EventRow(3 + 3 * item, at + 5, 1, 1, "leader", 1, pack(changes[1:])))
        done = [
            Change("task", task, "scheduled", "running"),
            Change("task", task, "running", "completed"),
        ]
        rows.append(EventRow(4 + 3 * item, at + 6, 1, 1, "leader", 1, pack(done[:1])))
        rows.append(EventRow(5 + 3 * item, at + 9, 1, 1, "leader", 1, pack(done[1:])))
    rows.append(
        EventRow(
            20_000, at + 10, 1, 1, "leader", 1, pack([Change("run", 0, "running", "succeeded")])
        )
    )
    history = slim_history(rows, None, at + 99)

    drawn = drawn_quickly(history, None, TimelinePart())

    [fold] = drawn.folds
    assert (fold.tasks, fold.states) == (3_000, {"completed": 3_000})
    assert len(drawn.rows) < 20
    assert sum(len(each) for each in fold.series.values()) <= 2_000
    assert dict(zip(drawn.whats.numbers, drawn.whats.us, strict=True)) == {
        "pool:db": 15_000,
        "hand-off": 3_000,
        "work": 9_000,
    }
    items = drawn_quickly(history, None, TimelinePart(step="node 0", after=99))
    assert [row.index for row in items.rows[:2]] == [100, 101]
    assert items.next == items.rows[-1].index
