"""A pruned history: what may be judged of it, and what was judged before."""

from __future__ import annotations

from dataclasses import replace

from tests.support.history_writer import HistoryWriter

from locktender.base.graph import Graph, Node, PoolNeed
from locktender.observe.checker import check

GRAPH = Graph("flow", (Node("a", "a", pools=(PoolNeed("db", 1),)),))


def told() -> HistoryWriter:
    """Run 1 holds the only slot, run 2 is found waiting for it, run 1 ends."""
    story = HistoryWriter(g=GRAPH)
    story.lead()
    story.pool("db", 1)
    story.begin(1)
    story.begin(2)
    first, second = story.request(1), story.request(2)
    with story.cycle():
        story.grant(first)
        story.wait(second, "pool:db", used=1, limit=1)
    story.accept(first)
    story.finish(first)
    story.run(1, "succeeded")
    return story


def test_a_reason_to_wait_is_true_although_the_holder_is_gone() -> None:
    story = told()
    history = story.history()
    assert check(history) == []
    left = [event for event in history.events if event.run != 1]
    assert [each.rule for each in check(replace(history, events=left))] == ["true_reason"]
    assert check(replace(history, events=left, checked=story.seq)) == []


def test_after_the_checkpoint_a_false_reason_is_found_again() -> None:
    story = told()
    checked = story.seq
    third = story.request(2)
    with story.cycle():
        story.wait(third, "pool:db", used=1, limit=1)
    left = [event for event in story.history().events if event.run != 1]
    found = check(replace(story.history(), events=left, checked=checked))
    assert "true_reason" in {each.rule for each in found}
    assert all(each.seq > checked for each in found if each.rule == "true_reason")


def test_what_a_run_promises_by_itself_is_judged_everywhere() -> None:
    story = told()
    story.submit(3)
    story.run(3, "succeeded")
    found = check(replace(story.history(), checked=story.seq))
    assert "legal_edge" in {each.rule for each in found}
