"""The graph of a run: what follows from a finished task, by every rule of the graph."""

from __future__ import annotations

import gc
import weakref
from copy import deepcopy
from typing import Any

import msgspec
import pytest
from tests.support.worlds import graph, items, step

from locktender.base.graph import (
    AnyCondition,
    Compare,
    Const,
    DictOf,
    FailureOf,
    Graph,
    Item,
    ListOf,
    Not,
    Output,
    Param,
    Truthy,
)
from locktender.base.model import Failure
from locktender.base.names import MAX_ITEMS
from locktender.kernel.dag import RunGraph
from locktender.kernel.node_state import PLAIN, Advance

BOOM = Failure("Boom", "as planned")


class Journey:
    """A run that is told what ends; remembers what was asked for and skipped, by node name."""

    def __init__(self, flow: Graph, *consts: Any, params: dict[str, Any] | None = None) -> None:
        encoded = {name: msgspec.json.encode(value) for name, value in (params or {}).items()}
        self.progress = RunGraph(flow, encoded, [msgspec.json.encode(each) for each in consts], {})
        self.asked: list[tuple[str, int]] = []
        self.skipped: list[tuple[str, int]] = []
        self.tainted: set[str] = set()
        self.inputs: dict[tuple[str, int], Any] = {}
        self.shared: dict[str, Any] = {}
        self.closing: list[str] = []
        self.stopped = False
        self.names = [node.name for node in flow.nodes]
        self.see(self.progress.begin())

    def see(self, advance: Advance) -> Journey:
        for each in advance.requests:
            place = (self.names[each.node], each.idx)
            assert place not in self.inputs, "asked for twice"
            self.asked.append(place)
            self.inputs[place] = msgspec.json.decode(each.input)
        for node, common in advance.shared:
            self.shared[self.names[node]] = msgspec.json.decode(common)
        for each in advance.skips:
            self.skipped.append((self.names[each.node], each.idx))
            if each.tainted:
                self.tainted.add(self.names[each.node])
        self.closing += [self.names[node] for node in advance.closing]
        self.stopped = self.stopped or advance.stop
        return self

    def ok(self, name: str, idx: int = PLAIN, value: Any = None) -> Journey:
        node = self.names.index(name)
        return self.see(self.progress.completed(node, idx, msgspec.json.encode(value)))

    def fail(self, name: str, idx: int = PLAIN) -> Journey:
        return self.see(self.progress.failed(self.names.index(name), idx, BOOM))

    def drop(self, name: str, idx: int = PLAIN) -> Journey:
        return self.see(self.progress.dropped(self.names.index(name), idx))

    def stop(self, *, force: bool = False) -> Journey:
        return self.see(self.progress.stop(force=force))

    @property
    def result(self) -> Any:
        assert self.progress.finished
        succeeded, output, failure = self.progress.verdict()
        return msgspec.json.decode(output or b"null") if succeeded else failure


def args(journey: Journey, name: str, idx: int = PLAIN) -> list[Any]:
    return journey.inputs[name, idx]["args"]


# -- order and data --------------------------------------------------------------------------------


def test_e4_a_task_is_asked_for_when_its_own_inputs_are_ready():
    flow = graph(
        step("slow"),
        step("quick"),
        step("after_quick", args=(Output(1),)),
        step("after_both", after=(0, 1)),
    )
    way = Journey(flow)
    assert way.asked == [("slow", -1), ("quick", -1)]  # as the flow calls them
    way.ok("quick", value=7)
    assert way.asked[2:] == [("after_quick", -1)]
    assert args(way, "after_quick") == [7]
    way.ok("slow")
    assert way.asked[3:] == [("after_both", -1)]


