"""Items of a large map are written once: with their start, or when they have waited for a while."""

from __future__ import annotations

from itertools import pairwise

import msgspec
from tests.support.worlds import graph, items, numbers, run_row, settle, step, worker_row, world

from locktender.base.changes import TaskRow
from locktender.base.clock import SECOND
from locktender.base.commits import Commit
from locktender.base.graph import Output
from locktender.base.ids import ordinal_of
from locktender.base.limits import Limits
from locktender.base.states import RunState, TaskState
from locktender.kernel import rebuild
from locktender.kernel.commit_builder import MAX_STORED_LATE, STORED_AFTER_US
from locktender.kernel.scheduler import Scheduler

NOW = 10**15
ITEMS = 2_000
PERMITS = 100


class Stage:
    """A leader with one worker elsewhere, and the rows that its commits come to."""

    def __init__(self, term: int = 1) -> None:
        self.flow = graph(items("m"), step("sum", args=(Output(0),)))
        self.lead = Scheduler(Limits(), term=term, owner="me")
        self.lead.graphs["flow"] = self.flow
        self.lead.put_worker(
            worker_row("w", permits={"async": PERMITS}, lease_until=NOW + 60 * SECOND)
        )
        self.now = NOW
        self.rows: dict[int, TaskRow] = {}
        self.inserted = self.updated = 0
        self.requested: list[int] = []

    def cycle(self) -> Commit:
        commit = self.lead.cycle(self.now).commit
        for row in (*commit.tasks_new, *commit.tasks_again):
            self.rows[row.id] = row
            self.inserted += 1
        for save in commit.tasks_saved:
            self.rows[save.id] = self.rows[save.id]._replace(**save._asdict())
            self.updated += 1
        for told in commit.events:
            self.requested += [
                each.task for each in told.changes if each.after == TaskState.REQUESTED
            ]
        return commit

    def decide(self) -> None:
        """Cycles until nothing is left to do at once."""
        self.cycle()
        while self.lead.lifecycle.expanding:
            self.cycle()

    def begin(self) -> Stage:
        self.lead.put_head(run_row(1, consts=numbers(ITEMS)))
        self.decide()
        return self

    def end_running(self) -> None:
        for entry in list(self.lead.lifecycle.tasks.values()):
            if entry.state == TaskState.SCHEDULED:
                self.lead.accepted(entry.id, entry.token, self.now)
                row = self.rows[entry.id]
                assert (row.state, row.token, row.input) == ("scheduled", entry.token, entry.input)
                self.rows[entry.id] = row._replace(state=TaskState.COMPLETED, output=b"1")
                self.lead.ended(entry.id, entry.token, "completed", self.now, b"1", local=False)

    def states(self) -> list[str]:
        return [row.state for _, row in sorted(self.rows.items())]


def test_an_item_that_starts_soon_is_written_once():
    stage = Stage().begin()
    # Those that were offered, and the last one: its row says how many there are.
    assert stage.states() == ["scheduled"] * PERMITS + ["requested"]
    assert sorted(map(ordinal_of, stage.requested)) == list(range(ITEMS))
    while stage.lead.ledger.runs:
        stage.now += 1_000
        stage.end_running()
        stage.decide()
    assert set(stage.states()) == {"completed"}
    assert len(stage.rows) == ITEMS + 1
    # The last item: pending, requested, scheduled; and the step behind the map.
    assert (stage.inserted, stage.updated) == (ITEMS + 2, 1)


def test_items_that_wait_for_long_get_their_rows_the_last_first():
    stage = Stage().begin()
    stage.now += STORED_AFTER_US - 1
    assert stage.cycle().tasks_new == []
    stage.now += 1
    cycle = stage.lead.cycle(stage.now)
    assert cycle.unfinished
    written = [ordinal_of(row.id) for row in cycle.commit.tasks_new]
    assert written == list(range(ITEMS - 2, ITEMS - 2 - MAX_STORED_LATE, -1))
    assert {row.state for row in cycle.commit.tasks_new} == {"requested"}
    assert {row.requested_at for row in cycle.commit.tasks_new} == {NOW}
    assert cycle.commit.events == []
    stage.rows |= {row.id: row for row in cycle.commit.tasks_new}
    while stage.lead.cycle(stage.now).unfinished:
        pass
    assert not stage.lead.commit_builder._unstored


def test_a_stored_item_is_updated_when_it_starts():
    stage = Stage().begin()
    stage.now += STORED_AFTER_US
    for _ in range(ITEMS // MAX_STORED_LATE + 1):
        stage.cycle()
    assert stage.states() == ["scheduled"] * PERMITS + ["requested"] * (ITEMS - PERMITS)
    stage.end_running()
    stage.cycle()
    assert stage.updated == PERMITS


def test_items_of_a_run_that_ends_get_their_rows_as_they_end():
    stage = Stage().begin()
    stage.lead.cancel_run(1, stage.now)
    stage.decide()
    assert stage.states().count("cancelled") == ITEMS - PERMITS
    assert not stage.lead.commit_builder._unstored
    assert stage.updated == 1  # the last one had its row


def test_a_small_map_is_written_at_once():
    stage = Stage()
    stage.lead.put_head(run_row(1, consts=numbers(PERMITS)))
    stage.lead.ledger.workers.by_id["w"].row = worker_row("w", permits={"async": 1})
    stage.cycle()
    assert len(stage.rows) == PERMITS


def test_the_next_leader_asks_again_for_items_without_rows():
    first = Stage().begin()
    row = msgspec.structs.replace(
        run_row(1, consts=numbers(ITEMS)), state=RunState.RUNNING, started_at=NOW
    )
    second = Stage(term=2)
    second.rows = dict(first.rows)
    rows = [first.rows[each] for each in sorted(first.rows)]
    restored = rebuild.restore_runs(second.lead.lifecycle, second.lead.graphs, [row], rows, NOW)
    for _ in restored:
        pass
    second.decide()
    assert [
        entry.idx for entry in sorted(second.lead.lifecycle.tasks.values(), key=lambda e: e.id)
    ] == list(range(ITEMS))
    without = set(range(ITEMS)) - {ordinal_of(each) for each in first.rows}
    assert set(map(ordinal_of, second.requested)) == without


def test_leaders_that_change_lose_no_item_and_tell_a_true_history():
    found = world(permits={"async": 10}, workers=2, took=30_000)
    for run in range(2):
        found.submit(graph(items("m"), flow=f"f{run}"), consts=numbers(700))
    for _ in range(4):
        found.run(until=found.steady + 200_000)
        found.lead()
    settle(found)
    rows = found.model.tasks.values()
    assert {each.state for each in rows} == {TaskState.COMPLETED}
    assert len(rows) == 1_400


def test_tasks_are_written_in_the_order_of_the_line_when_they_start():
    stage = Stage().begin()
    started: list[int] = []
    while stage.lead.ledger.runs and len(started) < ITEMS:
        stage.now += 1_000
        stage.end_running()
        started += [ordinal_of(row.id) for row in stage.cycle().tasks_new if row.node == 0]
    assert all(before < after for before, after in pairwise(started))
