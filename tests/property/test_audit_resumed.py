"""An audit that goes on from a stored state finds what one piece would have found."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tests.support.damaged import damaged
from tests.support.history_writer import HistoryWriter

from locktender.base.clock import SECOND
from locktender.base.graph import Graph, Node, PoolNeed, Tag
from locktender.observe.checker import RULES, History
from locktender.observe.checker.audit import Recall, Replay, Replayed, replay
from locktender.observe.checker.limits import PoolCeiling, Rates
from locktender.observe.checker.saved import StateUnreadable, encode, read
from locktender.observe.checker.state import SeenRuns
from locktender.simulate.scenarios import random_world


def in_pieces(history: History, chance: random.Random) -> Replayed:
    """Between two rows, at random places, the state is stored and read by another checker."""
    events, start = history.events, 0
    replaying = Replay(replace(history, events=()), RULES)
    while start < len(events):
        end = min(len(events), start + chance.randrange(1, 200))
        while end < len(events) and _one_row(history, end):
            end += 1
        several = events[start:end]
        for run in replaying.forgotten(event.run for event in several):
            recalled = Recall(replaying.world, run)
            recalled.feed(event for event in events[:start] if event.run == run)
            recalled.finish()
        replaying.feed(several)
        replaying.world.forget()
        saved = replaying.save()
        replaying = Replay(replace(history, events=()), RULES)
        replaying.resume(read(saved))
        assert replaying.save() == saved
        start = end
    return replaying.finish(complete=history.complete)


def _one_row(history: History, at: int) -> bool:
    before, after = history.events[at - 1], history.events[at]
    return (before.seq, before.run) == (after.seq, after.run)


@pytest.mark.parametrize("seed", range(8))
def test_in_pieces_an_audit_finds_the_same(seed: int):
    world = random_world(seed)
    world.run(steps=60_000)
    whole = History(world.model.events, world.model.graphs, complete=True)
    chance = random.Random(seed)
    for history in (whole, damaged(whole, chance), damaged(whole, chance)):
        once, again = replay(history, RULES), in_pieces(history, chance)
        assert again.violations == once.violations
        assert again.peaks() == once.peaks()
        assert again.world.events == once.world.events
        assert again.world.most_active == once.world.most_active


def test_a_state_that_is_cut_off_or_changed_is_refused():
    world = random_world(3)
    world.run(steps=60_000)
    history = History(world.model.events[:400], world.model.graphs)
    replaying = Replay(replace(history, events=()), RULES)
    replaying.feed(history.events)
    body = replaying.save()
    fresh = Replay(replace(history, events=()), RULES)
    for bad in (b"", b"x", body[:-10], encode({"rules": [], "world": {}, "found": []})):
        with pytest.raises(StateUnreadable):
            fresh.resume(read(bad))


def test_what_is_stored_does_not_grow_with_names(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("locktender.observe.checker.limits.MAX_PEAKS_SAVED", 20)
    need = PoolNeed("api", 1, (Tag("tenant"),))
    story = HistoryWriter(g=Graph("f", (Node("a", "a", pools=(need,)),)))
    story.lead()
    story.worker()
    story.pool("api[*]", 3, rate={"count": 1, "per_us": SECOND, "burst": 2})
    for run in range(1, 201):
        story.at += 61 * SECOND
        story.begin(run, tags={"tenant": f"t{run}"})
        task = story.request(run, 0)
        story.grant(task, pools={f"api[t{run}]": 1})
        story.accept(task)
        story.finish(task)
        story.run(run, "succeeded")
    replaying = Replay(story.history(), RULES)
    replaying.feed(story.events)
    replaying.world.forget()
    rules = {type(rule): rule.kept() for rule in replaying.rules}
    assert len(rules[PoolCeiling]["_peaks"]) == 20
    assert list(rules[Rates]["_buckets"]) == ["api[t200]"]
    assert replaying.finish(complete=True).violations == []


def test_a_million_runs_that_were_seen_take_no_room():
    seen = SeenRuns()
    order = list(range(1, 50_001))
    random.Random(1).shuffle(order)
    for run in order:
        seen.add(run)
    assert all(run in seen for run in (1, 1_024, 1_025, 50_000))
    assert not any(run in seen for run in (-1, 0, 50_001, 60_000))
    assert len(encode({"seen": seen})) < 200
