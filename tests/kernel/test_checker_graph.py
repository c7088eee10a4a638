"""The checker on dependencies, order, attempts, deadlines and keys, and on work that is lost."""

from __future__ import annotations

import pytest
from tests.support.history_writer import HistoryWriter, found, tell

from locktender.base.graph import Const, Graph, Item, Node, Output, Param, RetryPolicy, RunIf
from locktender.observe.checker import check

PLAIN = Graph("plain", (Node("a", "a"),))
CHAIN = Graph("chain", (Node("a", "a"), Node("b", "b", args=(Output(0),))))
MAPS = Graph(
    "maps",
    (
        Node("m", "m", over=Param("items"), args=(Item(),)),
        Node("n", "n", over=Output(0), args=(Item(),)),
        Node("sum", "sum", args=(Output(1),)),
    ),
)


# dependencies


def test_a_task_requested_before_its_input_is_there_is_found():
    story = tell(CHAIN)
    story.grant(story.request(1, 0))
    story.request(1, 1)
    [fault] = check(story.history())
    assert fault.rule == "dependencies"
    assert "a has not ended" in fault.message


def test_an_item_of_a_map_over_a_map_waits_for_its_own():
    story = tell(MAPS)
    m0, m1 = story.request(1, 0, 0), story.request(1, 0, 1)
    story.perform(m1)
    n1 = story.request(1, 1, 1)
    story.perform(n1)
    assert found(story) == []
    story.request(1, 2)
    [fault] = check(story.history())
    assert "n has not ended" in fault.message, "the sum waits for every item, n[0] included"
    story.events.pop()
    story.grant(m0)
    story.request(1, 1, 0)
    [fault] = check(story.history())
    assert "m[0] is scheduled" in fault.message


def test_a_map_over_an_empty_list_lets_its_successors_go():
    story = tell(MAPS)
    story.perform(story.request(1, 2))
    story.run(1, "succeeded")
    assert check(story.history(complete=True)) == []


@pytest.mark.parametrize(
    ("run_if", "ended", "expected"),
    [
        ("success", "failed", ["dependencies"]),
        ("always", "failed", []),
        ("failure", "failed", []),
        ("failure", "completed", ["dependencies"]),
    ],
)
def test_run_if_says_which_end_lets_a_task_go(run_if: RunIf, ended: str, expected: list[str]):
    story = tell(Graph("f", (Node("a", "a"), Node("b", "b", after=(0,), run_if=run_if))))
    story.perform(story.request(1, 0), ended, error={"type": "E", "message": ""})
    story.request(1, 1)
    assert found(story) == expected


def test_a_failure_that_was_taken_for_final_is_not_tried_again():
    retry = RetryPolicy(retries=1)
    nodes = Node("a", "a", retry=retry), Node("b", "b", after=(0,), run_if="always")
    story = tell(Graph("f", nodes))
    a = story.request(1, 0)
    story.perform(a, "failed", error={"type": "E", "message": ""})
    story.request(1, 1)
    story.task(a, "requested")
    assert found(story) == ["dependencies"]


def test_a_second_task_of_one_item_is_found():
    story = tell(PLAIN)
    a = story.request(1)
    story.perform(a)
    story.request(1)
    story.task(a, "requested")
    messages = " ".join(v.message for v in check(story.history()) if v.rule == "dependencies")
    assert "is a second one for a" in messages
    assert "completed and is requested again" in messages


def test_a_task_of_a_run_that_is_not_running_is_found():
    story = HistoryWriter(g=PLAIN)
    story.lead()
    story.submit(1)
    story.request(1)
    assert found(story) == ["dependencies"]


# sequential


def test_sequential_steps_follow_one_another():
    graph = Graph("s", (Node("a", "a"), Node("b", "b", args=(Const(0),))), sequential=True)
    true = tell(graph)
    true.perform(true.request(1, 0))
    true.request(1, 1)
    assert found(true) == []
    hasty = tell(graph)
    hasty.grant(hasty.request(1, 0))
    hasty.request(1, 1)
    assert found(hasty) == ["sequential"]
    failed = tell(graph)
    failed.perform(failed.request(1, 0), "failed")
    failed.request(1, 1)
    assert found(failed) == ["sequential"]


