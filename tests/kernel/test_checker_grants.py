"""The checker on grants over time, what tasks hold, starts per cycle, and admission."""

from __future__ import annotations

from tests.support.history_writer import found, grants, tell

from locktender.base.graph import Graph, Node, Param, PoolNeed
from locktender.observe.checker import Ceiling, Rejection, check

DB = Graph("db", (Node("a", "a", over=Param("x"), pools=(PoolNeed("db"),)),))
FREE = Graph("free", (Node("a", "a", over=Param("x")),))


# rates


def test_a_rate_holds_between_any_two_grants():
    story = tell(DB)
    story.pool("db", -1, rate={"count": 3, "per_us": 1_000, "burst": 2})
    tasks = [story.request(1, 0, index) for index in range(6)]
    story.grant(tasks[0])
    story.grant(tasks[1])
    story.at += 334
    story.grant(tasks[2])
    assert found(story) == []
    story.at += 332
    story.grant(tasks[3])
    [fault] = check(story.history())
    assert fault.rule == "rates"
    assert "1 slots 1 µs too early" in fault.message
    assert check(story.history(slack_us=1)) == []


def test_a_new_rate_is_a_new_regime():
    story = tell(DB)
    story.pool("db", -1, rate={"count": 1, "per_us": 1_000})
    tasks = [story.request(1, 0, index) for index in range(3)]
    story.grant(tasks[0])
    story.pool("db", -1, rate={"count": 2, "per_us": 1_000})
    story.grant(tasks[1])
    assert found(story) == []
    story.lead("b")
    story.pool("db", -1, rate={"count": 2, "per_us": 1_000})
    story.grant(tasks[2])
    assert found(story) == ["rates"], "a new term is not a new rate"


# conservation, all_or_none


def test_a_task_gets_all_its_pools_or_none():
    pools = PoolNeed("db", 2), PoolNeed("api", 1, (Param("x"),))
    graph = Graph("two", (Node("a", "a", over=Param("x"), pools=pools),))
    for given, expected in (
        ({"db": 2, "api[1]": 1}, []),
        ({"db": 2}, ["all_or_none"]),
        ({"db": 1, "api[1]": 1}, ["all_or_none"]),
        ({"db": 2, "api[1]": 1, "gpu": 1}, ["all_or_none"]),
    ):
        story = tell(graph)
        story.grant(story.request(1, 0, 0), pools=given)
        assert found(story) == expected


def test_slots_taken_twice_or_released_twice_are_found():
    twice = tell(DB)
    [task] = grants(twice, 1)
    twice.grant(task)
    assert "conservation" in found(twice)
    again = tell(DB)
    [task] = grants(again, 1)
    again.accept(task)
    again.finish(task)
    again.task(task, "failed", before="running", actor="worker:w")
    assert "conservation" in found(again)


def test_an_end_that_holds_something_is_found():
    story = tell(DB)
    grants(story, 1)
    story.run(1, "failed", error={"type": "x", "message": ""})
    assert "conservation" in found(story)
    idle = tell(DB)
    grants(idle, 1)
    assert found(idle) == []
    assert found(idle, complete=True) == ["conservation", "no_loss"]


# max_starts


def test_one_cycle_starts_no_more_than_it_may():
    story = tell(FREE)
    story.limit("engine", "max_starts_per_cycle", {"value": 2})
    tasks = [story.request(1, 0, index) for index in range(5)]
    with story.cycle():
        story.grant(tasks[0])
        story.grant(tasks[1])
    assert found(story) == []
    with story.cycle():
        for task in tasks[2:]:
            story.grant(task)
    assert found(story) == ["max_starts"]


# admission


def test_more_active_runs_than_the_ceiling_are_found():
    story = tell(DB, begin=False)
    story.limit("active", "", {"limit": 2})
    story.submit(1)
    story.submit(2)
    story.submit(3, kind="hold")
    assert found(story) == []
    story.submit(4)
    assert found(story) == ["ceilings"]
    assert found(story, max_active=(Ceiling("max_active", 9, story.seq - 1),)) == []


def test_a_ceiling_not_yet_recorded_is_accepted():
    story = tell(DB, begin=False)
    story.limit("active", "", {"limit": 1})
    story.submit(1)
    story.submit(2)
    story.limit("active", "", {"limit": 2})
    assert found(story) == []


def test_a_rejection_below_the_ceiling_is_found():
    story = tell(DB, begin=False)
    story.limit("active", "", {"limit": 2})
    story.submit(1, tags={"t": "x"})
    early = story.seq
    story.submit(2)
    late = story.seq
    honest = Rejection("max_active", 2, 2, late)
    batch = Rejection("max_active", 1, 2, early, asked=2)
    assert found(story, rejections=(honest, batch)) == []
    for lie in (Rejection("max_active", 2, 2, early), Rejection("max_active", 2, 1, late)):
        assert found(story, rejections=(lie,)) == ["honest_rejections"]


def test_a_rejection_at_a_tags_ceiling():
    story = tell(DB, begin=False)
    story.limit("tag", "t=*", {"key": "t", "per_value": True, "max_active": 1})
    story.submit(1, tags={"t": "x"})
    for ceiling, expected in (("t=*x", []), ("t=x", []), ("t=*y", ["honest_rejections"])):
        assert found(story, rejections=(Rejection(ceiling, 1, 1, story.seq),)) == expected


def test_a_rule_that_cannot_be_read_is_found():
    story = tell(DB, begin=False)
    story.limit("pool", "db", {"limit": "many"})
    story.limit("weather", "", {})
    assert [v.rule for v in check(story.history())] == ["ceilings", "ceilings"]
