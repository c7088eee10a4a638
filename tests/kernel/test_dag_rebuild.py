"""The graph of a run from rows: a new leader requests exactly what is missing, under the same numbers."""

from __future__ import annotations

import random

import msgspec
import pytest
from tests.support.worlds import graph, items, step

from locktender.base.graph import Const, Graph, Output, Truthy
from locktender.base.model import Failure
from locktender.base.states import TaskState
from locktender.kernel.dag import RunGraph
from locktender.kernel.expansion import ItemBudget
from locktender.kernel.node_state import PLAIN, Advance, Existing
from locktender.simulate.scenarios import random_graph

BOOM = Failure("Boom", "as planned")
Place = tuple[int, int]


class Rows:
    """What the store would have after every commit."""

    def __init__(self, flow: Graph, consts: list[bytes], slices: int | None = None) -> None:
        self.flow = flow
        self.slices = slices
        self.consts = consts
        self.rows: dict[Place, Existing] = {}
        self.progress = self.fresh()
        self.write(self.progress.begin())

    def fresh(self) -> RunGraph:
        budget = None if self.slices is None else ItemBudget(self.slices)
        return RunGraph(self.flow, {}, self.consts, {"tenant": "acme"}, budget)

    def go_on(self) -> None:
        """The next cycle."""
        self.progress.backlog.budget.renew()
        backlog = self.progress.backlog
        self.write(self.progress.go_on(backlog.items(list(backlog.maps))))

    def expand(self) -> None:
        """As many cycles as the maps need that are open now."""
        while self.progress.backlog.maps:
            self.go_on()

    def write(self, advance: Advance) -> None:
        for node, idx, ordinal in advance.reserved:
            self._put(node, idx, ordinal, "pending", final=False, again=True)
        for asked in advance.requests:
            self._put(asked.node, asked.idx, asked.ordinal, "requested", final=False)
        for skip in advance.skips:
            kind = "tainted" if skip.tainted else "condition"
            error = msgspec.json.encode(Failure(kind, skip.reason))
            self._put(skip.node, skip.idx, skip.ordinal, "skipped", error, final=True)
        for node in advance.closing:
            for place, row in list(self.rows.items()):
                if place[0] == node and row.state == "requested":
                    self.end(place, "skipped")

    def _put(
        self,
        node: int,
        idx: int,
        ordinal: int,
        state: str,
        error: bytes | None = None,
        *,
        final: bool,
        again: bool = False,
    ) -> None:
        pending = self.rows.pop((node, idx), None)
        if pending is not None:
            assert pending.again, "a task was asked for twice"
            assert pending.ordinal == ordinal, "a task is asked for under another ordinal"
        assert ordinal not in {row.ordinal for row in self.rows.values()}, (
            "an ordinal is used twice"
        )
        self.rows[node, idx] = Existing(node, idx, ordinal, state, None, error, final, again)

    def end(self, place: Place, state: str) -> None:
        old = self.rows[place]
        output = b"1" if state == TaskState.COMPLETED else None
        error = msgspec.json.encode(BOOM) if state == TaskState.FAILED else None
        self.rows[place] = Existing(*place, old.ordinal, state, output, error, final=True)
        if state == TaskState.COMPLETED:
            self.write(self.progress.completed(*place, output))
        elif state == TaskState.FAILED:
            self.write(self.progress.failed(*place, BOOM))
        else:
            self.write(self.progress.dropped(*place))

    def open(self) -> list[Place]:
        return sorted(place for place, row in self.rows.items() if row.state == "requested")

    def rebuild(self) -> Advance:
        self.progress = self.fresh()
        return self.progress.begin(list(self.rows.values()))


def test_a_rebuild_over_complete_rows_asks_for_nothing():
    rows = Rows(graph(items("a"), items("b", Output(0)), step("c", after=(1,))), [b"[1,2,3]"])
    rows.end((0, 1), "completed")
    again = rows.rebuild()
    assert (again.requests, again.skips, again.shared) == ([], [], [])


def test_a_half_done_cycle_requests_what_is_missing():
    """The task ended and the leader died before it wrote what follows."""
    rows = Rows(graph(items("a"), items("b", Output(0))), [b"[1,2,3]"])
    done = rows.rows[0, 1]
    rows.rows[0, 1] = Existing(0, 1, done.ordinal, "completed", b"7", None, final=True)
    again = rows.rebuild()
    assert [(asked.node, asked.idx, asked.input) for asked in again.requests] == [(1, 1, b"7")]


def test_ordinals_stay_with_their_items():
    rows = Rows(graph(items("a"), items("b", Output(0)), step("late", after=(0,))), [b"[1,2,3,4]"])
    rows.end((0, 3), "completed")
    known = rows.rows[1, 3].ordinal
    rows.write(rows.rebuild())
    rows.end((0, 0), "completed")
    assert rows.rows[1, 0].ordinal == known - 3
    rows.end((0, 1), "completed")
    rows.end((0, 2), "completed")
    block = sorted(rows.rows[1, idx].ordinal for idx in range(4))
    assert block == list(range(block[0], block[0] + 4))
    assert rows.rows[2, PLAIN].ordinal not in block


