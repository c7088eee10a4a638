"""H3, simulated: what a run's time went into adds up to its wall time, whatever happens to it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from tests.support.worlds import graph, items, numbers, settle, step, world

from locktender.base.events import Event
from locktender.base.graph import Graph, RetryPolicy
from locktender.base.states import TaskState
from locktender.observe.holders import Samples, charged, required_by
from locktender.observe.run_times import RunTimes, times_of
from locktender.observe.slot_events import slot_events
from locktender.observe.time_pieces import HAND_OFF, WORK
from locktender.simulate.scenarios import GATE_SCENARIOS, random_world, violations
from locktender.simulate.world import SimWorld

SAMPLE, WHOLE = 10, 60
"""Worlds of about seven runs each."""


def blamed(sim: SimWorld) -> Iterator[tuple[int, list[Event], RunTimes]]:
    elections = [event.at for event in sim.model.events if event.subject == "leader"]
    for seq, row in sim.model.runs.items():
        history = [event for event in sim.model.events if event.run == seq]
        times = times_of(history, sim.model.graphs[row.graph], sim.now, elections=elections)
        yield seq, history, times


@pytest.mark.parametrize(
    "seed",
    [
        *range(SAMPLE),
        *(pytest.param(seed, marks=pytest.mark.long) for seed in range(SAMPLE, WHOLE)),
    ],
)
def test_h3_own_work_gates_and_hand_off_are_the_wall_time(seed: int):
    sim = random_world(seed, clock_jumps=False)
    settle(sim)
    latency = sim.behaviour.latency
    for seq, history, times in blamed(sim):
        spent = times.spent()
        row = sim.model.runs[seq]
        assert (times.start, times.end) == (history[0].at, row.ended_at)
        assert sum(spent.values()) == row.ended_at - history[0].at, (seed, seq)
        assert min(spent.values(), default=0) >= 0, (seed, seq, spent)
        for task in times.tasks:
            assert sum(piece.us for piece in task.pieces) == task.end - task.start
            # What is own work is as long as its bodies were, up to the messages about them.
            bodies = [
                each for each in sim.bodies if each.task == task.id and each.state != "killed"
            ]
            worked = sum(each.end - each.start for each in bodies)
            assert abs(task.spent().get(WORK, 0) - worked) <= 2 * latency * len(bodies), task
        # Nothing is hidden in the hand-off: it is messages, and offers that were accepted late.
        steps = sum(1 for task, _ in times.path if task is not None)
        changes = sum(len(task.pieces) for task, _ in times.path if task is not None)
        late = sum(_offered(history, task.id) for task, _ in times.path if task is not None)
        allowed = (4 * steps + 2 * changes + 8) * latency + late + 2_000
        assert spent.get(HAND_OFF, 0) <= allowed, (seed, seq, spent)


def _offered(history: list[Event], task: int) -> int:
    """For how long it was offered to workers that accepted it in the end."""
    total, at = 0, 0
    for event in history:
        if event.subject == "task" and event.task == task:
            if event.after == TaskState.RUNNING:
                total += event.at - at
            at = event.at
    return total


@pytest.mark.parametrize("seed", range(6))
def test_h3_a_clock_that_is_set_does_not_break_the_sum(seed: int):
    sim = random_world(seed)
    settle(sim)
    for seq, _, times in blamed(sim):
        assert sum(times.spent().values()) == times.end - times.start, (seed, seq)


@pytest.mark.parametrize("kind", GATE_SCENARIOS)
def test_h3_time_at_each_kind_of_gate_is_charged_to_it(kind: str):
    sim = GATE_SCENARIOS[kind].world()
    settle(sim)
    lost: dict[str, int] = {}
    for _, history, times in blamed(sim):
        for what, us in times.spent().items():
            name = what.partition(":")[0]
            lost[name] = lost.get(name, 0) + us
        for task in times.tasks:
            # All that a task of these worlds waits for after its request is its gate.
            asked = next(e.at for e in history if e.task == task.id and e.after == "requested")
            start = next(e.at for e in history if e.task == task.id and e.after == "scheduled")
            spent = task.spent()
            waited = sum(us for what, us in spent.items() if what not in {WORK, HAND_OFF})
            assert waited == start - asked, (task, spent)
    assert lost.get({"pause": "paused"}.get(kind, kind), 0) >= 9_000, lost


@pytest.mark.parametrize("kind", ["run", "window", "pool", "rate", "worker"])
def test_h4_each_lane_that_waits_has_one_event(kind: str):
    scenario = GATE_SCENARIOS[kind]
    sim = scenario.world()
    items = list(range(300))
    sim.submit(
        Graph("flow", (scenario.node,), max_parallel=scenario.max_parallel), consts=_json([items])
    )
    settle(sim)
    history = [event for event in sim.model.events if event.run == 2]
    lanes = [event for event in sim.model.events if event.subject == "wait"]
    derived = list(slot_events(history, [event for event in lanes if not event.run]))
    asked = {event.task: event.at for event in history if event.after == "requested"}
    at_once = {e.task for e in history if e.after == "scheduled" and e.at == asked[e.task]}
    began = {e.task: (e.at, e.after) for e, slot in reversed(derived) if slot == "waiting"}
    # In the order of decision its first gate may be another, which all are behind.
    assert began.keys() == asked.keys() - at_once
    assert all(at == asked[task] for task, (at, _) in began.items())
    assert any(gate.startswith(kind) for _, gate in began.values())
    assert len([event for event in lanes if "lane" in event.data]) < len(items) / 4
    assert violations(sim) == []


def charged_for(sim: SimWorld, run: int) -> tuple[int, dict[int, int]]:
    """What the tasks of a run waited for workers, and the runs that it is charged to."""
    samples = Samples(event for event in sim.model.events if not event.run)
    graph = sim.model.graphs[sim.model.runs[run].graph]
    whole, to = 0, dict[int, int]()
    for seq, _, times in blamed(sim):
        for task in times.tasks if seq == run else ():
            of = required_by(graph.nodes, task.node)
            for span in task.spans:
                for what, us in span.pieces:
                    if what == "worker":
                        whole += us
                        shares = samples.shares(what, span.start, span.end, of)
                        for each, part in charged(us, shares).items():
                            to[each] = to.get(each, 0) + part
    return whole, to


def test_h3_a_wait_is_charged_to_holders_of_fitting_workers():
    sim = world(took=1_000_000, workers=0)
    sim.add_worker("gpu", {"thread": 4, "async": 4}, labels={"gpu": "yes"})
    sim.add_worker("plain", {"thread": 8})
    gpu = {"executor": "thread", "needs": {"gpu": "yes"}}
    three, one, other, late = (
        sim.submit(graph(*(step(f"{flow}{n}", **options) for n in range(count)), flow=flow)).seq
        for flow, count, options in (
            ("three", 3, gpu),
            ("one", 1, gpu),
            ("other", 2, {"executor": "async"}),
            ("late", 2, gpu),
        )
    )
    sim.submit(graph(*(step(f"p{n}", executor="thread") for n in range(8)), flow="plain"))
    never = sim.submit(graph(step("n", needs={"gpu": "no"}, dispatch_deadline_us=500_000))).seq
    settle(sim)
    # Three of the four permits that they could have had are of one run, one is of another; the permits of other
    # executors and of workers that do not fit are nobody's fault.
    whole, to = charged_for(sim, late)
    assert whole == pytest.approx(2_000_000, rel=0.05)
    assert to.keys() == {three, one}
    assert sum(to.values()) == whole
    assert to[three] == pytest.approx(3 * to[one], abs=5)
    # No worker fits: it waits, and nobody is to blame.
    whole, nobody = charged_for(sim, never)
    assert (whole >= 500_000, nobody) == (True, {})
    assert other not in to


def test_h3_runs_are_charged_only_for_what_they_hold():
    """Twenty runs hold a permit each and eight are named: each of them is charged a twentieth."""
    sim = world(took=1_000_000, workers=0, rules={("runs", ""): {"limit": -1}})
    sim.add_worker("w", {"thread": 20})
    for n in range(20):
        sim.submit(graph(step(f"s{n}", executor="thread"), flow=f"f{n}"))
    late = sim.submit(graph(step("late", executor="thread"), flow="late")).seq
    settle(sim)
    whole, to = charged_for(sim, late)
    assert len(to) == 8
    assert [each / whole for each in to.values()] == [pytest.approx(1 / 20, rel=0.05)] * 8


def _drain(sim: SimWorld, name: str, *, draining: bool) -> None:
    """As an operator does it."""
    row = sim.model.workers[name]
    sim.model.workers[name] = msgspec.structs.replace(row, draining=draining)
    assert sim.scheduler is not None
    sim.scheduler.put_worker(sim.model.workers[name])


def test_h3_a_wait_for_a_worker_that_drains_is_charged_to_nobody():
    sim = world(took=1_000_000, workers=0)
    sim.add_worker("w", {"thread": 4})
    holder = sim.submit(graph(step("holder", executor="thread"), flow="holder")).seq
    sim.run(until=sim.now + 200_000)
    _drain(sim, "w", draining=True)
    late = sim.submit(graph(step("late", executor="thread"), flow="late")).seq
    sim.run(until=sim.now + 400_000)
    _drain(sim, "w", draining=False)
    settle(sim)
    whole, to = charged_for(sim, late)
    assert whole >= 300_000
    assert holder not in to


@pytest.mark.parametrize("seed", range(8))
def test_h3_what_is_charged_for_a_gate_adds_up(seed: int):
    sim = random_world(seed, clock_jumps=False)
    settle(sim)
    samples = Samples(event for event in sim.model.events if not event.run)
    for seq, _, times in blamed(sim):
        graph = sim.model.graphs[sim.model.runs[seq].graph]
        for task in times.tasks:
            of = required_by(graph.nodes, task.node)
            for span in task.spans:
                for what, us in span.pieces:
                    shares = samples.shares(what, span.start, span.end, of)
                    to = charged(us, shares)
                    assert sum(shares.values()) == pytest.approx(1.0 if shares else 0.0)
                    assert sum(to.values()) == us or 0 in shares or not shares
                    assert min(to.values(), default=0) >= 0


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)


def test_h3_a_back_off_keeps_nobody_but_its_own_item():
    """Items that are asked for late waited as those before them did: at gates, not for another one's back-off."""
    flow = graph(items(retry=RetryPolicy(1, delay_us=300_000, backoff=1.0, jitter=False)))
    fails = TaskState.FAILED
    sim = world(
        permits={"async": 100},
        fate=lambda row, _node: fails if (row.idx, row.tries) == (0, 0) else None,
    )
    run = sim.submit(flow, consts=numbers(6_000))
    settle(sim)
    history = [event for event in sim.model.events if event.run == run.seq]
    spent = times_of(history, flow, sim.now).spent()
    assert spent["worker"] > 500_000
    assert "back-off" not in spent