def test_a_run_changes_nothing_for_another_of_the_same_graph():
    flow = graph(
        step("rows", over=Const(0), args=(Item(),)),
        step("each", over=Output(0), args=(Item(),), when=Not(Truthy(Const(0)))),
        step("last", after=(1,), run_if="always"),
    )
    first = RunGraph(flow, {}, [b"[1,2]"], {})
    before = deepcopy(first.steps)
    first.begin()
    first.completed(0, 0, b"1")
    first.failed(0, 1, BOOM)
    second = RunGraph(flow, {}, [b"[1,2]"], {})
    assert second.steps == before


def test_an_ended_run_is_freed_without_the_garbage_collector():
    flow = graph(
        step("rows", over=Const(0), args=(Item(),)),
        step("each", over=Output(0), args=(Item(),)),
        step("last", args=(Output(1),)),
        result=Output(2),
    )
    collecting = gc.isenabled()
    gc.disable()
    try:
        way = Journey(flow, [1, 2])
        for name in ("rows", "each"):
            way.ok(name, 0).ok(name, 1)
        assert way.ok("last", value=3).result == 3
        ended = weakref.ref(way.progress)
        del way
        assert ended() is None
    finally:
        if collecting:
            gc.enable()


def test_every_kind_of_template_is_rendered():
    flow = graph(
        step("a"),
        step(
            "b",
            args=(Const(0), Param("p"), Output(0, ("x", 1)), ListOf((Const(0), Output(0, ("y",))))),
            kwargs={"d": DictOf({"k": Param("p")})},
        ),
        result=ListOf((Output(1), Const(0))),
    )
    way = Journey(flow, 11, params={"p": "hello"}).ok("a", value={"x": [5, 6], "y": None})
    assert way.inputs["b", -1] == {
        "args": [11, "hello", 6, [11, None]],
        "kwargs": {"d": {"k": "hello"}},
    }
    assert way.ok("b", value=3).result == [3, 11]


def test_a_run_without_a_result_ends_with_null():
    assert Journey(graph(step("a"))).ok("a").result is None


def test_a_result_that_cannot_be_made_fails_the_run():
    failure = Journey(graph(step("a"), result=Output(0, ("missing",)))).ok("a", value={}).result
    assert failure.type == "result"


# -- maps ------------------------------------------------------------------------------------------


def test_a1_all_items_are_requested_up_front():
    way = Journey(graph(items(), step("sum", args=(Output(0),)), result=Output(1)), [5, 6, 7])
    assert way.asked == [("m", 0), ("m", 1), ("m", 2)]
    assert [way.inputs["m", idx] for idx in range(3)] == [5, 6, 7]
    way.ok("m", 2, "c").ok("m", 0, "a")
    assert ("sum", -1) not in way.asked
    way.ok("m", 1, "b")
    # However they end, the list is in order.
    assert args(way, "sum") == [["a", "b", "c"]]
    assert way.ok("sum", value="abc").result == "abc"


def test_a5_what_items_share_is_rendered_once():
    way = Journey(graph(items(args=(Item(), Const(1)), kwargs={"k": Param("p")})), [1, 2], "big",
                  params={"p": 9})  # fmt: skip
    assert way.shared == {"m": {"args": [None, "big"], "kwargs": {"k": 9}}}
    assert [way.inputs["m", idx] for idx in (0, 1)] == [1, 2]


def test_a4_an_empty_list_gives_an_empty_list():
    way = Journey(graph(items(), step("sum", args=(Output(0),))), [])
    assert args(way, "sum") == [[]]


def test_an_empty_list_through_a_chain_of_maps():
    flow = graph(items("a"), items("b", Output(0)), items("c", Output(1)), result=Output(2))
    assert Journey(flow, []).result == []


def test_item_i_of_a_map_over_a_map_follows_item_i_alone():
    flow = graph(
        items("a"), items("b", Output(0)), items("c", Output(1)), step("sum", args=(Output(2),))
    )
    way = Journey(flow, [1, 2, 3])
    way.ok("a", 2, "a2")
    assert way.asked[3:] == [("b", 2)]
    assert way.inputs["b", 2] == "a2"
    way.ok("b", 2, "b2")
    assert way.asked[4:] == [("c", 2)]
    for idx in (0, 1):
        way.ok("a", idx).ok("b", idx)
    for idx in range(3):
        way.ok("c", idx, idx)
    assert args(way, "sum") == [[0, 1, 2]]


