"""The checker on limits: they hold at every commit, and a breach is found."""

from __future__ import annotations

import pytest
from tests.support.history_writer import HistoryWriter, found, grants, tell

from locktender.base.graph import Graph, Node, Param, PoolNeed, Tag
from locktender.observe.checker import RULES, History, Peak, check, peaks
from locktender.observe.checker.audit import Replay

DB = Graph("db", (Node("a", "a", over=Param("x"), pools=(PoolNeed("db"),)),))
FREE = Graph("free", (Node("a", "a", over=Param("x")),))


# pools


def test_a_pool_beyond_its_limit_is_found_and_its_peak_measured():
    story = tell(DB)
    story.pool("db", 2)
    grants(story, 2)
    assert found(story) == []
    assert Peak("pool:db", 2, 2, True) in peaks(story.history())
    story.grant(story.request(1, 0, 2))
    [fault] = check(story.history())
    assert (fault.rule, fault.message) == ("ceilings", "pool 'db': 3 in use with a limit of 2.")
    assert Peak("pool:db", 2, 3, False) in peaks(story.history())


def test_a_commit_that_is_whole_is_judged_once_without_the_next():
    story = tell(DB)
    story.pool("db", 2)
    grants(story, 3)
    replaying = Replay(History((), story.history().graphs), RULES)
    replaying.feed(story.events)
    assert not replaying.violations
    replaying.close_commit()
    assert [each.rule for each in replaying.violations] == ["ceilings"]
    before = len(story.events)
    story.worker("other")
    replaying.feed(story.events[before:])
    replaying.close_commit()
    assert len(replaying.finish(complete=False).violations) == 1


def test_a_judged_commit_is_not_judged_with_the_next_event():
    story = tell(DB)
    story.term += 1  # that never began
    with story.cycle():
        story.pool("db", 2)
    replaying = Replay(History((), story.history().graphs), RULES)
    replaying.feed(story.events)
    replaying.close_commit()
    assert [each.rule for each in replaying.violations] == ["leadership"]
    before = len(story.events)
    story.worker("other")
    replaying.feed(story.events[before:])
    assert len(replaying.finish(complete=False).violations) == 1


def test_a_commit_is_judged_as_a_whole():
    story = tell(DB)
    story.pool("db", 1)
    [first] = grants(story, 1)
    story.accept(first)
    second = story.request(1, 0, 1)
    with story.cycle():
        story.grant(second)
        story.finish(first)
    assert found(story) == []


def test_a_lowered_limit_is_violated_by_new_grants_only():
    story = tell(DB)
    story.pool("db", 3)
    held = grants(story, 3)
    story.pool("db", 1)
    later = story.request(1, 0, 3)
    assert found(story) == []
    story.accept(held[0])
    story.finish(held[0])
    story.grant(later)
    assert found(story) == ["ceilings"]
    assert Peak("pool:db", 3, 3, False) in peaks(story.history())


def test_a_paused_pool_grants_nothing_an_unset_one_all():
    story = tell(DB)
    story.pool("db", 1, paused=True)
    task = story.request(1, 0, 0)
    story.limit("pool", "db")
    story.grant(task)
    assert found(story) == []
    story.pool("db", 9, paused=True)
    story.grant(story.request(1, 0, 1))
    assert found(story) == ["ceilings"]


def test_a_keyed_pool_falls_back_to_the_rule_for_every_key():
    pools = (PoolNeed("api", 1, (Tag("tenant"),)),)
    story = HistoryWriter(g=Graph("api", (Node("a", "a", over=Param("x"), pools=pools),)))
    story.lead()
    story.pool("api[*]", 1)
    for run, tenant in enumerate(("acme", "bolt"), 1):
        story.begin(run, tags={"tenant": tenant})
        story.grant(story.request(run, 0, 0), pools={f"api[{tenant}]": 1})
    assert found(story) == []
    story.grant(story.request(1, 0, 1), pools={"api[acme]": 1})
    assert found(story) == ["ceilings"]


def test_a_new_leader_restates_the_rules():
    story = tell(DB)
    story.pool("db", 1)
    story.lead("b")
    grants(story, 2)
    assert found(story) == [], "what is not restated is not in force"


# runs and tags


def test_the_run_gate_counts_executing_runs_but_no_holds():
    story = tell(DB, begin=False)
    story.limit("runs", "", {"limit": 2, "paused": False})
    story.begin(1)
    story.begin(2)
    story.begin(3, kind="hold")
    assert found(story) == []
    assert Peak("runs", 2, 2, True) in peaks(story.history())
    story.begin(4)
    assert found(story) == ["ceilings"]


def test_paused_runs_do_not_start():
    story = tell(DB, begin=False)
    story.limit("runs", "", {"limit": 5, "paused": True})
    story.begin(1)
    assert found(story) == ["ceilings"]


