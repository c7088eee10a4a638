"""D6, B1: how much a worker asks for."""

from __future__ import annotations

from itertools import product

import pytest

from locktender.base.errors import InvalidInput
from locktender.kernel.claim import Claim, ClaimPolicy, Load, PressureSignals, claim_size

CALM = PressureSignals()
POLICY = ClaimPolicy(batch=50, memory_high=0.8, latency_threshold_us=1_000)
ASYNC = frozenset({"async"})


def load(permits: int, in_flight: int = 0, memory: float = 0.0, p99_us: int | None = None) -> Load:
    """A worker of one kind."""
    return Load({"async": permits}, {"async": in_flight}, memory=memory, p99_us=p99_us)


def size(load: Load, policy: ClaimPolicy = POLICY, before: PressureSignals = CALM) -> int:
    return claim_size(load, policy, before).size


# -- permits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("permits", "in_flight", "expected", "standing"),
    [
        (1, 0, 1, 1),
        (1, 1, 0, 1),
        (8, 0, 8, 8),
        (8, 7, 1, 8),  # a small worker fills its last permit
        (8, 8, 0, 8),  # at its threshold it takes nothing more (B1)
        (8, 9, 0, 8),  # more in flight than permits, after they were lowered
        (50, 49, 1, 50),
        (99, 98, 1, 99),
        (99, 99, 0, 99),
        (100, 0, 50, 100),  # never more than one batch, and one on its way
        (100, 60, 40, 100),
        (100, 90, 10, 100),  # exactly 10 % free is not yet nearly full
        (100, 91, 0, 0),
        (100, 100, 0, 0),
        (100, 120, 0, 0),
        (105, 94, 11, 100),
        (105, 95, 0, 0),  # 9.5 %
        (1_000, 900, 50, 100),
        (1_000, 901, 0, 0),
        (-1, 0, 50, 100),  # unlimited: there is always one batch more
        (-1, 12_345, 50, 100),
        (0, 0, 0, 0),
    ],
)
def test_d6_b1_permits_alone(permits: int, in_flight: int, expected: int, standing: int):
    """The standing claim leaves out permits in use: the leader counts those, task by task."""
    claim = claim_size(load(permits, in_flight), POLICY, CALM)

    assert (claim.size, claim.standing) == (expected, standing)


# -- the last permits ------------------------------------------------------------------------------

BEAT = POLICY.idle_us


def walk(*moments: tuple[int, int], permits: int = 100) -> list[int]:
    """The sizes asked for at (instant, in flight), one after the other."""
    felt, sizes = CALM, list[int]()
    for now, in_flight in moments:
        claim = claim_size(load(permits, in_flight), POLICY, felt, now)
        felt = claim.felt
        sizes.append(claim.size)
    return sizes


@pytest.mark.parametrize(
    ("moments", "sizes"),
    [
        # no batch comes: after a beat the last nine are claimed, one by one or together
        ([(0, 91), (BEAT - 1, 91), (BEAT, 91), (BEAT, 92), (BEAT, 99)], [0, 0, 9, 8, 1]),
        # a batch comes first
        ([(0, 91), (BEAT - 1, 80)], [0, 20]),
        # the beat begins when a permit is free, not when the last one was taken
        ([(0, 100), (BEAT, 100), (BEAT + 1, 99), (2 * BEAT, 99)], [0, 0, 0, 0]),
        ([(0, 100), (BEAT, 99), (2 * BEAT - 1, 95), (2 * BEAT, 95)], [0, 0, 0, 5]),
        # filled to the last one it waits for a batch again
        ([(0, 91), (BEAT, 91), (BEAT, 100), (BEAT + 1, 99), (2 * BEAT, 95)], [0, 9, 0, 0, 0]),
        ([(0, 91), (BEAT, 91), (BEAT, 100), (BEAT, 99), (2 * BEAT, 99)], [0, 9, 0, 0, 1]),
        # emptied while it fills: as if nothing had been
        ([(0, 91), (BEAT, 91), (BEAT, 80), (BEAT, 90), (BEAT, 91)], [0, 9, 20, 10, 0]),
    ],
)
def test_f4_no_permit_is_left_unclaimed_for_more_than_a_beat(
    moments: list[tuple[int, int]], sizes: list[int]
):
    assert walk(*moments) == sizes