def test_a_map_over_a_mapped_output_and_after_waits_for_both():
    flow = graph(step("gate"), items("a"), items("b", Output(1), after=(0,)))
    way = Journey(flow, [1, 2]).ok("a", 1, "y")
    assert ("b", 1) not in way.asked
    way.ok("gate")
    assert way.asked[-1] == ("b", 1)
    way.ok("a", 0, "x")
    assert way.asked[-1] == ("b", 0)


def test_a_map_that_needs_its_whole_source_waits_for_it():
    flow = graph(items("a"), items("b", Output(0), args=(Item(), Output(0))))
    way = Journey(flow, [1, 2]).ok("a", 0, "x")
    assert ("b", 0) not in way.asked
    way.ok("a", 1, "y")
    assert {("b", 0), ("b", 1)} < set(way.asked)
    assert way.shared["b"]["args"] == [None, ["x", "y"]]


def test_a_dynamic_map_expands_when_its_list_is_known():
    flow = graph(step("list"), items("m", Output(0, ("files",))), result=Output(1))
    way = Journey(flow)
    assert way.asked == [("list", -1)]
    way.ok("list", value={"files": ["x", "y"]})
    assert way.asked[1:] == [("m", 0), ("m", 1)]
    assert way.ok("m", 0, 1).ok("m", 1, 2).result == [1, 2]


@pytest.mark.parametrize("value", [5, "text", {"a": 1}, None, True])
def test_a_map_over_no_list_fails_the_run(value: Any):
    flow = graph(step("list"), items("m", Output(0)), items("n", Output(1)), step("z", after=(2,)))
    way = Journey(flow).ok("list", value=value)
    assert way.stopped
    assert way.result.type == "flow_input"
    assert "a list is needed" in way.result.message
    assert {name for name, _ in way.skipped} == {"m", "n", "z"}


def test_a_map_over_too_many_items_fails_the_run():
    way = Journey(graph(items()), list(range(MAX_ITEMS + 1)))
    assert way.asked == []
    assert way.result.type == "flow_input"
    assert f"{MAX_ITEMS:,}" in way.result.message


def test_the_largest_map_is_allowed():
    assert len(Journey(graph(items()), list(range(MAX_ITEMS))).asked) == MAX_ITEMS


def test_a_map_with_broken_shared_arguments_ends():
    """Joins that can never be met must not hang: those who follow it item by item are skipped."""
    flow = graph(
        step("part"),
        items("m", args=(Item(), Output(0, ("missing",)))),
        items("n", Output(1)),
        step("z", args=(Output(2),)),
    )
    way = Journey(flow, [1, 2]).ok("part", value={"there": 1})
    assert way.result.type == "flow_input"
    assert {name for name, _ in way.skipped} == {"m", "n", "z"}


# -- failures --------------------------------------------------------------------------------------


def test_only_steps_that_need_a_failed_task_are_skipped():
    flow = graph(
        step("a"),
        step("by_data", args=(Output(0),)),
        step("by_order", after=(0,)),
        step("further", after=(1,)),
        step("other"),
        step("later", after=(4,)),
    )
    way = Journey(flow).fail("a")
    assert set(way.skipped) == {("by_data", -1), ("by_order", -1), ("further", -1)}
    assert way.tainted == {"by_data", "by_order", "further"}
    assert not way.stopped
    way.ok("other")
    assert way.asked[-1] == ("later", -1)
    failure = way.ok("later").result
    assert (failure.type, failure.node) == ("Boom", "a")


def test_fail_fast_stops_the_run():
    assert Journey(graph(step("a"), step("b"), fail="fast")).fail("a").stopped


