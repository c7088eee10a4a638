"""The checker on single tasks: legal changes, tokens, ends. Valid histories pass, planted faults are found."""

from __future__ import annotations

import pytest
from tests.support.history_writer import HistoryWriter, found, tell

from locktender.base import ids
from locktender.base.graph import Graph, Node, OnError, Output, Param, Truthy
from locktender.observe.checker import check

PLAIN = Graph("plain", (Node("a", "a"),))
CHAIN = Graph("chain", (Node("a", "a"), Node("b", "b", args=(Output(0),))))


def test_a_whole_life_in_plain_commits_keeps_every_promise():
    story = tell(CHAIN)
    a = story.request(1, 0)
    story.perform(a)
    b = story.request(1, 1)
    story.perform(b)
    story.run(1, "succeeded")
    assert check(story.history(complete=True)) == []


def test_a_whole_life_in_fused_commits_keeps_every_promise():
    story = tell(CHAIN)
    with story.cycle():
        a = story.request(1, 0)
        story.grant(a)
        story.accept(a)
    with story.cycle():
        story.finish(a)
        b = story.request(1, 1)
        story.grant(b)
        story.accept(b)
    with story.cycle():
        story.finish(b)
        story.run(1, "succeeded")
    assert check(story.history(complete=True)) == []


# legal_edge


def test_a_change_that_is_not_in_the_table_is_found():
    story = tell(PLAIN)
    a = story.request(1)
    story.grant(a)
    story.finish(a)
    assert "legal_edge" in found(story)


def test_a_change_by_somebody_else_is_found():
    story = tell(PLAIN)
    a = story.request(1)
    story.grant(a)
    story.task(a, "running", actor="leader:a")
    assert found(story) == ["legal_edge"]


def test_a_hand_back_for_a_lost_worker_keeps_promises():
    story = tell(PLAIN)
    a = story.request(1)
    story.grant(a)
    story.accept(a)
    with story.cycle():
        story.worker("w", "lost", reason="lease expired")
        story.task(a, "handed_back", actor="leader:a", reason="drain, lease expired")
    story.worker("v")
    story.task(a, "requested")
    story.perform(a, worker="v")
    story.run(1, "succeeded")
    assert check(story.history(complete=True)) == []


def test_a_hand_back_before_its_worker_is_lost_is_found():
    story = tell(PLAIN)
    a = story.request(1)
    story.grant(a)
    story.accept(a)
    story.worker("v")
    story.worker("v", "lost", reason="lease expired")  # another one
    story.task(a, "handed_back", actor="leader:a", reason="drain, lease expired")
    story.worker("w", "lost", reason="lease expired")
    assert found(story) == ["legal_edge"]


def test_a_hand_back_with_another_token_is_found():
    story = tell(PLAIN)
    a = story.request(1)
    story.grant(a)
    story.accept(a)
    story.worker("w", "lost", reason="lease expired")
    story.task(a, "handed_back", actor="leader:a", token=1, reason="drain, lease expired")
    assert found(story) == ["fencing"]


def test_what_a_lost_worker_did_is_not_the_leaders_to_end():
    story = tell(PLAIN)
    a = story.request(1)
    story.grant(a)
    story.accept(a)
    story.worker("w", "lost", reason="lease expired")
    story.task(a, "completed", actor="leader:a")
    assert "legal_edge" in found(story)


def test_a_gap_between_two_changes_is_found():
    story = tell(PLAIN)
    a = story.request(1)
    story.task(a, "running", before="scheduled", actor="worker:w")
    [gap, *_] = check(story.history())
    assert gap.rule == "legal_edge"
    assert gap.message == f"task {a} goes scheduled → running, but it is requested."
    assert (gap.seq, gap.run, gap.task) == (story.seq, 1, a)


def test_a_run_never_queued_or_without_graph_is_found():
    story = HistoryWriter(g=PLAIN)
    story.lead()
    story.request(7)
    story.submit(8, "missing")
    messages = [violation.message for violation in check(story.history())]
    assert any("run 7, which was never queued" in message for message in messages)
    assert any("names graph 'missing'" in message for message in messages)


