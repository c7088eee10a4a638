"""How long a task waits before its next try."""

from __future__ import annotations

import pytest

from locktender.base.graph import RetryPolicy
from locktender.base.graph_check import MAX_BACKOFF
from locktender.kernel.timers import delay

STEADY = RetryPolicy(retries=9, delay_us=1_000, backoff=2.0, jitter=False, max_delay_us=100_000)
JITTERED = RetryPolicy(retries=9, delay_us=1_000_000)


@pytest.mark.parametrize(
    ("tries", "expected"), [(1, 1_000), (2, 2_000), (3, 4_000), (7, 64_000), (8, 100_000)]
)
def test_the_delay_doubles_up_to_the_maximum(tries: int, expected: int):
    assert delay(STEADY, tries, task=1) == expected


def test_a_backoff_of_one_stays_level():
    level = RetryPolicy(delay_us=500, backoff=1.0, jitter=False)
    assert {delay(level, tries, task=1) for tries in range(1, 50)} == {500}


def test_the_most_patient_policy_ends_at_its_maximum():
    policy = RetryPolicy(delay_us=10**15, backoff=MAX_BACKOFF, jitter=False)
    assert delay(policy, 100_000, task=1) == policy.max_delay_us


def test_jitter_takes_off_at_most_half_and_never_adds():
    for tries in range(1, 6):
        full = delay(RetryPolicy(delay_us=1_000_000, jitter=False), tries, task=1)
        for task in range(200):
            assert full // 2 <= delay(JITTERED, tries, task) <= full


def test_jitter_is_the_same_for_the_same_seed_task_and_try():
    again = [delay(JITTERED, tries, task=7, seed=3) for tries in range(1, 9)]
    assert again == [delay(JITTERED, tries, task=7, seed=3) for tries in range(1, 9)]


def test_jitter_parts_tasks_seeds_and_tries():
    level = RetryPolicy(delay_us=1_000_000, backoff=1.0)
    assert len({delay(level, 1, task) for task in range(100)}) > 95
    assert len({delay(level, 1, 1, seed) for seed in range(100)}) > 95
    assert len({delay(level, tries, 1) for tries in range(1, 101)}) > 95