def test_a4_on_error_fail_skips_the_successor():
    flow = graph(items("m", on_error="fail"), step("sum", args=(Output(0),)))
    way = Journey(flow, [1, 2, 3]).fail("m", 1)
    assert way.closing == ["m"]
    way.ok("m", 0)  # in flight: it finishes
    way.drop("m", 2)  # waiting: it is skipped by the caller
    assert way.skipped == [("sum", -1)]
    assert way.result.type == "Boom"


def test_on_error_fail_lets_succeeded_items_flow_on():
    flow = graph(items("a"), items("b", Output(0)))
    way = Journey(flow, [1, 2, 3]).ok("a", 0, "x").fail("a", 1)
    assert ("b", 0) in way.asked
    assert ("b", 1) in way.skipped
    way.drop("a", 2)
    assert ("b", 2) in way.skipped
    assert way.ok("b", 0).result.type == "Boom"


def test_a4_on_error_collect_hands_errors_on_as_values():
    flow = graph(items("m", on_error="collect"), step("sum", args=(Output(0),)), result=Output(1))
    way = Journey(flow, [1, 2]).fail("m", 0).ok("m", 1, "fine")
    [[error, fine]] = args(way, "sum")
    assert error["$locktender.error"]["type"] == "Boom"
    assert "traceback" not in error["$locktender.error"]
    assert fine == "fine"
    assert way.closing == []
    assert way.ok("sum", value=1).result == 1


def test_a_collected_error_passes_on_through_every_next_map():
    flow = graph(
        items("a", on_error="collect"),
        items("b", Output(0)),
        items("c", Output(1)),
        step("all", args=(Output(2),)),
        result=Output(3),
    )
    way = Journey(flow, [1, 2]).fail("a", 0).ok("a", 1, 2).ok("b", 1, 3).ok("c", 1, 4)
    assert way.skipped == [("b", 0), ("c", 0)]
    assert way.tainted == set()
    [[error, fine]] = args(way, "all")
    assert (error["$locktender.error"]["node"], fine) == ("a", 4)
    assert way.ok("all", value=5).result == 5


def test_an_error_in_a_list_of_a_step_passes_on_too():
    error = {"$locktender.error": {"type": "Boom", "message": "m", "node": "x"}}
    flow = graph(step("a"), items("b", Output(0)), result=Output(1))
    way = Journey(flow).ok("a", value=[error, 1, {"deep": error}])
    assert way.asked == [("a", -1), ("b", 1), ("b", 2)]
    assert way.ok("b", 1, 1).ok("b", 2, 2).result == [error, 1, 2]


def test_a_map_that_takes_errors_is_called_with_them():
    flow = graph(items("a", on_error="collect"), items("b", Output(0), take_errors=True))
    way = Journey(flow, [1]).fail("a", 0)
    assert way.inputs["b", 0]["$locktender.error"]["message"] == "as planned"


def test_a_clean_up_is_called_for_errors_too():
    flow = graph(items("a", on_error="collect"), items("b", Output(0), run_if="always"))
    way = Journey(flow, [1]).fail("a", 0)
    assert way.inputs["b", 0]["$locktender.error"]["message"] == "as planned"


def test_an_error_passes_on_in_a_map_that_failed_elsewhere():
    flow = graph(
        items("a", on_error="collect"),
        items("b", Output(0)),
        step("tidy", args=(Output(1),), run_if="always"),
    )
    way = Journey(flow, [1, 2]).ok("a", 1, 2).fail("b", 1).fail("a", 0)
    assert way.tainted == set()
    [[error, nothing]] = args(way, "tidy")
    assert (error["$locktender.error"]["node"], nothing) == ("a", None)


def test_a_step_after_a_failure_is_given_the_first_in_order():
    flow = graph(
        step("a"),
        items("b"),
        step("c"),
        step("report", args=(FailureOf(),), after=(0, 1, 2), run_if="failure"),
    )
    way = Journey(flow, [1, 2]).ok("a").fail("c").ok("b", 0).fail("b", 1)
    [failure] = args(way, "report")
    assert failure == {"$locktender.error": {"type": "Boom", "message": "as planned", "node": "b"}}


