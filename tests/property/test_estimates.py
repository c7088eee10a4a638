"""Estimates of waits, measured in the simulator on work that they were not tuned on."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.support.estimating import (
    Measured,
    arrivals_served,
    burst,
    erlang_c,
    first_come,
    real,
    tenants,
)


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


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("measured", "p50s", "p90s", "error"),
    [
        pytest.param(
            lambda: [tenants(800, steady, seed=seed, every=8) for seed in range(100, 105)],
            (0.45, 0.55), (0.85, 0.95), 1.2, id="tenants",
        ),
        pytest.param(
            lambda: [tenants(800, doubled, seed=seed, every=8) for seed in range(100, 105)],
            (0.45, 0.55), (0.85, 0.96), 1.2, id="load doubled",
        ),
        pytest.param(
            lambda: [burst(150, seed=seed, every=10) for seed in range(100, 140)],
            (0.45, 0.55), (0.85, 0.95), 1.2, id="burst",
        ),
        # Of each graph one run was seen, and the line is about as long: √2 × the oracle's error is all there is
        # to know. All waiters of a run share its luck, so that few runs cover less evenly.
        pytest.param(
            lambda: [real("blast-chameleon-medium-002", 6, 1, seed, 12) for seed in range(100, 110)],
            (0.40, 0.65), (0.85, 1.0), 1.4, id="blast",
        ),
        pytest.param(
            lambda: [real("1000genome-chameleon-4ch-250k-001", 6, 1, seed, 6) for seed in range(100, 110)],
            (0.40, 0.65), (0.85, 1.0), 1.4, id="1000genome",
        ),
        pytest.param(
            lambda: [real("epigenomics-chameleon-hep-5seq-50k-001", 6, 1, seed, 34) for seed in range(100, 110)],
            (0.40, 0.65), (0.85, 1.0), 1.4, id="epigenomics",
        ),
        pytest.param(
            lambda: [real("srasearch-chameleon-30a-003", 6, 1, seed, 2) for seed in range(100, 110)],
            (0.40, 0.65), (0.85, 1.0), 1.4, id="srasearch",
        ),
    ],
)  # fmt: skip
def test_estimates_are_calibrated(
    measured: Callable[[], list[Measured]],
    p50s: tuple[float, float],
    p90s: tuple[float, float],
    error: float,
):
    found = total(*measured())
    p50, p90 = found.covered
    assert p50s[0] <= p50 <= p50s[1], found
    assert p90s[0] <= p90 <= p90s[1], found
    assert found.near >= 0.8, found
    assert found.error <= error, found
