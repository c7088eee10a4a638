"""How long a wait lasts: by the order of the line, and no number where nobody knows."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest
from tests.support.worlds import graph, needs, run_row, step, worker_row

from locktender.base.clock import SECOND
from locktender.base.limits import Limits, PoolRule
from locktender.kernel.estimates import MAX_DURATIONS_PER_STEP, Holding, Line, SharedPlays, estimate
from locktender.kernel.explain import explain_task
from locktender.kernel.reasons import Reason, Typical
from locktender.kernel.scheduler import Scheduler
from locktender.observe.answer import Why

NOW = 10**15
HOLDS = {
    "long": (100 * SECOND,) * MAX_DURATIONS_PER_STEP,
    "short": (10 * SECOND,) * MAX_DURATIONS_PER_STEP,
}


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        (["long", "short", "short", "short"], 130),
        (["short", "short", "short", "long"], 120),
        (["short", "long", "short", "short"], 130),
    ],
)
def test_h1_steps_in_line_take_places_in_their_order(line: list[str], seconds: int):
    # Given two slots that are taken for 100 s, and steps of two kinds in line
    lead = Scheduler(Limits(pools={"cpu": PoolRule(2)}), term=1, owner="me")
    lead.graphs = {name: graph(step(name, pools=needs(cpu=1)), flow=name) for name in HOLDS}
    lead.put_worker(worker_row("w", permits={"async": 100}), local=True)
    for number, name in enumerate(["long", "long", *line, "short"], 1):
        lead.put_head(run_row(number, graph=name))
        lead.cycle(NOW + number)
    # then the last one starts when those before it have taken theirs, one after the other.
    [entry] = lead.ledger.runs[len(line) + 3].tasks.values()
    found = explain_task(lead, entry, Typical(holds=HOLDS), NOW + 100)
    [reason] = [each for each in found if each.gate == "pool:cpu"]
    assert reason.ahead == len(line)
    assert reason.estimate_us == pytest.approx(seconds * SECOND, rel=0.01)


def test_h1_the_fewer_durations_were_seen_the_wider_the_answer():
    def width(seen: int) -> float:
        durations = (10 * SECOND,) * seen
        found = estimate([Holding(0, durations)], [Line(10, durations)], 1, 1)
        assert found is not None
        return found.p90_us / found.us

    assert width(1) > 1.3
    assert width(1) > width(4) > width(30) > 1.0


@pytest.mark.parametrize("turns", [range(700), reversed(range(700))])
def test_h1_rows_that_share_plays_have_the_waits_of_each_alone(turns: Iterable[int]):
    durations = tuple(n * SECOND for n in range(1, 60))
    holding = [Holding(n * SECOND, durations) for n in (1, 5, 30, 70)]
    shared = SharedPlays()
    for ahead in turns:
        line = [Line(ahead, durations)]
        together = estimate(holding, line, 4, 1, shared=shared)
        assert together == estimate(holding, line, 4, 1)


FULL = Reason("pool:db", "pool db: 1 of 1 in use", estimate_us=40 * SECOND, p90_us=60 * SECOND)


@pytest.mark.parametrize(
    "other",
    [
        Reason("pause", "the run is paused"),
        Reason("paused:gpu", "pool gpu is paused"),
        Reason("pool:gpu", "pool gpu has 1 slot and 2 are needed: never", never=True),
        Reason("worker", "no worker is connected"),
    ],
    ids=lambda reason: reason.text,
)
def test_h1_no_number_where_one_gate_has_no_estimate(other: Reason):
    why = Why("task", "7", "load", "requested", NOW, NOW, (FULL, other))
    assert why.estimate_us is None
    assert "xpected wait" not in why.text()
    assert msgspec.structs.replace(why, reasons=(FULL,)).estimate_us == FULL.estimate_us
    # A turn blocks nobody.
    fair = msgspec.structs.replace(why, reasons=(FULL, Reason("fair:tenant", "its turn")))
    assert "Expected wait: ~40s; in 9 of 10 cases within 1m00s." in fair.text()