# -- conditions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "runs"),
    [
        (Truthy(Output(0)), True),
        (Not(Truthy(Output(0))), False),
        (Compare("==", Output(0), Const(0)), True),
        (Compare(">", Output(0), Const(0)), False),
        (Compare("in", Output(0), ListOf((Const(0),))), True),
    ],
)
def test_when_decides_whether_a_task_runs(condition: AnyCondition, runs: bool):
    flow = graph(step("a"), step("b", when=condition), step("c", after=(1,)))
    way = Journey(flow, 3).ok("a", value=3)
    assert (("b", -1) in way.asked) is runs
    assert (("b", -1) in way.skipped) is not runs


def test_a_false_condition_skips_only_steps_that_need_it():
    flow = graph(
        step("a", when=Truthy(Const(0))),
        step("by_data", args=(Output(0),)),
        step("by_order", after=(0,)),
        step("after_skipped", after=(1,)),
    )
    way = Journey(flow, False)
    assert way.skipped == [("a", -1), ("by_data", -1)]
    assert way.tainted == set()
    assert set(way.asked) == {("by_order", -1), ("after_skipped", -1)}
    assert way.ok("by_order").ok("after_skipped").result is None  # nothing went wrong


def test_a_skipped_map_skips_the_map_over_it():
    flow = graph(items("m", when=Truthy(Const(1))), items("n", Output(0)), step("z", after=(1,)))
    way = Journey(flow, [1], 0)
    assert way.skipped == [("m", -1), ("n", -1)]
    assert way.tainted == set()
    assert way.asked == [("z", -1)]


@pytest.mark.parametrize(
    "condition",
    [Compare("<", Output(0), Const(0)), Truthy(Output(0, ("missing",))), Truthy(Const(99))],
)
def test_a_broken_condition_fails_the_run_and_never_means_true(condition: AnyCondition):
    way = Journey(graph(step("a"), step("b", when=condition)), 3).ok("a", value={"x": "text"})
    assert ("b", -1) not in way.asked
    assert way.stopped
    assert way.result.type == "flow_condition"


def test_a_broken_input_is_not_blamed_on_the_condition():
    way = Journey(graph(items("m", when=Truthy(Const(1)))), "no list", 1)
    assert way.result.type == "flow_input"


# -- clean-up --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", ["ok", "fail"])
def test_run_if_always_runs_however_it_went(ends: str):
    way = Journey(graph(step("a"), step("clean", run_if="always", args=(Output(0),))))
    getattr(way, ends)("a")
    assert ("clean", -1) in way.asked
    assert args(way, "clean") == [None]


def test_run_if_always_runs_after_what_was_skipped():
    flow = graph(
        step("a", when=Truthy(Const(0))), step("clean", run_if="always", args=(Output(0, ("x",)),))
    )
    way = Journey(flow, 0)
    assert args(way, "clean") == [None]


def test_run_if_always_of_a_map_runs_for_items_that_failed_too():
    flow = graph(items("a"), items("clean", Output(0), run_if="always"))
    way = Journey(flow, [1, 2]).fail("a", 0).drop("a", 1)
    assert set(way.asked[2:]) == {("clean", 0), ("clean", 1)}
    assert way.inputs["clean", 0] is None


@pytest.mark.parametrize(("ends", "runs"), [("ok", False), ("fail", True)])
def test_run_if_failure_runs_only_after_a_failure(ends: str, runs: bool):
    way = Journey(graph(step("a"), step("alarm", run_if="failure", after=(0,))))
    getattr(way, ends)("a")
    assert (("alarm", -1) in way.asked) is runs
    if runs:
        way.ok("alarm")
    assert (way.result is None) is not runs  # an alarm does not make a failed run succeed


# -- ending a run ----------------------------------------------------------------------------------