def test_a_condition_that_was_false_stays_false():
    rows = Rows(graph(step("a", when=Truthy(Const(0))), step("b", args=(Output(0),))), [b"0"])
    rows.consts = [b"1"]
    again = rows.rebuild()
    assert (again.requests, again.skips) == ([], [])
    assert rows.progress.finished
    assert rows.progress.verdict()[0]


def test_a_closed_map_stays_closed():
    rows = Rows(graph(items("a"), items("b", Output(0))), [b"[1,2]"])
    rows.end((0, 0), "failed")
    assert rows.rows[0, 1].state == "skipped"
    rows.write(rows.rebuild())
    assert rows.progress.finished
    assert rows.progress.verdict()[2] is not None


def test_a_run_that_was_being_ended_goes_on_ending():
    rows = Rows(graph(step("a"), step("b", after=(0,)), step("c", run_if="always", after=(1,))), [])
    done = rows.rows[0, PLAIN]
    rows.rows[0, PLAIN] = Existing(0, PLAIN, done.ordinal, "cancelled", None, None, final=True)
    progress = rows.fresh()
    again = progress.begin(list(rows.rows.values()), stopping=True)
    assert [skip.node for skip in again.skips] == [1]
    assert [asked.node for asked in again.requests] == [2]


def test_a_retried_run_requests_failed_tasks_again():
    rows = Rows(graph(step("a"), step("b", args=(Output(0),)), step("c", after=(1,))), [])
    rows.end((0, PLAIN), "completed")
    rows.end((1, PLAIN), "failed")
    old = list(rows.rows.values())
    again = [
        Existing(
            row.node, row.idx, row.ordinal, row.state, row.output, None, final=done, again=not done
        )
        for row in old
        for done in [row.state == "completed"]
    ]
    progress = rows.fresh()
    asked = progress.begin(again).requests
    assert [(each.node, each.ordinal) for each in asked] == [(1, rows.rows[1, PLAIN].ordinal)]
    [last] = progress.completed(1, PLAIN, b"1").requests
    assert (last.node, last.ordinal) == (2, rows.rows[2, PLAIN].ordinal)


def test_a_retried_map_skipped_whole_is_not_skipped_twice():
    """Its items have rows of the first try, and no row stands for the whole map."""
    flow = graph(step("a"), items("b", run_if="failure", after=(0,)), step("c", after=(1,)))
    rows = Rows(flow, [b"[1,2]"])
    rows.end((0, PLAIN), "failed")
    rows.end((1, 0), "completed")
    rows.end((1, 1), "completed")
    rows.rows = {
        place: Existing(*place, row.ordinal, "pending", None, None, final=False, again=True)
        for place, row in rows.rows.items()
    }
    rows.write(rows.rebuild())
    rows.end((0, PLAIN), "completed")
    assert [rows.rows[1, idx].state for idx in (0, 1)] == ["skipped"] * 2
    again = rows.rebuild()
    assert (again.requests, again.skips) == ([], [])
    assert rows.open() == [(2, PLAIN)]


def test_a_run_rebuilt_at_every_step_ends_the_same():
    for seed in range(120):
        draw = random.Random(seed)
        flow = random_graph(draw, "flow")
        consts = [b"[1,2,3,4,5,6,7]", b"1", b"2"]
        lived, rebuilt = Rows(flow, consts), Rows(flow, consts)
        for _ in range(500):
            open_tasks = lived.open()
            assert rebuilt.open() == open_tasks, f"seed {seed}"
            if not open_tasks:
                break
            place = draw.choice(open_tasks)
            state = draw.choice(["completed", "completed", "completed", "failed"])
            lived.end(place, state)
            rebuilt.end(place, state)
            rebuilt.write(rebuilt.rebuild())
        assert lived.progress.finished
        assert rebuilt.progress.finished
        assert {at: row.state for at, row in lived.rows.items()} == {
            at: row.state for at, row in rebuilt.rows.items()
        }
        assert lived.progress.verdict()[:2] == rebuilt.progress.verdict()[:2]


@pytest.mark.parametrize("slices", [1, 2, 5])
def test_slices_and_rebuilds_between_them_end_the_same(slices: int):
    for seed in range(120):
        draw = random.Random(seed)
        flow = random_graph(draw, "flow")
        consts = [b"[1,2,3,4,5,6,7]", b"1", b"2"]
        lived, sliced = Rows(flow, consts), Rows(flow, consts, slices)
        fates: dict[Place, str] = {}
        for _ in range(2_000):
            sliced.go_on()
            if draw.random() < 0.3:
                sliced.write(sliced.rebuild())
            if not (places := sliced.open()):
                sliced.expand()
                places = sliced.open()
            if not places:
                break
            place = draw.choice(places)
            fates[place] = draw.choice(["completed", "completed", "completed", "failed"])
            sliced.end(place, fates[place])
        assert sliced.progress.finished, f"seed {seed}"
        # Which items come before a failure depends on the slices; everything else does not.
        first = next((at for at, fate in fates.items() if fate == "failed"), None)
        if first is not None:
            continue
        while places := lived.open():
            lived.end(places[0], "completed")
        assert {at: row.state for at, row in lived.rows.items()} == {
            at: row.state for at, row in sliced.rows.items()
        }, f"seed {seed}"
        assert lived.progress.verdict() == sliced.progress.verdict()