def test_f4_the_bound_over_all_kinds_lets_go_after_a_beat_too():
    crowded = Load({"async": -1}, {"async": 95}, 100)
    felt = claim_size(crowded, POLICY, CALM, 0).felt
    assert felt.nearly_full == frozenset({"total"})
    claim = claim_size(crowded, POLICY, felt, BEAT)
    assert (claim.size, claim.felt.nearly_full) == (5, frozenset())


# -- several kinds ---------------------------------------------------------------------------------

MIXED = {"async": 100, "thread": 8, "process": 2}


@pytest.mark.parametrize(
    ("permits", "total", "in_flight", "expected", "full"),
    [
        (MIXED, -1, {}, (50, 100), ""),
        (MIXED, -1, {"async": 80}, (30, 100), ""),
        (MIXED, -1, {"async": 80, "thread": 8, "process": 2}, (20, 100), ""),
        # One kind is nearly full: the idle threads must not stay idle for it.
        (MIXED, -1, {"async": 95}, (10, 10), "async"),
        (MIXED, -1, {"async": 100, "thread": 8}, (2, 10), "async"),
        (MIXED, -1, {"async": 100, "thread": 8, "process": 2}, (0, 10), "async"),
        # A small kind fills its last permit whatever the others do.
        (MIXED, -1, {"thread": 7}, (50, 100), ""),
        ({"thread": 8, "process": 2}, -1, {"thread": 8}, (2, 10), ""),
        ({"async": 200, "thread": 200}, -1, {"async": 195, "thread": 195}, (0, 0), "async thread"),
        # Kinds without permits, and kinds without end.
        ({"async": 0, "thread": 8}, -1, {}, (8, 8), ""),
        ({"async": -1, "thread": 8}, -1, {"async": 5_000, "thread": 8}, (50, 100), ""),
        # The bound over all kinds.
        (MIXED, 20, {"async": 15}, (5, 20), ""),
        (MIXED, 20, {"async": 12, "thread": 8}, (0, 20), ""),
        (MIXED, 20, {"async": 18, "thread": 8}, (0, 20), ""),
        (MIXED, 0, {}, (0, 0), ""),
        ({"async": -1}, 100, {"async": 90}, (10, 100), ""),
        ({"async": -1}, 100, {"async": 91}, (0, 0), "total"),
        ({"async": -1, "thread": 8}, 100, {"async": 92, "thread": 1}, (0, 0), "total"),
        # In flight of a kind that no step of it uses any more still counts in total.
        ({"async": 50}, 20, {"thread": 15}, (5, 20), ""),
    ],
)
def test_d6_one_claim_for_several_kinds(
    permits: dict[str, int],
    total: int,
    in_flight: dict[str, int],
    expected: tuple[int, int],
    full: str,
):
    claim = claim_size(Load(permits, in_flight, total), POLICY, CALM)

    assert (claim.size, claim.standing) == expected
    assert claim.felt.nearly_full == frozenset(full.split())


def test_d6_each_kind_has_its_own_hysteresis():
    permits = {"async": 100, "thread": 100}
    felt = claim_size(Load(permits, {"async": 91, "thread": 85}), POLICY, CALM).felt
    assert felt.nearly_full == ASYNC

    again = claim_size(Load(permits, {"async": 85, "thread": 85}), POLICY, felt)

    assert again.felt.nearly_full == ASYNC
    assert again.size == 15  # the threads', which were never nearly full