def test_stop_lets_nothing_new_start_but_clean_up():
    flow = graph(
        step("a"),
        step("b", after=(0,)),
        step("clean", after=(1,), run_if="always"),
        step("later", after=(2,)),
    )
    way = Journey(flow).stop()
    # The clean-up waits for what is in flight, also where it only follows a step that will be skipped.
    assert way.asked == [("a", -1)]
    assert not way.drop("a").progress.finished
    assert ("b", -1) in way.skipped
    assert way.asked == [("a", -1), ("clean", -1)]
    # What needs a clean-up step is not one, and is skipped with the rest.
    assert way.ok("clean").progress.finished
    assert ("later", -1) in way.skipped


def test_clean_up_waits_for_what_is_in_flight():
    way = Journey(graph(step("a"), step("clean", after=(0,), run_if="always"))).stop()
    assert way.asked == [("a", -1)]
    way.drop("a")
    assert way.asked[-1] == ("clean", -1)


def test_stop_by_force_skips_clean_up_as_well():
    flow = graph(step("a"), step("clean", after=(0,), run_if="always"))
    way = Journey(flow).stop().stop(force=True)
    assert way.drop("a").progress.finished
    assert ("clean", -1) in way.skipped


def test_stop_closes_a_map_that_follows_another():
    flow = graph(items("a"), items("b", Output(0)))
    way = Journey(flow, [1, 2]).ok("a", 0).stop()
    way.ok("a", 1)  # ended after all, before its worker heard of the stop
    assert ("b", 1) in way.skipped
    assert way.drop("b", 0).progress.finished


def test_stop_twice_changes_nothing():
    way = Journey(graph(step("a"), step("b", after=(0,)))).stop().stop()
    assert way.drop("a").progress.finished
    assert way.skipped == [("b", -1)]


def test_stop_lets_the_clean_up_of_every_item_go_on():
    flow = graph(items("a"), items("clean", Output(0), run_if="always"))
    way = Journey(flow, [1, 2]).ok("a", 0).stop()
    assert way.closing == []
    way.drop("a", 1)
    assert ("clean", 1) in way.asked
    assert way.ok("clean", 0).ok("clean", 1).progress.finished


def test_a_failed_clean_up_map_starts_no_more_items():
    flow = graph(items("a"), items("clean", Output(0), run_if="always"))
    way = Journey(flow, [1, 2]).ok("a", 0).fail("clean", 0)
    assert way.closing == ["clean"]
    way.ok("a", 1)
    assert ("clean", 1) in way.skipped


# -- items in order --------------------------------------------------------------------------------


def test_items_that_ended_in_any_order_are_asked_for_in_theirs():
    # Given a map whose items end before the one that follows it may begin
    way = Journey(graph(step("a"), items(), items("n", Output(1), after=(0,))), [1, 2, 3])
    for idx in (2, 0, 1):
        way.ok("m", idx)
    # When it may
    way.ok("a")
    # Then what stands first is asked for first
    assert way.asked[-3:] == [("n", 0), ("n", 1), ("n", 2)]


def test_an_item_in_order_waits_for_those_before_it():
    way = Journey(graph(items(), items("n", Output(0), in_order=True)), [1, 2, 3])
    way.ok("m", 2, "c").ok("m", 1, "b")
    assert not [place for place in way.asked if place[0] == "n"]
    way.ok("m", 0, "a")
    assert way.asked[-3:] == [("n", 0), ("n", 1), ("n", 2)]
    assert [way.inputs["n", idx] for idx in range(3)] == ["a", "b", "c"]


def test_an_item_in_order_does_not_wait_for_ever():
    """An earlier item of what it follows failed or was dropped: its own is skipped, and its turn has passed."""
    way = Journey(graph(items(on_error="collect"), items("n", Output(0), in_order=True)), [1, 2, 3])
    way.ok("m", 2, "c").fail("m", 0).drop("m", 1)
    assert way.asked[-1:] == [("n", 2)]
    assert way.skipped == [("n", 0), ("n", 1)]
