"""Whatever whole runs are pruned from a history that kept every promise, what is left keeps them too.

That it does is asserted of random worlds in `test_scenarios`; here is why the checkpoint matters.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tests.support.damaged import damaged

from locktender.base.events import Event
from locktender.base.states import TERMINAL_RUNS
from locktender.observe.checker import RULES, History, Violation, check
from locktender.observe.checker.audit import replay
from locktender.observe.checker.rule import Rule
from locktender.observe.checker.waiting import TrueReason
from locktender.observe.checker.world import HistoryState
from locktender.observe.prune import superseded
from locktender.simulate.scenarios import random_world
from locktender.simulate.world import SimWorld


def history_of(world: SimWorld) -> History:
    world.run(steps=60_000)
    return History(world.model.events, world.model.graphs, complete=True)


def pruned(history: History, chance: random.Random) -> History:
    """As `db prune` leaves it: checked up to a seq, then rid of some runs whose last event is not behind it."""
    checked = chance.choice(history.events).seq
    last: dict[int, int] = {}
    ended: dict[int, bool] = {}
    for event in history.events:
        last[event.run] = event.seq
        if event.subject == "run":
            ended[event.run] = event.after in TERMINAL_RUNS
    goes = {
        run
        for run, seq in last.items()
        if run > 0 and seq <= checked and ended.get(run) and chance.random() < 0.7
    }
    left = [event for event in history.events if event.run not in goes]
    return replace(history, events=left, checked=checked)


def test_without_a_checkpoint_true_reasons_look_false(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TrueReason, "across", False)
    broken = 0
    for seed in range(20, 32):
        history = history_of(random_world(seed))
        broken += len(check(pruned(history, random.Random(seed))))
    assert broken > 0


def thinned(history: History) -> History:
    """As retention leaves it: of no run up to the checkpoint only what still counts."""
    rows: dict[int, list[Event]] = {}
    for event in history.events:
        if event.run == 0 and event.seq <= history.checked:
            rows.setdefault(event.seq, []).append(event)
    first = next((event.seq for event in history.events if event.run > 0), 0)
    goes = set(superseded(rows.values(), first))
    left = [event for event in history.events if event.run or event.seq not in goes]
    return replace(history, events=left, thinned=history.checked)


def facts(world: HistoryState) -> tuple[object, ...]:
    workers = {
        name: (each.permits, each.labels, each.stalled)
        for name, each in world.workers.items()
        if not each.gone and not each.leaving
    }
    return world.in_force.limits, world.in_force.tags, workers, world.any_worker


def test_what_is_left_of_no_run_says_what_all_of_it_said():
    removed = broken = 0
    for seed in range(16):
        history, chance = history_of(random_world(seed)), random.Random(seed)
        whole = pruned(history, chance)
        less = thinned(whole)
        removed += len(whole.events) - len(less.events)
        assert check(less) == [], seed
        before, after = replay(whole, RULES), replay(less, RULES)
        assert facts(after.world) == facts(before.world), seed
        behind = [event for event in history.events if event.seq > whole.checked]
        if not behind:
            continue
        # Faults behind the checkpoint are found as before.
        for _ in range(3):
            tail = damaged(replace(history, events=behind), chance).events
            found = [
                _but_topics(check(replace(each, events=[*_up_to(each), *tail], complete=False)))
                for each in (whole, less)
            ]
            assert found[1] == found[0], seed
            broken += bool(found[0])
    assert removed > 16
    assert broken > 16


def _but_topics(found: list[Violation]) -> list[Violation]:
    """What was sent to a topic may be thinned: of a thinned history the rule does not judge that."""
    return [each for each in found if "was not sent to it" not in each.message]


def _up_to(history: History) -> list[Event]:
    return [event for event in history.events if event.seq <= history.checked]


def test_rules_that_need_limits_and_workers_are_silent_before(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Rule, "facts", False)
    for rule in RULES:
        monkeypatch.setattr(rule, "facts", False)
    broken = 0
    for seed in range(12):
        broken += len(check(thinned(pruned(history_of(random_world(seed)), random.Random(seed)))))
    assert broken > 0