# -- pressure --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nearly_full", "memory", "latency"), list(product([False, True], repeat=3))
)
def test_d6_pressures_combine(nearly_full: bool, memory: bool, latency: bool):
    claim = claim_size(
        load(
            permits=200,
            in_flight=181 if nearly_full else 100,
            memory=0.81 if memory else 0.5,
            p99_us=1_001 if latency else 900,
        ),
        POLICY,
        CALM,
    )
    expected = {
        (False, False): 50,
        (True, False): 25,
        (False, True): 35,
        (True, True): 17,
    }[memory, latency]
    expected = 0 if nearly_full else expected
    felt = PressureSignals(ASYNC if nearly_full else frozenset(), memory, latency)
    standing = expected if memory or latency else 2 * expected
    assert claim == Claim(expected, standing, claim.share, felt)
    assert claim.share == (50 if memory else 100) * (70 if latency else 100) // 100


@pytest.mark.parametrize("free", range(1, 201))
def test_d6_shares_are_exact(free: int):
    """0.7 has no exact binary form: 90 × 0.7 is 63 here."""
    policy = ClaimPolicy(batch=200, latency_threshold_us=1_000)

    assert size(load(-1, p99_us=2_000), ClaimPolicy(free, 0.8, 1_000)) == max(1, free * 7 // 10)
    assert size(load(free, memory=0.9), policy) == max(1, free // 2)
    assert size(load(free, memory=0.9, p99_us=2_000), policy) == max(1, free * 35 // 100)


def test_d6_thresholds_are_exclusive():
    assert size(load(50, memory=0.8, p99_us=1_000)) == 50


def test_d6_latency_counts_only_where_a_threshold_is_set():
    assert size(load(50, p99_us=10**9), ClaimPolicy()) == 50
    assert size(load(50, p99_us=None)) == 50


def test_d6_under_pressure_a_free_worker_still_takes_one():
    assert size(load(1, memory=0.99, p99_us=5_000)) == 1
    assert size(load(1, 1, memory=0.99, p99_us=5_000)) == 0


@pytest.mark.parametrize(
    ("name", "sets_in", "between", "lets_go"),
    [
        ("nearly_full", load(100, 91), load(100, 81), load(100, 80)),
        ("memory", load(50, memory=0.81), load(50, memory=0.75), load(50, memory=0.72)),
        ("latency", load(50, p99_us=1_001), load(50, p99_us=950), load(50, p99_us=900)),
    ],
)
def test_d6_each_signal_lets_go_only_well_below_where_it_set_in(
    name: str, sets_in: Load, between: Load, lets_go: Load
):
    felt = claim_size(sets_in, POLICY, CALM).felt
    assert getattr(felt, name)
    # In between it stays as it was: held back if it was, free if it was not.
    assert getattr(claim_size(between, POLICY, felt).felt, name)
    assert not getattr(claim_size(between, POLICY, CALM).felt, name)
    assert not getattr(claim_size(lets_go, POLICY, felt).felt, name)


def test_d6_a_load_around_the_threshold_does_not_flap():
    felt, changes = CALM, 0
    for in_flight in [90, 91, 89, 91, 88, 92, 85, 91] * 5:
        now = claim_size(load(100, in_flight), POLICY, felt).felt
        changes += now != felt
        felt = now
    assert changes == 1


def test_d6_latency_without_any_task_in_the_last_minute_lets_go():
    felt = claim_size(load(50, p99_us=5_000), POLICY, CALM).felt

    assert claim_size(load(50, p99_us=None), POLICY, felt) == Claim(50, 50, 100, CALM)


# -- what can never be right -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "policy"),
    [
        ("claim_batch", {"batch": -1}),
        ("claim_batch", {"batch": 0}),
        ("memory_high", {"memory_high": -0.1}),
        ("memory_high", {"memory_high": 1.1}),
        ("latency_threshold", {"latency_threshold_us": -1}),
    ],
)
def test_b1_a_negative_threshold_is_an_error(field: str, policy: dict[str, float]):
    with pytest.raises(InvalidInput, match=field) as caught:
        ClaimPolicy(**policy)  # pyright: ignore[reportArgumentType]
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "wrong"),
    [("async_permits", Load({"async": -2})), ("total_permits", Load({"async": 1}, total=-5))],
)
def test_b1_negative_permits_are_an_error(field: str, wrong: Load):
    with pytest.raises(InvalidInput, match=field):
        claim_size(wrong, POLICY, CALM)
