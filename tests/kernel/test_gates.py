"""Gates by themselves: limits, pauses, keyed pools, and rates that are exact over grants."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from locktender.base.changes import Bucket
from locktender.base.limits import Limits, PoolRule, Rate
from locktender.kernel.gates.count import CountGate
from locktender.kernel.gates.pool import PoolGate
from locktender.kernel.gates.protocol import UNBOUNDED
from locktender.kernel.gates.rate import RateGate
from locktender.kernel.ledger import Ledger

START = 10**15
"""A real instant, in microseconds: a bucket that was never used has been full for long."""


def test_a_limit_is_raised_lowered_paused_and_unset():
    gate = CountGate("runs", "max_concurrent_runs", 3)
    gate.used = 3
    assert gate.room == 0
    gate.set(5)
    assert gate.room == 2
    gate.set(2)
    assert gate.room == -1  # holders finish; nothing new starts
    gate.set(-1)
    assert gate.room > 10**9
    gate.set(-1, paused=True)
    assert gate.room == -3


def test_keyed_pools_fall_back_to_the_rule_for_every_key():
    limits = Limits(pools={"api[*]": PoolRule(2), "api[vip]": PoolRule(9), "api": PoolRule(5)})
    ledger = Ledger(limits)
    assert [ledger.pool(name).limit for name in ("api[acme]", "api[vip]", "api", "db")] == [
        2,
        9,
        5,
        -1,
    ]
    ledger.set_limits(Limits(pools={"api[*]": PoolRule(4), "api": PoolRule(5)}))
    assert [ledger.pool(name).limit for name in ("api[acme]", "api[vip]", "api")] == [4, 4, 5]
    ledger.set_limits(Limits())
    assert {ledger.pool(name).limit for name in ("api[acme]", "api[vip]", "api")} == {-1}


def test_keyed_pools_count_each_key_by_itself():
    ledger = Ledger(Limits(pools={"api[*]": PoolRule(1)}))
    ledger.pool("api[a]").used = 1
    assert ledger.pool("api[a]").room == 0
    assert ledger.pool("api[b]").room == 1


# -- rates -----------------------------------------------------------------------------------------


def grants(pool: RateGate, wishes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Each wish (earliest instant, slots) is granted as soon as the rate lets it, in order."""
    given: list[tuple[int, int]] = []
    now = 0
    for wished, slots in wishes:
        now = max(now, wished, pool.granted_at(slots))
        pool.charge(slots, now)
        given.append((now, slots))
    return given


def assert_exact(given: list[tuple[int, int]], rate: Rate) -> None:
    """In any window of any length: at most burst + count × length / per."""
    for first, last in combinations(range(len(given)), 2):
        length = given[last][0] - given[first][0]
        total = sum(slots for _, slots in given[first : last + 1])
        assert (total - rate.burst) * rate.per_us <= rate.count * length


RATES = [Rate(1, 1_000, 1), Rate(3, 1_000, 2), Rate(7, 1_000_000, 7), Rate(1_000, 999, 10)]


@pytest.mark.parametrize("rate", RATES)
def test_a_rate_holds_over_any_window(rate: Rate):
    for seed in range(20):
        draw = random.Random(seed)
        at = START
        wishes: list[tuple[int, int]] = []
        for _ in range(40):
            at += draw.choice([0, 0, 1, draw.randrange(3 * rate.per_us)])
            wishes.append((at, draw.randint(1, rate.burst)))
        assert_exact(grants(RateGate("api", PoolRule(rate=rate)), wishes), rate)


@pytest.mark.parametrize("rate", RATES)
def test_a_rate_gives_all_that_it_may(rate: Rate):
    """Greedy single grants: the n-th goes at the very microsecond the formula allows."""
    given = grants(RateGate("api", PoolRule(rate=rate)), [(START, 1)] * 60)
    for index, (at, _) in enumerate(given):
        beyond = max(0, index + 1 - rate.burst)
        assert at == START - (-beyond * rate.per_us // rate.count)


@pytest.mark.parametrize("rate", RATES)
def test_a_rate_restored_from_its_bucket_stays_exact(
    rate: Rate,
):
    lived = RateGate("api", PoolRule(rate=rate))
    given = grants(lived, [(START, 1)] * 10)
    expected = lived.granted_at(1)
    again = RateGate("api", PoolRule(rate=rate))
    again.restore(lived.dump())
    assert expected <= again.granted_at(1) <= expected + 1
    given += grants(again, [(given[-1][0], 1)] * 10)
    assert_exact(given, rate)


def test_a_rate_raised_live_takes_effect_at_once():
    pool = RateGate("api", PoolRule(rate=Rate(1, 3_600_000_000)))
    grants(pool, [(START, 1)])
    assert pool.apply(PoolRule(rate=Rate(10, 1_000_000)), START)
    assert pool.granted_at(1) == START + 100_000


def test_a_rate_lowered_live_lets_nobody_through_on_the_old_pace():
    pool = RateGate("api", PoolRule(rate=Rate(100, 1_000_000)))
    grants(pool, [(START, 1)])
    pool.apply(PoolRule(rate=Rate(1, 3_600_000_000)), START)
    assert pool.granted_at(1) == START + 3_600_000_000


def test_a_rate_set_again_starts_with_a_full_bucket():
    hourly = Limits(pools={"api": PoolRule(rate=Rate(1, 3_600_000_000))})
    ledger = Ledger(hourly)
    _, rate = ledger.gates_of("api")
    assert isinstance(rate, RateGate)
    grants(rate, [(START, 1)])
    assert ledger.set_limits(Limits(pools={"api": PoolRule(2)}), START) == [Bucket("api", 0)]
    assert len(ledger.gates_of("api")) == 1
    ledger.set_limits(hourly, START + 1)
    _, rate = ledger.gates_of("api")
    assert isinstance(rate, RateGate)
    assert rate.granted_at(1) <= START + 1


def test_a_limit_changed_live_leaves_the_bucket_alone():
    rate = Rate(1, 1_000_000)
    pool = RateGate("api", PoolRule(limit=1, rate=rate))
    grants(pool, [(START, 1)])
    pool.apply(PoolRule(limit=5, rate=rate), START)
    assert pool.granted_at(1) == START + 1_000_000


def test_a_pool_without_a_rate_has_no_gate_for_one():
    assert [type(gate) for gate in Ledger(Limits()).gates_of("db")] == [PoolGate]


def test_more_slots_than_the_burst_never_start():
    pool = RateGate("api", PoolRule(rate=Rate(100, 1_000, burst=3)))
    assert pool.granted_at(3) <= START
    assert pool.granted_at(4) == UNBOUNDED