# fencing


def test_a_token_that_does_not_grow_is_found():
    story = tell(PLAIN)
    a = story.request(1)
    story.grant(a, token=ids.token(1, 5))
    story.task(a, "requested", reason="withdrawn")
    story.grant(a, token=ids.token(1, 5))
    assert found(story) == ["fencing"]


def test_a_later_attempt_in_a_later_term_has_a_larger_token():
    story = tell(PLAIN)
    a = story.request(1)
    story.grant(a)
    story.lead("b")
    story.task(a, "requested", reason="withdrawn")
    story.grant(a)
    assert found(story) == []


def test_a_token_of_another_term_is_found():
    story = tell(PLAIN)
    a = story.request(1)
    story.grant(a, token=ids.token(2, 1))
    assert found(story) == ["fencing"]


def test_a_stale_write_and_a_write_by_another_worker_are_found():
    story = tell(PLAIN)
    story.worker("v")
    a = story.request(1)
    story.grant(a)
    story.accept(a, "v")
    story.task(a, "completed", actor="worker:w", token=ids.token(1, 99))
    messages = [violation.message for violation in check(story.history())]
    assert ["offered to 'w'" in messages[0], "a stale write" in messages[1]] == [True, True]


# terminal


def test_a_run_that_ends_with_open_tasks_is_found():
    story = tell(PLAIN)
    story.request(1)
    story.run(1, "failed", error={"type": "x", "message": ""})
    assert found(story) == ["terminal"]


def test_anything_after_the_end_is_found():
    story = tell(PLAIN)
    a = story.request(1)
    story.perform(a)
    story.run(1, "succeeded")
    story.wait(a, "worker")
    story.task(a, "failed", before="running", actor="worker:w")
    assert "terminal" in found(story)


@pytest.mark.parametrize(
    ("on_error", "expected"), [("fail", ["terminal"]), ("collect", [])], ids=["fail", "collect"]
)
def test_a_run_succeeds_only_if_nothing_failed_for_good(on_error: OnError, expected: list[str]):
    story = tell(Graph("f", (Node("a", "a", over=Param("x"), on_error=on_error),)))
    story.perform(story.request(1, 0, 0), "failed", error={"type": "E", "message": ""})
    story.perform(story.request(1, 0, 1))
    story.run(1, "succeeded")
    assert found(story) == expected


def test_a_run_fails_only_with_a_failure_or_an_error():
    for error, expected in (({}, ["terminal"]), ({"type": "internal", "message": "x"}, [])):
        story = tell(PLAIN)
        story.perform(story.request(1))
        story.run(1, "failed", error=error)
        assert found(story) == expected


def test_success_with_a_step_left_out_is_found():
    left_out = tell(CHAIN)
    left_out.perform(left_out.request(1, 0))
    left_out.run(1, "succeeded")
    skipped = tell(CHAIN)
    skipped.perform(skipped.request(1, 0))
    skipped.task(skipped.new_task(1, 1), "skipped", node=1, index=-1, reason="")
    skipped.run(1, "succeeded")
    assert (found(left_out), found(skipped)) == (["terminal"], ["terminal"])


def test_a_skip_by_a_condition_is_no_fault():
    graph = Graph("w", (Node("a", "a"), Node("b", "b", when=Truthy(Output(0)))))
    story = tell(graph)
    story.perform(story.request(1, 0))
    story.task(story.new_task(1, 1), "skipped", node=1, index=-1, reason="when")
    story.run(1, "succeeded")
    assert found(story, complete=True) == []


def test_a_second_end_in_one_generation_is_found():
    story = tell(PLAIN)
    a = story.request(1)
    story.task(a, "cancelled", reason="")
    story.task(a, "requested")
    assert "terminal" in found(story)