def test_sequential_items_start_in_their_order():
    story = tell(Graph("s", (Node("m", "m", over=Param("x")),), sequential=True))
    first, second = story.request(1, 0, 0), story.request(1, 0, 1)
    story.perform(first)
    story.grant(second)
    assert found(story) == []
    story.request(1, 0, 2)
    fourth = story.request(1, 0, 3)
    story.accept(second)
    story.finish(second)
    story.grant(fourth)
    assert found(story) == ["sequential"]


def test_items_of_an_inner_sequential_flow_start_in_their_order():
    story = tell(Graph("s", (Node("m", "m", over=Param("x"), in_order=True), Node("n", "n"))))
    story.grant(story.request(1, 1))
    first, second = story.request(1, 0, 0), story.request(1, 0, 1)
    story.perform(first)
    story.grant(second)
    assert found(story) == []
    story.request(1, 0, 2)
    fourth = story.request(1, 0, 3)
    story.grant(fourth)
    assert found(story) == ["sequential"]


# attempts and deadlines


def test_more_attempts_than_retries_allow_are_found():
    retry = RetryPolicy(retries=1)
    story = tell(Graph("f", (Node("a", "a", retry=retry),)))
    a = story.request(1)
    story.perform(a, "failed")
    story.task(a, "requested", not_before=story.at + 10)
    story.at += 10
    story.perform(a, "timed_out")
    assert found(story) == []
    story.task(a, "requested")
    assert found(story) == ["attempts"]


def test_a_retry_too_early_or_after_a_fatal_error_is_found():
    retry = RetryPolicy(retries=3)
    story = tell(Graph("f", (Node("a", "a", retry=retry),)))
    a = story.request(1)
    story.perform(a, "failed", retryable=False)
    story.task(a, "requested", not_before=story.at + 10)
    story.grant(a)
    messages = [v.message for v in check(story.history()) if v.rule == "attempts"]
    assert ["failed for good" in messages[0], "10 µs before" in messages[1]] == [True, True]


def test_a_poison_task_fails_after_max_abandons():
    story = tell(Graph("f", (Node("a", "a", max_abandons=2),)))
    a = story.request(1)
    for _ in range(2):
        story.grant(a)
        story.accept(a)
        story.task(a, "abandoned", reason="")
        story.task(a, "requested")
    assert found(story) == ["attempts"]
    story.events.pop()
    story.task(a, "failed", before="abandoned", error={"type": "worker_lost", "message": ""})
    assert found(story) == []
    early = tell(PLAIN)
    b = early.request(1)
    early.grant(b)
    early.accept(b)
    early.task(b, "abandoned", reason="")
    early.task(b, "failed", error={"type": "worker_lost", "message": ""})
    assert found(early) == ["attempts"]


@pytest.mark.parametrize("kind", ["queue_timeout", "capacity"])
def test_a_task_that_fails_for_want_of_time_had_its_time(kind: str):
    node = Node("a", "a", queue_timeout_us=100, dispatch_deadline_us=100)
    for waited, expected in ((100, []), (99, ["deadlines"])):
        story = tell(Graph("f", (node,)))
        a = story.request(1)
        story.at += waited
        story.task(a, "failed", error={"type": kind, "message": ""})
        assert found(story) == expected


def test_a_run_times_out_at_its_deadline_and_not_before():
    for waited, expected in ((50, []), (49, ["deadlines"])):
        story = HistoryWriter(g=PLAIN)
        story.lead()
        story.submit(1, deadline_us=50)
        story.at += waited
        story.run(1, "timed_out")
        assert found(story) == expected


# keys, no_loss


def test_two_runs_of_one_key():
    beside = tell(PLAIN)
    beside.begin(2, key="k")
    beside.begin(3, key="k")
    assert found(beside) == ["keys"]
    behind = tell(PLAIN)
    behind.begin(2, key="k")
    behind.submit(3, key="k", waits_for=2)
    behind.run(2, "cancelling")
    behind.run(2, "cancelled")
    behind.run(3, "running")
    assert found(behind) == []
    hasty = tell(PLAIN)
    hasty.begin(2, key="k")
    hasty.submit(3, key="k", waits_for=2)
    hasty.run(3, "running")
    assert found(hasty) == ["keys"]


def test_what_is_left_over_when_the_system_is_idle_is_lost():
    story = tell(PLAIN)
    story.request(1)
    story.submit(2)
    assert found(story) == []
    assert found(story, complete=True) == ["no_loss"]
    assert len(check(story.history(complete=True))) == 3