def half_expanded() -> Rows:
    """Two of the five items of a map have rows, and the last one's place is kept."""
    rows = Rows(graph(items("a"), items("b", Output(0)), step("c")), [b"[1,2,3,4,5]"], slices=2)
    assert {place: row.state for place, row in rows.rows.items()} == {
        (0, 0): "requested",
        (0, 1): "requested",
        (0, 4): "pending",
        (2, PLAIN): "requested",
    }
    return rows


def test_a_half_expanded_map_keeps_the_numbers_of_all_its_items():
    rows = half_expanded()
    lived = {place: row.ordinal for place, row in rows.rows.items()}
    rows.write(rows.rebuild())
    rows.end((0, 0), "completed")
    rows.expand()
    assert [rows.rows[0, idx].ordinal for idx in range(5)] == list(range(5))
    assert all(rows.rows[place].ordinal == ordinal for place, ordinal in lived.items())


def test_a_node_ready_at_the_rebuild_takes_no_number_of_a_map():
    """The task before it ended, and the leader died before it wrote what follows."""
    flow = graph(step("a"), step("b", after=(0,)), items("m"))
    rows = Rows(flow, [b"[1,2,3,4,5]"], slices=2)
    done = rows.rows[0, PLAIN]
    rows.rows[0, PLAIN] = Existing(0, PLAIN, done.ordinal, "completed", b"7", None, final=True)
    rows.write(rows.rebuild())
    rows.expand()
    block = [rows.rows[2, idx].ordinal for idx in range(5)]
    assert block == list(range(block[0], block[0] + 5))
    assert rows.rows[1, PLAIN].ordinal not in block


def test_items_not_asked_for_are_skipped_when_another_fails():
    rows = half_expanded()
    rows.end((0, 1), "failed")
    rows.expand()
    assert [rows.rows[0, idx].state for idx in range(5)] == ["skipped", "failed", *["skipped"] * 3]
    assert rows.rows[1, 4].state == "skipped"


@pytest.mark.parametrize("force", [False, True])
def test_items_not_asked_for_are_skipped_when_the_run_stops(force: bool):
    rows = half_expanded()
    rows.write(rows.progress.stop(force=force))
    for place in rows.open():
        rows.end(place, "cancelled")
    rows.expand()
    assert {rows.rows[0, idx].state for idx in range(2, 5)} == {"skipped"}
    assert rows.progress.finished


def test_a_clean_up_goes_on_expanding_in_a_run_that_is_stopped():
    flow = graph(items("a", run_if="always"))
    rows = Rows(flow, [b"[1,2,3,4,5]"], slices=2)
    rows.write(rows.progress.stop())
    rows.expand()
    assert rows.open() == [(0, idx) for idx in range(5)]
    rows.write(rows.progress.stop(force=True))
    for place in rows.open():
        rows.end(place, "cancelled")
    assert rows.progress.finished


def test_a_map_that_follows_late_is_expanded_in_slices():
    flow = graph(items("a"), step("c"), items("b", Output(0), after=(1,)))
    rows = Rows(flow, [b"[1,2,3,4,5]"], slices=2)
    rows.expand()
    for idx in (3, 1, 0, 4):
        rows.end((0, idx), "completed")
    rows.progress.backlog.budget.renew()
    rows.end((1, PLAIN), "completed")
    assert [place for place in rows.open() if place[0] == 2] == [(2, 0), (2, 1)]
    rows.write(rows.rebuild())
    rows.end((0, 2), "completed")
    rows.expand()
    assert [rows.rows[2, idx].state for idx in range(5)] == ["requested"] * 5
    assert rows.progress.steps[0].items == [None] * 5 or rows.progress.steps[0].items == []


def test_a_map_of_few_items_is_expanded_at_once():
    flow = graph(items("large"), items("small", Const(1)))
    rows = Rows(flow, [b"[" + b",".join([b"1"] * 50) + b"]", b"[1,2]"], slices=40)
    assert [place for place in rows.open() if place[0] == 1] == [(1, 0), (1, 1)]
    assert len(rows.open()) == 42


def test_items_in_order_that_were_held_up_come_in_slices():
    flow = graph(items("a"), items("b", Output(0), in_order=True))
    rows = Rows(flow, [b"[1,2,3,4,5]"], slices=2)
    rows.expand()
    for idx in (4, 3, 2, 1):
        rows.end((0, idx), "completed")
    rows.progress.backlog.budget.renew()
    rows.end((0, 0), "completed")
    assert [place for place in rows.open() if place[0] == 1] == [(1, 0), (1, 1)]
    rows.expand()
    assert [place for place in rows.open() if place[0] == 1] == [(1, idx) for idx in range(5)]