def test_a_retried_run_repeats_failed_tasks():
    story = tell(CHAIN)
    a = story.request(1, 0)
    story.perform(a, "failed", error={"type": "E", "message": ""})
    b = story.new_task(1, 1)
    story.task(b, "skipped", node=1, index=-1, reason="a failed")
    story.run(1, "failed")
    story.run(1, "queued", actor="client", generation=1)
    story.run(1, "running")
    story.task(a, "pending")
    story.task(b, "pending")
    story.task(a, "requested")
    story.perform(a)
    story.task(b, "requested")
    story.perform(b)
    story.run(1, "succeeded")
    assert check(story.history(complete=True)) == []


def test_a_retried_run_that_forgets_what_it_had_skipped_is_found():
    story = tell(CHAIN)
    a = story.request(1, 0)
    story.perform(a, "failed", error={"type": "E", "message": ""})
    story.task(story.new_task(1, 1), "skipped", node=1, index=-1, reason="a failed")
    story.run(1, "failed")
    story.run(1, "queued", actor="client", generation=1)
    story.run(1, "running")
    story.task(a, "pending")
    story.task(a, "requested")
    story.perform(a)
    story.run(1, "succeeded")
    assert "terminal" in found(story, complete=True)


def test_a_completed_task_that_runs_again_is_found():
    story = tell(CHAIN)
    a = story.request(1, 0)
    story.perform(a)
    b = story.request(1, 1)
    story.perform(b, "failed", error={"type": "E", "message": ""})
    story.run(1, "failed")
    story.run(1, "queued", actor="client", generation=1)
    story.run(1, "running")
    story.task(a, "pending")
    assert "dependencies" in found(story)


def test_a_retry_that_keeps_what_followed_a_clean_up_is_found():
    nodes = (
        Node("a", "a"),
        Node("m", "m", over=Param("x"), run_if="failure", after=(0,), on_error="collect"),
        Node("b", "b", args=(Output(1),)),
    )
    story = tell(Graph("g", nodes))
    error = {"type": "E", "message": ""}
    a = story.request(1, 0)
    story.perform(a, "failed", error=error)
    item = story.request(1, 1, 0)
    story.perform(item, "failed", error=error)
    story.perform(story.request(1, 2))
    story.run(1, "failed")
    story.run(1, "queued", actor="client", generation=1)
    story.run(1, "running")
    story.task(a, "pending")
    story.task(item, "pending")
    story.task(a, "requested")
    story.perform(a)
    story.task(item, "skipped", node=1, index=0, reason="nothing failed")
    assert found(story) == []
    story.run(1, "succeeded")
    assert found(story) == ["dependencies"]


def test_a_pending_task_without_a_retry_is_found():
    story = tell(PLAIN)
    a = story.request(1)
    story.perform(a, "failed", error={"type": "E", "message": ""})
    story.task(a, "pending")
    assert "dependencies" in found(story)


# held runs


def test_a_held_run_may_end_with_tasks_that_wait_and_be_retried():
    story = tell(CHAIN)
    story.request(1, 0)
    story.run(1, "held", error={"type": "held", "message": "broken"})
    story.run(1, "cancelled")
    assert check(story.history(complete=True)) == []


def test_an_offer_of_a_held_run_to_a_lost_worker_is_void():
    story = tell(PLAIN)
    a = story.request(1)
    story.grant(a)
    story.run(1, "held")
    story.task(a, "requested", reason="worker lost")
    story.run(1, "cancelled")
    assert found(story) == []


def test_a_request_in_a_held_run_is_found():
    story = tell(CHAIN)
    story.perform(story.request(1, 0))
    story.run(1, "held")
    story.request(1, 1)
    assert "dependencies" in found(story)


def test_a_start_in_a_held_run_is_found():
    story = tell(PLAIN)
    a = story.request(1)
    story.run(1, "held")
    story.grant(a)
    assert found(story) == ["terminal"]


def test_a_held_run_that_ends_with_an_attempt_in_flight_is_found():
    story = tell(PLAIN)
    a = story.request(1)
    story.grant(a)
    story.accept(a)
    story.run(1, "held")
    story.run(1, "cancelled")
    assert found(story) == ["conservation", "terminal"]


def test_a_held_run_neither_succeeds_nor_starts_by_itself():
    story = tell(PLAIN)
    story.run(1, "held")
    story.run(1, "running")
    assert "legal_edge" in found(story)
