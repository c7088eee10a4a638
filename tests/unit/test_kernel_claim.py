"""D6: how much a worker asks for."""

from __future__ import annotations

from itertools import product

import pytest

from headgate.kernel.claim import ClaimPolicy, Load, Pressure, claim_size

CALM = Pressure()
POLICY = ClaimPolicy(batch=50, memory_high=0.8, latency_threshold_us=1_000)


def size(load: Load, policy: ClaimPolicy = POLICY, before: Pressure = CALM) -> int:
    return claim_size(load, policy, before)[0]


@pytest.mark.parametrize(
    ("permits", "in_flight", "expected"),
    [
        (8, 0, 8),
        (8, 7, 1),  # a small worker fills its last permit
        (8, 8, 0),
        (8, 9, 0),  # more in flight than permits, after they were lowered
        (99, 98, 1),
        (100, 0, 50),  # never more than one batch
        (100, 60, 40),
        (100, 90, 10),  # exactly 10 % free is not yet nearly full
        (100, 91, 0),
        (1_000, 901, 0),
        (-1, 12_345, 50),  # unlimited
        (0, 0, 0),
    ],
)
def test_d6_permits_alone(permits: int, in_flight: int, expected: int):
    assert size(Load(permits, in_flight)) == expected


@pytest.mark.parametrize(
    ("nearly_full", "memory", "latency"), list(product([False, True], repeat=3))
)
def test_d6_pressures_combine(nearly_full: bool, memory: bool, latency: bool):
    load = Load(
        permits=200,
        in_flight=181 if nearly_full else 100,
        memory=0.81 if memory else 0.5,
        p99_us=1_001 if latency else 900,
    )
    got, felt = claim_size(load, POLICY, CALM)
    full = 50 * (0.5 if memory else 1.0) * (0.7 if latency else 1.0)
    assert got == (0 if nearly_full else int(full))
    assert felt == Pressure(nearly_full, memory, latency)


def test_d6_thresholds_are_exclusive():
    assert size(Load(50, 0, memory=0.8, p99_us=1_000)) == 50


def test_d6_latency_counts_only_where_a_threshold_is_set():
    assert size(Load(50, 0, p99_us=10**9), ClaimPolicy()) == 50
    assert size(Load(50, 0, p99_us=None)) == 50


def test_d6_under_pressure_a_free_worker_still_takes_one():
    assert size(Load(1, 0, memory=0.99, p99_us=5_000)) == 1
    assert size(Load(1, 1, memory=0.99, p99_us=5_000)) == 0


@pytest.mark.parametrize(
    ("name", "sets_in", "between", "lets_go"),
    [
        ("nearly_full", Load(100, 91), Load(100, 85), Load(100, 80)),
        ("memory", Load(50, 0, memory=0.81), Load(50, 0, memory=0.75), Load(50, 0, memory=0.72)),
        ("latency", Load(50, 0, p99_us=1_001), Load(50, 0, p99_us=950), Load(50, 0, p99_us=900)),
    ],
)
def test_d6_each_signal_lets_go_only_well_below_where_it_set_in(
    name: str, sets_in: Load, between: Load, lets_go: Load
):
    _, felt = claim_size(sets_in, POLICY, CALM)
    assert getattr(felt, name)
    # In between it stays as it was: held back if it was, free if it was not.
    assert getattr(claim_size(between, POLICY, felt)[1], name)
    assert not getattr(claim_size(between, POLICY, CALM)[1], name)
    assert not getattr(claim_size(lets_go, POLICY, felt)[1], name)


def test_d6_a_load_that_swings_around_the_threshold_does_not_flap():
    felt, changes = CALM, 0
    for in_flight in [90, 91, 89, 91, 88, 92, 85, 91] * 5:
        _, now = claim_size(Load(100, in_flight), POLICY, felt)
        changes += now != felt
        felt = now
    assert changes == 1
