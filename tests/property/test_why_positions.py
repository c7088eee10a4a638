"""Positions that `why` tells: in random worlds runs start in the order that was told."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests.support.worlds import graph, settle, step, world

from locktender.base.clock import MILLISECOND, SECOND
from locktender.base.model import RunRow
from locktender.base.states import RunState
from locktender.kernel.explain import Reason, Typical
from locktender.kernel.explain_runs import explain_queued, place_precision
from locktender.kernel.fair_turns import Turns
from locktender.kernel.lanes import rank
from locktender.kernel.queue_position import QueuePosition
from locktender.observe.rebuilt import groups_of, replayed
from locktender.simulate.world import SimWorld
from locktender.store.lanes import lane_name
from locktender.store.protocol import LineGroup, QueueLine

TOOK = 100 * MILLISECOND
FLOW = graph(step())


def line_of(sim: SimWorld, run: RunRow) -> QueuePosition:
    """As `observe.standing` makes it from a store, of rows and history alone."""
    limits = sim.model.limits
    waiting: Counter[tuple[str, int]] = Counter()
    older: Counter[tuple[str, int]] = Counter()
    own = rank(limits, run.priority, run.queued_at)
    for row in sim.model.queued():
        lane = lane_name(limits, kind=row.kind, tags=row.tags, key=row.key)
        place = rank(limits, row.priority, row.queued_at)
        if place[0] <= own[0]:
            waiting[lane, place[0]] += 1
            older[lane, place[0]] += (*place, row.seq) < (*own, run.seq)
    counted = [LineGroup(*group, count, older[group]) for group, count in waiting.items()]
    groups = groups_of(QueueLine(own[0], counted))
    if limits.fair is None:
        return QueuePosition(Turns(), "", own[0], groups)
    turns, known = replayed(reversed(sim.model.events), limits.fair, whole=True)
    return QueuePosition(turns, run.tags.get(limits.fair.key, ""), own[0], groups, known=known)


def random_rules(chance: random.Random) -> dict[tuple[str, str], object]:
    rules: dict[tuple[str, str], object] = {("runs", ""): {"limit": 1}}
    if chance.random() < 0.8:
        weights = {value: chance.choice((1, 2, 3, 7)) for value in "abc"}
        rules["fair", "tenant"] = {"key": "tenant", "weights": weights}
    if chance.random() < 0.4:
        rules["engine", "age_boost_us"] = {
            "value": chance.choice((MILLISECOND, SECOND, 60 * SECOND))
        }
    if chance.random() < 0.5:
        rules["tag", "tenant=*"] = {"key": "tenant", "per_value": True, "limit": 1}
    if chance.random() < 0.5:
        rules["tag", "team"] = {"key": "team", "limit": chance.choice((1, 2))}
    return rules


def some_runs(sim: SimWorld, chance: random.Random, count: int) -> None:
    for _ in range(count):
        tags = {"tenant": chance.choice("aaaabbcd")} if chance.random() < 0.9 else {}
        if chance.random() < 0.3:
            tags["team"] = chance.choice("xy")
        sim.submit(FLOW, tags=tags, priority=chance.choice((0, 0, 0, 1, 5)))
        sim.run(until=sim.now + chance.choice((0, MILLISECOND, 30 * MILLISECOND)))


def uneven_world(seed: int) -> SimWorld:
    """Turns have been taken, by some more than by others; maybe under another leader, or other weights."""
    chance = random.Random(seed)
    sim = world(seed=seed, took=TOOK, rules=random_rules(chance))
    some_runs(sim, chance, chance.randrange(15))
    sim.run(until=sim.now + chance.randrange(10) * TOOK)
    event = chance.random()
    if event < 0.2:
        sim.lead()
    elif event < 0.4:
        sim.set_rule("fair", "tenant", {"key": "tenant", "weights": {"b": 4}})
    some_runs(sim, chance, chance.randrange(25))
    sim.run(until=sim.now + chance.randrange(8) * TOOK + 30 * MILLISECOND)
    some_runs(sim, chance, chance.randrange(3, 10))
    sim.run(until=sim.now + 10 * MILLISECOND)
    return sim


def begun(sim: SimWorld) -> list[int]:
    return sorted(
        (run for run, row in sim.model.runs.items() if row.started_at),
        key=lambda run: sim.model.runs[run].started_at,
    )


@pytest.mark.parametrize("seed", range(150))
def test_e7_the_position_told_is_the_position_that_comes(seed: int):
    sim = uneven_world(seed)
    waiting = sim.model.queued()
    lines = {row.seq: line_of(sim, row) for row in waiting}
    before = set(begun(sim))
    settle(sim)
    came = [run for run in begun(sim) if run not in before]
    told = {run: line.ahead + 1 for run, line in lines.items()}
    assert told == {run: place for place, run in enumerate(came, 1)}
    assert {line.precision for line in lines.values()} <= {"exact"}


@pytest.mark.parametrize("seed", range(150))
def test_e7_exact_positions_are_true_under_tag_limits(seed: int):
    # Given several that execute at once, so that a tag may be full while others go on
    chance = random.Random(seed)
    rules = random_rules(chance) | {("runs", ""): {"limit": chance.choice((2, 3, 5))}}
    if chance.random() < 0.2:
        rules["tag", "team=x"] = {"key": "team", "value": "x", "limit": 5, "paused": True}
    sim = world(seed=seed, took=TOOK, rules=rules)
    some_runs(sim, chance, chance.randrange(5, 20))
    sim.run(until=sim.now + 10 * MILLISECOND)
    lead, before = sim.scheduler, set(begun(sim))
    assert lead is not None
    told: dict[int, int] = {}
    for row in sim.model.queued():
        line = line_of(sim, row)
        if place_precision(lead.ledger, lead.ledger.heads[row.seq], line) == "exact":
            told[row.seq] = line.ahead
    sim.run(until=sim.now + 60 * TOOK)
    started = {
        run: row.started_at
        for run, row in sim.model.runs.items()
        if row.started_at and run not in before
    }
    for run, ahead in told.items():
        earlier = sum(at < started[run] for at in started.values())
        no_later = sum(at <= started[run] for at in started.values())
        assert earlier <= ahead < no_later


@pytest.mark.parametrize("seed", range(40))
def test_e7_the_clocks_read_from_the_history_are_the_leaders(seed: int):
    sim = uneven_world(seed)
    fair, lead = sim.model.limits.fair, sim.scheduler
    if fair is None or lead is None:
        return
    read, known = replayed(reversed(sim.model.events), fair, whole=True)
    assert known
    true = lead.ledger.run_queue.turns
    for value in ("a", "b", "c", "d", ""):
        assert read.of(value) == true.of(value)


@pytest.mark.parametrize("seed", range(40))
def test_e7_the_wait_told_is_the_wait_that_comes(seed: int):
    sim = uneven_world(seed)
    lead, asked = sim.scheduler, sim.now
    if lead is None or not lead.ledger.runs:
        return
    ended = [row for row in sim.model.runs.values() if row.state == RunState.SUCCEEDED]
    usual = ended[0].ended_at - ended[0].started_at if ended else TOOK
    told: dict[int, list[Reason]] = {
        row.seq: explain_queued(
            lead, lead.ledger.heads[row.seq], Typical(run_us=usual), line_of(sim, row), asked
        )
        for row in sim.model.queued()
    }
    settle(sim)
    for run, reasons in told.items():
        waited = sim.model.runs[run].started_at - asked
        longest = max(each.estimate_us for each in reasons if each.estimate_us is not None)
        place = next(each.ahead for each in reasons if each.gate.startswith("runs:"))
        # Each change of hands costs a few messages.
        assert abs(waited - longest) <= TOOK // 5 + place * 5 * MILLISECOND
