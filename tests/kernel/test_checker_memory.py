"""The checker forgets runs that have ended, and finds what it found when it kept them all."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from tests.support.damaged import damaged
from tests.support.history_writer import HistoryWriter

from locktender.base.events import Change, Event, EventRow, pack, unpack
from locktender.base.graph import Graph, Node
from locktender.base.states import NEW
from locktender.observe.checker import RULES, History, Violation
from locktender.observe.checker.admission import MIN_THROTTLES, ThrottledStarts
from locktender.observe.checker.audit import Replay, replay
from locktender.observe.checker.state import CheckedRun
from locktender.observe.checker.world import MAX_GONE_WORKERS, MAX_WAITING_KEPT, HistoryState
from locktender.simulate.scenarios import random_world

GRAPH = Graph("f", (Node("a", "a"), Node("b", "b", after=(0,))))
ALL = 1_000_000


def found(history: History, page: int) -> list[Violation]:
    return replay(history, RULES, page).violations


def rules(story: HistoryWriter) -> set[str]:
    """What is broken, with each event in a page of its own: every run is forgotten as early as it can be."""
    history = story.history(complete=True)
    first = found(history, 1)
    assert first == found(history, ALL)
    return {violation.rule for violation in first}


def ended(story: HistoryWriter, run: int, after: str = "succeeded") -> tuple[int, int]:
    story.begin(run)
    a = story.request(run, 0)
    story.perform(a)
    b = story.request(run, 1)
    if after == "succeeded":
        story.perform(b)
    else:
        story.perform(b, "failed", retryable=False)
    story.run(run, after)
    return a, b


def told() -> HistoryWriter:
    story = HistoryWriter(g=GRAPH)
    story.lead()
    story.worker()
    return story


def test_runs_that_have_ended_are_not_kept():
    story = told()
    for run in range(1, 501):
        ended(story, run, "succeeded" if run % 3 else "failed")
    story.begin(501)
    done = replay(story.history(), RULES, page=100)
    assert done.violations == []
    assert list(done.world.runs) == [501]
    assert done.world.events == len(story.events)


def test_a_queued_run_takes_little_memory():
    submitted = {
        "flow": "shop.flows:build",
        "graph": "g" * 64,
        "tags": {},
        "priority": 0,
        "generation": 0,
        "lane": 4,
        "rank": [0, 1_794_884_038_161_088],
        "kind": "flow",
    }
    body = pack([Change("run", 0, NEW, "queued", 0, submitted)])
    replaying = Replay(History((), {}), RULES)
    tracemalloc.start()
    try:
        for run in range(1, 1_001):
            replaying.feed(unpack(EventRow(run, run, 0, 0, "client", run, body)))
        each = tracemalloc.get_traced_memory()[0] / 1_000
    finally:
        tracemalloc.stop()
    assert len(replaying.world.runs) == 1_000
    assert each < 1_900


def test_workers_that_are_gone_are_not_all_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("locktender.observe.checker.world.MAX_GONE_WORKERS", 10)
    assert MAX_GONE_WORKERS > 10
    story = told()
    for number in range(100):
        story.worker(f"w{number}")
        story.worker(f"w{number}", "left")
        story.limit("runs", "", {"limit": 5})
    done = replay(story.history(), RULES, page=10)
    assert done.violations == []
    assert len(done.world.workers) <= 20


def test_a_retried_run_has_its_earlier_tasks_again():
    story = told()
    _, b = ended(story, 1, "failed")
    story.run(1, "queued", actor="client", generation=1)
    story.run(1, "running")
    story.task(b, "pending")
    story.task(b, "requested", node=1, index=-1, attempt=0)
    story.perform(b)
    story.run(1, "succeeded")
    assert rules(story) == set()


def test_a_retried_run_that_repeats_finished_work_is_found():
    story = told()
    a, _ = ended(story, 1, "failed")
    story.run(1, "queued", actor="client", generation=1)
    story.run(1, "running")
    story.task(a, "requested", node=0, index=-1, attempt=0)
    assert "dependencies" in rules(story)


def test_what_happens_to_a_forgotten_run_is_found():
    story = told()
    _, b = ended(story, 1)
    ended(story, 2)
    story.finish(b)
    assert "terminal" in rules(story)


def test_a_second_submission_of_a_forgotten_run_is_found():
    story = told()
    ended(story, 1)
    ended(story, 2)
    story.submit(1)
    assert "legal_edge" in rules(story)


def test_a_run_that_ends_with_open_tasks_is_reported_at_the_end():
    story = told()
    story.begin(1)
    story.request(1, 0)
    story.run(1, "failed", error={"type": "x", "message": "x"})
    assert {"terminal", "no_loss"} <= rules(story)


def test_what_a_successor_took_for_final_is_not_forgotten():
    story = HistoryWriter(
        g=Graph("f", (Node("a", "a"), Node("b", "b", after=(0,), run_if="always")))
    )
    story.lead()
    story.worker()
    story.begin(1)
    a = story.request(1, 0)
    story.perform(a, "failed", retryable=False)
    story.perform(story.request(1, 1))
    story.run(1, "failed")
    story.begin(2)
    story.task(a, "requested", node=0, index=-1, attempt=0)
    rules(story)
    assert any("taken its failure for final" in each.message for each in found(story.history(), 1))


def test_of_many_waiting_runs_the_first_are_not_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("locktender.observe.checker.world.MAX_WAITING_KEPT", 10)
    assert MAX_WAITING_KEPT > 10
    story = told()
    for run in range(1, 101):
        data = {"flow": "f", "graph": "g", "tags": {}, "generation": 0, "wake_at": 10**9}
        story.event("run", "new", "waiting", run=run, actor="client", data=data)
        story.limit("runs", "", {"limit": 5})
    done = replay(story.history(), RULES, page=10)
    assert done.violations == []
    assert len(done.world.runs) <= 20
    assert done.world.waiting == 100
    at_the_end = replay(story.history(complete=True), RULES, page=10).violations
    assert sorted(each.run for each in at_the_end) == list(range(1, 101))
    # Woken before its time, and after: what its own events say is known again.
    for run in (1, 2):
        story.at = 10**9 if run == 2 else story.at
        woken = {"priority": 0, "generation": 0}
        story.event("run", "waiting", "queued", run=run, data=woken)
    [early] = replay(story.history(), RULES, page=10).violations
    assert early.run == 1


@pytest.mark.parametrize("waiting", [MAX_WAITING_KEPT, 1])
def test_forgetting_hides_no_fault_of_any_kind(waiting: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("locktender.observe.checker.world.MAX_WAITING_KEPT", waiting)
    some = 0
    for seed in (*range(12), 22):
        world = random_world(seed)
        world.run(steps=60_000)
        whole = History(world.model.events, world.model.graphs, complete=True)
        chance = random.Random(seed)
        for history in (whole, damaged(whole, chance), damaged(whole, chance)):
            kept = found(history, ALL)
            some += bool(kept)
            assert found(history, 7) == kept, seed
    assert some >= 12


def test_throttles_whose_time_has_passed_are_forgotten():
    seen: list[Violation] = []
    rule = ThrottledStarts(HistoryState(History(events=[], graphs={})), seen)
    run = CheckedRun(1)
    for n in range(5_000):
        throttle = {"name": f"key {n}", "count": 1, "per_us": 10}
        data = {"throttle": throttle}
        rule.submit(Event(n, n, 0, 0, "client", 1, "run", 0, NEW, "queued", 0, data), run)
    assert len(rule._starts) <= MIN_THROTTLES + 1  # pyright: ignore[reportPrivateUsage]
    assert not seen
    data = {"throttle": {"name": "key 4999", "count": 1, "per_us": 10}}
    rule.submit(Event(5_000, 5_001, 0, 0, "client", 1, "run", 0, NEW, "queued", 0, data), run)
    assert len(seen) == 1  # what still bounds somebody is known