@pytest.mark.parametrize(
    ("name", "rule", "tags", "counter"),
    [
        ("t", {"key": "t"}, ["x", "y"], "t"),
        ("t=x", {"key": "t", "value": "x"}, ["x", "x"], "t=x"),
        ("t=*", {"key": "t", "per_value": True}, ["x", "x"], "t=*x"),
    ],
)
def test_tag_limits_bound_a_key_a_value_or_each_value(
    name: str, rule: dict[str, object], tags: list[str], counter: str
):
    story = tell(DB, begin=False)
    story.limit("tag", name, {**rule, "limit": 1})
    story.begin(1, tags={"t": tags[0]})
    story.begin(2, tags={"u": "other"})
    assert found(story) == []
    story.begin(3, tags={"t": tags[1]})
    assert found(story) == ["ceilings"]
    assert Peak(f"tag:{counter}", 1, 2, False) in peaks(story.history())


def test_each_value_of_a_key_has_a_limit_of_its_own():
    story = tell(DB, begin=False)
    story.limit("tag", "t=*", {"key": "t", "per_value": True, "limit": 1})
    for run, value in enumerate("xyz", 1):
        story.begin(run, tags={"t": value})
    assert found(story) == []


def test_a_run_that_is_cancelled_while_it_waits_takes_no_place():
    # Given more runs than a lowered limit allows, and one that waits
    story = tell(DB)
    story.begin(2)
    story.begin(3)
    story.run(3, "waiting", wake_at=10**9)
    story.limit("runs", "", {"limit": 1, "paused": True})
    # When that is cancelled, so that its clean-up can run
    story.run(3, "running", placed=False)
    story.run(3, "cancelling")
    # Then nothing was granted
    assert found(story) == []


def test_a_place_taken_again_above_the_limit_is_found():
    story = tell(DB)
    story.begin(2)
    story.run(2, "waiting", wake_at=10**9)
    story.limit("runs", "", {"limit": 1})
    story.run(2, "running", placed=False)
    story.event("place", "", "held", run=2)
    assert found(story) == ["ceilings"]


# within a run


def test_parallelism_in_all_and_per_executor():
    graph = Graph("p", FREE.nodes, max_parallel=2, max_parallel_by={"thread": 1})
    story = tell(graph)
    grants(story, 1)
    assert found(story) == []
    story.grant(story.request(1, 0, 1))
    story.grant(story.request(1, 0, 2))
    names = [peak.name for peak in peaks(story.history()) if not peak.never_exceeded]
    assert names == ["parallel:p", "parallel:p:thread"]
    assert found(story) == ["ceilings"]


def test_a_window_bounds_the_items_of_one_step_of_one_run():
    graph = Graph("w", (Node("a", "a", over=Param("x"), window=2),))
    story = tell(graph)
    story.begin(2)
    grants(story, 2, run=1)
    grants(story, 2, run=2)
    assert found(story) == []
    assert Peak("window:w/a", 2, 2, True) in peaks(story.history())
    story.grant(story.request(1, 0, 2))
    assert found(story) == ["ceilings"]


def test_a_sequential_run_has_one_task_in_flight():
    story = tell(Graph("s", FREE.nodes, sequential=True))
    grants(story, 2)
    assert found(story) == ["ceilings", "sequential"]


# workers


def test_permits_bound_what_a_worker_is_offered():
    story = tell(FREE, permits={"thread": 2}, total=2)
    grants(story, 2)
    assert found(story) == []
    story.grant(story.request(1, 0, 2))
    messages = [v.message for v in check(story.history())]
    assert messages == [
        "thread permits of worker 'w': 3 in use with a limit of 2.",
        "permits of worker 'w': 3 in use with a limit of 2.",
    ]


def test_permits_changed_during_an_offer_are_accepted():
    story = tell(FREE, permits={"thread": 2})
    tasks = [story.request(1, 0, index) for index in range(3)]
    story.grant(tasks[0])
    story.worker("w", "changed", permits={"thread": 1})
    story.grant(tasks[1])
    assert found(story) == []
    story.grant(tasks[2])
    assert found(story) == ["ceilings"]


def test_an_offer_to_an_unfit_worker_is_found():
    graph = Graph("g", (Node("a", "a", over=Param("x"), needs={"gpu": "yes"}),))
    story = tell(graph)
    story.worker("v", labels={"gpu": "yes"})
    tasks = [story.request(1, 0, index) for index in range(4)]
    story.worker("v", "lost", reason="")
    story.grant(tasks[0], "v")
    assert found(story) == [], "the loss crossed the offer"
    story.grant(tasks[1], "v")
    story.grant(tasks[2], "nobody")
    story.grant(tasks[3], "w")
    messages = " ".join(v.message for v in check(story.history()))
    assert all(part in messages for part in ("was lost before", "never joined", "without"))
