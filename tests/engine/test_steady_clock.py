"""A store's clock that jumps ahead ends no lease."""

from __future__ import annotations

from locktender.base.clock import SECOND
from locktender.leader.sweep import SteadyClock

LEASE = 10 * SECOND


def test_a_steady_clock_is_trusted_however_much_time_passes():
    steady = SteadyClock(LEASE)
    for store, boot in ((100, 0), (103, 3), (4_000, 3_900)):
        steady.saw(store * SECOND, boot * SECOND, boot * SECOND)
        assert steady.trusted(boot * SECOND)


def test_after_a_jump_everybody_has_a_lease_to_renew():
    steady = SteadyClock(LEASE)
    steady.saw(100 * SECOND, 0, 0)
    steady.saw(3_701 * SECOND, 1 * SECOND, 1 * SECOND)
    assert not steady.trusted(1 * SECOND)
    assert not steady.trusted(11 * SECOND - 1)
    assert steady.trusted(11 * SECOND)


def test_drift_and_a_clock_set_back_are_no_jumps():
    steady = SteadyClock(LEASE)
    steady.saw(100 * SECOND, 0, 0)
    steady.saw(103 * SECOND, 1 * SECOND, 1 * SECOND)
    assert steady.trusted(1 * SECOND)
    steady.saw(50 * SECOND, 2 * SECOND, 2 * SECOND)
    assert steady.trusted(2 * SECOND)


def test_a_paused_leader_is_no_clock_jump():
    steady = SteadyClock(LEASE)
    steady.saw(100 * SECOND, 50 * SECOND, 50 * SECOND)
    steady.saw(101 * SECOND, 51 * SECOND, 54 * SECOND)  # answered at once, seen late
    steady.saw(105 * SECOND, 55 * SECOND, 55 * SECOND)
    assert steady.trusted(55 * SECOND)
