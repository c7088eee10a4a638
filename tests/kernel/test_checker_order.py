"""The checker on order: leadership and bypass; and the checker itself, whole and fast."""

from __future__ import annotations

import sys

import msgspec
from tests.support.history_writer import HistoryWriter

from locktender.base.events import Change, Event, EventRow, pack, unpack
from locktender.base.graph import CacheRule, Graph, Node, Param, PoolNeed
from locktender.observe.checker import History, check, peaks, promises

WIDE = Graph("wide", (Node("w", "w", pools=(PoolNeed("db", 2),)),))
CACHED = Graph("cached", (Node("c", "c", pools=(PoolNeed("db", 2),), cache=CacheRule(1_000_000)),))
NARROW = Graph("narrow", (Node("t", "t", over=Param("x"), pools=(PoolNeed("db"),)),))


def found(story: HistoryWriter) -> list[str]:
    return sorted({violation.rule for violation in check(story.history())})


def rules_of(events: list[Event], story: HistoryWriter) -> list[str]:
    return sorted({violation.rule for violation in check(History(events, story.graphs))})


# leadership


def test_terms_grow_and_have_one_owner():
    story = HistoryWriter(g=WIDE)
    story.lead("a")
    story.lead("b")
    story.begin(1)
    assert found(story) == []
    story.lead("c", term=2)
    assert "leadership" in found(story)


def test_a_commit_of_an_ended_term_is_found():
    story = HistoryWriter(g=WIDE)
    story.lead("a")
    story.lead("b")
    story.submit(1)
    story.term, story.owner = 1, "a"
    story.run(1, "running")
    messages = [violation.message for violation in check(story.history())]
    assert any("in term 1, which is over" in message for message in messages)


def test_repeated_cycles_and_unordered_events_are_found():
    story = HistoryWriter(g=WIDE)
    story.lead()
    story.begin(1)
    story.begin(2)
    *events, last = story.events
    assert check(story.history()) == []
    again = msgspec.structs.replace(last, cycle=last.cycle - 1)
    assert rules_of([*events, again], story) == ["leadership"]
    late = msgspec.structs.replace(last, seq=1)
    assert rules_of([*events, late], story) == ["leadership"]


def test_a_limit_that_somebody_else_brings_into_force_is_found():
    story = HistoryWriter(g=WIDE)
    story.lead()
    data = {"kind": "pool", "name": "db", "rule": None}
    story.event("limit", "", "in_force", actor="client", data=data)
    assert found(story) == ["leadership"]


# bypass


def crowd(bypasses: int, *, priority: int = 0, tags: dict[str, str] | None = None) -> HistoryWriter:
    """A wide waiter that needs 2 slots of `db`, while `bypasses` later tasks go one by one through the rest."""
    story = HistoryWriter(wide=WIDE, narrow=NARROW)
    story.lead()
    story.worker()
    story.pool("db", 3)
    story.limit("engine", "max_bypass", {"value": 4})
    story.begin(1, "narrow")
    held = [story.request(1, 0, index) for index in range(2)]
    for task in held:
        story.grant(task)
    story.begin(2, "wide")
    story.begin(3, "narrow", priority=priority, tags=tags or {})
    story.request(2)
    if tags is not None:
        story.limit("fair", "tenant", {"key": "tenant"})
    for index in range(bypasses):
        story.at += 10
        task = story.request(3, 0, index)
        story.perform(task)
    return story


def test_a_waiter_may_be_bypassed_max_bypass_times_and_no_more():
    assert found(crowd(4)) == []
    [fault] = check(crowd(5).history())
    assert fault.rule == "bypass"
    assert fault.run == 2
    assert "bypassed 5 times" in fault.message


def test_work_of_higher_priority_is_no_bypass():
    assert found(crowd(9, priority=1)) == []


def test_the_turn_of_another_value_of_the_fair_key_is_no_bypass():
    assert found(crowd(9, tags={"tenant": "other"})) == []
    assert found(crowd(9, tags={})) == ["bypass"]


def test_what_leaves_the_waiter_its_slots_is_no_bypass():
    both = Graph("both", (Node("w", "w", pools=(PoolNeed("gpu"), PoolNeed("db"))),))
    gpu = Graph("gpu", (Node("h", "h", pools=(PoolNeed("gpu"),)),))
    for spare, expected in ((1, []), (0, ["bypass"])):
        story = HistoryWriter(both=both, gpu=gpu, narrow=NARROW)
        story.lead()
        story.worker()
        story.pool("gpu", 1)
        story.pool("db", 1 + spare)
        story.limit("engine", "max_bypass", {"value": 0})
        story.begin(1, "gpu")
        story.grant(story.request(1))
        story.begin(2, "both")
        story.request(2)
        story.begin(3, "narrow")
        story.at += 10
        story.grant(story.request(3, 0, 0))
        assert found(story) == expected


def test_counts_start_anew_with_a_term():
    story = crowd(4)
    story.lead("b")
    story.pool("db", 3)
    story.limit("engine", "max_bypass", {"value": 4})
    story.at += 10
    story.perform(story.request(3, 0, 99))
    assert found(story) == []


def test_counts_start_anew_when_turns_are_shared_in_another_way():
    story = crowd(4)
    story.limit("fair", "tenant", {"key": "tenant"})
    story.at += 10
    story.perform(story.request(3, 0, 99))
    assert found(story) == []


