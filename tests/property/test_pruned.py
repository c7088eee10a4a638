"""Whatever whole runs are pruned from a history that kept every promise, what is left keeps them too.

That it does is asserted of random worlds in `test_scenarios`; here is why the checkpoint matters.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from locktender.base.states import TERMINAL_RUNS
from locktender.observe.checker import History, check
from locktender.observe.checker.waiting import TrueReason
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
