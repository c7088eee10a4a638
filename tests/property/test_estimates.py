"""Estimates of waits, measured in the simulator on work that they were not tuned on."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable

import pytest
from tests.support.estimating import (
    Measured,
    arrivals_served,
    burst,
    erlang_c,
    first_come,
    generated,
    real,
    tenants,
)

GRAPHS = (
    ("blast-chameleon-medium-002", 6, 12),
    ("1000genome-chameleon-4ch-250k-001", 6, 6),
    ("epigenomics-chameleon-hep-5seq-50k-001", 6, 34),
    ("srasearch-chameleon-30a-003", 6, 2),
    ("montage-chameleon-dss-05d-001", 6, 2),
    ("bacass-dirt02-001", 1, 1),
)
"""Name, slots of the pool, and which waiters are asked about."""
MISSED = {"montage-chameleon-dss-05d-001", "bacass-dirt02-001"}
"""Alone these miss 1.2 × the oracle's error, and not by chance: montage is at 2.0 (95 % of samples of its runs
1.5–2.8). Its longest step has 12 tasks, those of bacass have 2. Durations are drawn from these few, so that the
oracle knows most waits of bacass to the microsecond."""


def steady(_share: float) -> float:
    return 0.97


def doubled(share: float) -> float:
    """Twice the load in the second half."""
    return 0.75 if share < 0.5 else 1.5


def total(*several: Measured) -> Measured:
    return Measured([each for one in several for each in one.asked])


def test_a_simulated_queue_is_that_of_erlang_c():
    servers, load = 4, 0.7
    # Given the same arrivals and services the engine starts each when the first come, first served queue does
    served = sorted(arrivals_served(servers, load, 500, seed=1))
    starts = first_come(servers, [(came, ended - began) for came, began, ended in served])
    assert len(served) == 500
    assert [began for _, began, _ in served] == starts
    assert sum(began > came for came, began, _ in served) > 100
    # and that queue waits as Erlang C says.
    dice, at, calls = random.Random(11), 0.0, list[tuple[float, float]]()
    for _ in range(200_000):
        at += dice.expovariate(servers * load)
        calls.append((at, dice.expovariate(1.0)))
    starts = first_come(servers, calls)
    waits = [start - came for start, (came, _) in zip(starts, calls, strict=True)]
    share, mean = erlang_c(servers, load)
    assert sum(wait > 0 for wait in waits) / len(waits) == pytest.approx(share, rel=0.05)
    assert sum(waits) / len(waits) == pytest.approx(mean, rel=0.05)


def test_estimates_of_a_sample():
    found = total(tenants(250, steady, seed=100, every=6), burst(60, seed=1, every=6))
    p50, p90 = found.covered
    assert len(found.asked) >= 20
    assert 0.3 <= p50 <= 0.8, found
    assert p90 >= 0.8, found
    assert found.near >= 0.8, found


def test_estimates_of_a_sample_of_graphs():
    found = total(*(generated(seed, 2, 10) for seed in range(12)))
    assert len(found.asked) >= 100
    covered_as_of_few(found)
    assert found.near >= 0.8, found


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "measured",
    [
        pytest.param(
            lambda: [tenants(800, steady, seed=seed, every=8) for seed in range(100, 110)],
            id="tenants",
        ),
        pytest.param(
            lambda: [tenants(800, doubled, seed=seed, every=8) for seed in range(100, 110)],
            id="load doubled",
        ),
        pytest.param(
            lambda: [burst(150, seed=seed, every=10) for seed in range(100, 140)], id="burst"
        ),
        # What they were developed on.
        pytest.param(lambda: [generated(seed, 4, 10) for seed in range(60)], id="generated graphs"),
    ],
)
def test_estimates_are_calibrated(measured: Callable[[], list[Measured]]):
    calibrated(total(*measured()))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_estimates_of_real_graphs_are_calibrated():
    by_graph = {
        name: total(*(real(name, slots, 5, seed, every) for seed in range(100, 110)))
        for name, slots, every in GRAPHS
    }
    for name, found in by_graph.items():
        sys.stdout.write(f"{name}: {found}\n")
    calibrated(total(*by_graph.values()))
    for name, found in by_graph.items():
        covered_as_of_few(found)
        if sum(each.ahead >= 19 for each in found.asked) >= 100:
            assert found.near >= 0.8, (name, found)
        if name not in MISSED:
            assert found.error <= 1.2, (name, found)


def calibrated(found: Measured) -> None:
    p50, p90 = found.covered
    assert 0.45 <= p50 <= 0.55, found
    assert 0.85 <= p90 <= 0.95, found
    assert found.near >= 0.8, found
    assert found.error <= 1.2, found


def covered_as_of_few(found: Measured) -> None:
    """Waiters of a run share its luck: the 95 % binomial interval of so many runs is allowed beside the bounds."""
    for share, covered in zip((0.5, 0.9), found.covered, strict=True):
        few = 1.96 * math.sqrt(share * (1 - share) / found.runs)
        assert abs(covered - share) <= 0.05 + few, found
