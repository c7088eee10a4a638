"""The checker on reasons for waiting: true at the moment they were written."""

from __future__ import annotations

import pytest
from tests.support.history_writer import HistoryWriter

from locktender.base.graph import Graph, Node, Param, PoolNeed
from locktender.observe.checker import check
from locktender.observe.checker.world import DECIDED_AHEAD

NARROW = Graph("narrow", (Node("t", "t", over=Param("x"), pools=(PoolNeed("db"),)),))


def found(story: HistoryWriter) -> list[str]:
    return sorted({violation.rule for violation in check(story.history())})


def blocked(graph: Graph, *, limit: int = 2) -> tuple[HistoryWriter, int]:
    """Two items in flight, the third requested."""
    story = HistoryWriter(g=graph)
    story.lead()
    story.worker()
    story.pool("db", limit)
    story.begin(1)
    tasks = [story.request(1, 0, index) for index in range(3)]
    story.grant(tasks[0])
    story.grant(tasks[1])
    return story, tasks[2]


@pytest.mark.parametrize(
    ("gate", "used", "limit", "expected"),
    [
        ("pool:db", 2, 2, []),
        ("pool:db", 3, 2, ["true_reason"]),
        ("pool:db", 1, 2, ["true_reason"]),
        ("pool:db", 2, 1, ["true_reason"]),
        ("pool:other", 2, 2, ["true_reason"]),
        ("window:t", 2, 2, []),
        ("window:t", 1, 2, ["true_reason"]),
        ("window:u", 2, 2, ["true_reason"]),
        ("run:parallel", 2, 2, []),
        ("run:parallel", 2, 3, ["true_reason"]),
        ("run:parallel:thread", 2, 2, []),
        ("run:parallel:process", 2, 2, ["true_reason"]),
        ("paused:db", 0, 0, ["true_reason"]),
        ("rate:db", 0, 0, ["true_reason"]),
        ("reserved:db", 2, 2, []),
        ("worker", 0, 0, []),
        ("moon", 0, 0, ["true_reason"]),
    ],
)
def test_a_reason_is_true_at_its_moment(gate: str, used: int, limit: int, expected: list[str]):
    node = Node("t", "t", over=Param("x"), pools=(PoolNeed("db"),), window=2)
    graph = Graph("r", (node,), max_parallel=2, max_parallel_by={"thread": 2})
    story, task = blocked(graph)
    story.wait(task, gate, used, limit)
    assert found(story) == expected


def test_a_pause_and_a_rate_are_reasons_where_they_are_set():
    story, task = blocked(NARROW)
    story.pool("db", 2, paused=True, rate={"count": 1, "per_us": 1})
    story.wait(task, "paused:db")
    story.wait(task, "rate:db")
    assert found(story) == []


def test_an_open_gate_is_no_reason_and_a_running_task_has_none():
    story, task = blocked(NARROW, limit=5)
    story.wait(task, "pool:db", 2, 5)
    assert found(story) == ["true_reason"]
    running, other = blocked(NARROW, limit=5)
    running.grant(other)
    running.wait(other, "worker")
    assert found(running) == ["true_reason"]


def test_a_completion_the_leader_had_not_read_is_no_lie():
    story, task = blocked(NARROW)
    first = story.events[-2].task
    story.accept(first)
    story.finish(first)
    # It is written while later cycles are decided already, and none of those can know.
    for _ in range(1 + DECIDED_AHEAD):
        story.wait(task, "pool:db", 2, 2)
        assert found(story) == []
    story.wait(task, "pool:db", 2, 2)
    assert found(story) == ["true_reason"], "by now it knows"
    # A live leader that got no notification reads it a second later, and until then goes on deciding.
    assert check(story.history(unheard_us=1_000_000)) == []
    story.at += 1_000_000
    story.wait(task, "pool:db", 2, 2)
    story.wait(task, "pool:db", 2, 2)
    assert [each.rule for each in check(story.history(unheard_us=1_000_000))] == ["true_reason"]


@pytest.mark.parametrize(("used", "expected"), [(2, []), (1, ["true_reason"])])
def test_the_reason_of_a_lane_that_runs_share_is_true_too(used: int, expected: list[str]):
    story, task = blocked(NARROW)
    data = {"gate": "pool:db", "lane": "1f", "used": used, "limit": 2, "need": 1, "task": task}
    story.event("wait", "", "pool:db", run=0, task=0, data=data)
    assert found(story) == expected


def test_who_holds_a_gate_and_what_waits_cost_break_no_rule():
    story, _ = blocked(NARROW)
    held = {"gate": "pool:db", "held": [[1, 2]]}
    story.event("wait", "pool:db", "pool:db", run=0, task=0, data=held)
    story.event("cost", "", "", run=0, task=0, data={"gates": {"pool:db": [20, 1]}})
    assert found(story) == []
