"""What an answer costs does not grow with what waits."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from tests.support.worlds import graph, items, needs, numbers, world

from locktender.base.clock import SECOND
from locktender.base.limits import PoolRule
from locktender.kernel import estimates
from locktender.kernel.reasons import Typical
from locktender.kernel.scheduler import Scheduler
from locktender.observe.why_executing import MAX_GROUPS_SHOWN, run_why, task_why


def lead_of(count: int, *, fair: bool) -> Scheduler:
    """A run with `count` items behind a pool of two, in one lane or in that of a fair turn."""
    rules: dict[tuple[str, str], object] = {("pool", "db"): PoolRule(2)}
    if fair:
        rules["fair", "tenant"] = {"key": "tenant"}
    sim = world(took=3600 * SECOND, rules=rules)
    flow = graph(items("m", pools=needs(db=1)), flow="many")
    sim.submit(flow, consts=numbers(count), tags={"tenant": "a"})
    sim.run(until=sim.steady + 30 * SECOND)
    assert sim.scheduler is not None
    return sim.scheduler


def lines_run(work: Callable[[], object]) -> int:
    """Lines of Python that it executes: the same on every machine."""
    counted = [0]

    def trace(_frame: FrameType, event: str, _arg: object) -> Any:
        counted[0] += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return counted[0]


@pytest.mark.parametrize("fair", [False, True])
def test_h1_why_of_a_run_costs_the_same_however_many_items_wait(fair: bool):
    costs = list[list[int]]()
    for count in (400, 8_000):
        lead = lead_of(count, fair=fair)
        [run] = lead.ledger.runs.values()
        now = lead.ledger.now
        why = run_why(lead, run.row, None, Typical(), now)
        assert why is not None
        assert [group.count for group in why.waiting] == [count - 2]
        last = max(run.tasks)
        costs.append(
            [
                lines_run(lambda lead=lead, run=run: run_why(lead, run.row, None, Typical(), 0)),
                lines_run(lambda lead=lead, last=last: task_why(lead, last, None, Typical(), 0)),
            ]
        )
    assert [many <= 1.1 * few for few, many in zip(*costs, strict=True)] == [True, True], costs


def test_h1_draws_of_one_answer_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
):
    """Sixty steps wait at two pools each; fifty are explained, and the others are counted."""
    steps, drawn = 60, list[int]()
    rules: dict[tuple[str, str], object] = {("pool", name): PoolRule(20) for name in ("db", "api")}
    sim = world(took=3600 * SECOND, rules=rules)
    nodes = [items(f"m{n}", step=f"s{n}", pools=needs(db=1, api=1)) for n in range(steps)]
    sim.submit(graph(*nodes, flow="wide"), consts=numbers(5))
    sim.run(until=sim.steady + 30 * SECOND)
    lead = sim.scheduler
    assert lead is not None
    [run] = lead.ledger.runs.values()
    holds = {f"s{n}": tuple(range(100, 200)) for n in range(steps)}
    real = estimates._bytes  # pyright: ignore[reportPrivateUsage]

    def counted(seed: int, play: int, count: int) -> bytes:
        drawn.append(count)
        return real(seed, play, count)

    monkeypatch.setattr(estimates, "_bytes", counted)
    why = run_why(lead, run.row, None, Typical(holds=holds), lead.ledger.now)
    assert why is not None
    assert (len(why.waiting), why.more_waiting) == (MAX_GROUPS_SHOWN, steps - 4 - MAX_GROUPS_SHOWN)
    assert "and 6 steps more waiting" in why.text()
    assert all(reason.p90_us for group in why.waiting for reason in group.reasons)
    # Beside the durations, some bytes for the pace of each play.
    assert sum(drawn) <= 1.5 * estimates.MAX_DRAWN
    # One task alone is played through.
    last = max(run.tasks)
    task_why(lead, last, None, Typical(holds=holds), lead.ledger.now)
    assert sum(drawn) > 0


def waiting_steps(steps: int) -> Callable[[], object]:
    """`why` of a run with so many different steps that wait for one pool."""
    rules: dict[tuple[str, str], object] = {("pool", "db"): PoolRule(2)}
    sim = world(took=3600 * SECOND, rules=rules)
    nodes = [items(f"m{n}", step=f"s{n}", pools=needs(db=1)) for n in range(steps)]
    sim.submit(graph(*nodes, flow="wide"), consts=numbers(2))
    sim.run(until=sim.steady + 30 * SECOND)
    lead = sim.scheduler
    assert lead is not None
    [run] = lead.ledger.runs.values()
    typical = Typical(holds={f"s{n}": tuple(range(100, 200)) for n in range(steps)})
    return lambda: run_why(lead, run.row, None, typical, lead.ledger.now)


def test_h1_what_waiting_steps_share_is_looked_up_once():
    """Each has a lane of its own: if each looked at all lanes again, twice the steps would cost four times."""
    costs = [lines_run(waiting_steps(count)) for count in (22, 44)]
    assert costs[1] <= 2.6 * costs[0], costs