def test_the_tasks_of_a_paused_run_are_not_bypassed():
    story = crowd(4)
    with story.cycle():
        story.limit("flow", "wide", {"by": "ann"})
        story.event("pause", "", "paused", run=2)
    for index in range(90, 93):
        story.at += 10
        story.perform(story.request(3, 0, index))
    with story.cycle():
        story.limit("flow", "wide", None)
        story.event("pause", "paused", "resumed", run=2)
    for index in range(93, 97):
        story.at += 10
        story.perform(story.request(3, 0, index))
    assert found(story) == []
    story.at += 10
    story.perform(story.request(3, 0, 97))
    assert found(story) == ["bypass"]


def test_a_cached_waiter_is_in_no_line_until_its_key_is_known():
    """A new leader looks it up after its first commit."""
    for first_cycle, expected in ((True, []), (False, ["bypass"])):
        story = HistoryWriter(cached=CACHED, narrow=NARROW)
        story.lead()
        story.worker()
        story.pool("db", 2)
        story.limit("engine", "max_bypass", {"value": 0})
        story.begin(1, "narrow")
        story.grant(story.request(1, 0, 0))
        story.begin(2, "cached")
        story.request(2)
        story.at += 10
        late = story.request(1, 0, 1)
        story.lead("b")
        with story.cycle():
            story.pool("db", 2)
            story.limit("engine", "max_bypass", {"value": 0})
            if first_cycle:
                story.grant(late)
        if not first_cycle:
            for index in range(2, 8):
                story.request(1, 0, index)
            story.grant(late)
        assert found(story) == expected


def test_a_waiter_that_was_answered_from_the_cache_waits_no_more():
    story = HistoryWriter(cached=CACHED, narrow=NARROW)
    story.lead()
    story.worker()
    story.pool("db", 2)
    story.limit("engine", "max_bypass", {"value": 0})
    story.begin(1, "narrow")
    story.grant(story.request(1, 0, 0))
    story.begin(2, "cached")
    waiter = story.request(2)
    story.task(waiter, "completed", cached={"key": "k", "task": 7})
    story.at += 10
    story.grant(story.request(1, 0, 1))
    assert "bypass" not in found(story)


def test_a_waiter_behind_its_own_parallelism_is_not_bypassed():
    story = HistoryWriter(
        g=NARROW, busy=Graph("busy", (*WIDE.nodes, Node("x", "x")), max_parallel=1)
    )
    story.lead()
    story.worker()
    story.pool("db", 2)
    story.limit("engine", "max_bypass", {"value": 0})
    story.begin(1)
    story.grant(story.request(1, 0, 0))
    story.begin(2, "busy")
    story.grant(story.request(2, 1))
    story.request(2, 0)
    story.at += 10
    story.grant(story.request(1, 0, 1))
    assert found(story) == []


def test_age_buys_priority_where_a_boost_is_set():
    story = HistoryWriter(wide=WIDE, narrow=NARROW)
    story.lead()
    story.worker()
    story.pool("db", 2)
    story.limit("engine", "max_bypass", {"value": 0})
    story.limit("engine", "age_boost_us", {"value": 1_000})
    story.begin(1, "narrow", priority=1)
    story.grant(story.request(1, 0, 0))
    story.begin(2, "wide")
    story.request(2)
    story.at += 999
    story.grant(story.request(1, 0, 1))
    assert found(story) == []
    del story.events[-2:]
    story.at += 2
    story.grant(story.request(1, 0, 2))
    assert found(story) == ["bypass"]


# the whole


def big(runs: int, items: int) -> HistoryWriter:
    """`runs` runs of a windowed map behind a shared pool, in fused commits: a valid history."""
    need = PoolNeed("db", 2)
    graph = Graph("big", (Node("m", "m", over=Param("x"), window=3, pools=(need,)),))
    story = HistoryWriter(g=graph)
    story.lead()
    story.worker()
    story.pool("db", 6)
    for run in range(1, runs + 1):
        story.begin(run)
        with story.cycle():
            tasks = [story.request(run, 0, index) for index in range(items)]
        flying: list[int] = []
        for task in tasks:
            story.at += 1
            with story.cycle():
                if len(flying) == 3:
                    story.finish(flying.pop(0))
                story.grant(task)
                story.accept(task)
            flying.append(task)
        with story.cycle():
            for task in flying:
                story.finish(task)
            story.run(run, "succeeded")
    return story


def calls_to_check(history: History) -> int:
    """How many functions are called to check it: a cost that no busy neighbour changes."""
    calls = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        found = check(history)
    finally:
        sys.setprofile(None)
    assert found == []
    return calls


def test_the_cost_of_a_check_is_linear_in_the_history():
    """Events a second are the benchmark's; this finds a quadratic step."""
    small, large = (big(runs=2, items=items).history(complete=True) for items in (100, 400))
    per_event = calls_to_check(small) / len(small.events)
    assert calls_to_check(large) / len(large.events) < 1.2 * per_event


def test_a_big_valid_history_is_found_valid():
    story = big(runs=5, items=400)
    history = story.history(complete=True)
    assert check(history) == []
    assert {(p.name, p.limit, p.peak) for p in peaks(history)} == {
        ("pool:db", 6, 6),
        ("runs", 10, 1),
        ("window:big/m", 3, 3),
    }


def test_the_same_history_gives_the_same_answer():
    story = crowd(9)
    assert check(story.history()) == check(story.history())


def test_events_read_from_rows_are_checked_like_any_other():
    body = pack([Change("leader", 0, "", "a")])
    row = EventRow(seq=1, at=1, term=1, cycle=1, actor="leader:a", run=0, body=body)
    assert check(History(unpack(row), {})) == []


def test_every_promise_can_be_read():
    assert all(text and all(text) for text in promises().values())
