"""D6: the p99 of the last minute, in fixed memory and within two hundredths."""

from __future__ import annotations

import sys
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locktender.base.quantiles import SLICE_US, SLICES, MinuteQuantiles

MINUTE = SLICES * SLICE_US
EXACT_BELOW = 64


def of(values: list[int]) -> MinuteQuantiles:
    sketch = MinuteQuantiles(0)
    for value in values:
        sketch.add(value)
    return sketch


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.99, None),
        ([0], 0.99, 0),
        ([-5], 0.99, 0),
        ([7], 0.0, 7),
        ([7], 1.0, 7),
        (list(range(64)), 0.99, 63),
        (list(range(1, 51)), 0.5, 25),
        ([1] * 99 + [40], 0.99, 1),
        ([1] * 98 + [40] * 2, 0.99, 40),
        ([1] * 10 + [60], 1.0, 60),
    ],
)
def test_d6_small_values_are_exact(values: list[int], share: float, expected: int | None):
    assert of(values).quantile(share, 0) == expected


@given(
    st.lists(st.integers(0, 1 << 41), min_size=1, max_size=200),
    st.sampled_from([0.5, 0.9, 0.99, 1.0]),
)
def test_d6_a_quantile_is_within_two_hundredths(values: list[int], share: float):
    exact = sorted(values)[ceil(share * len(values)) - 1]
    found = of(values).quantile(share, 0)

    assert found is not None
    assert abs(found - exact) <= (0 if exact < EXACT_BELOW else 0.02 * exact)


@given(
    st.lists(
        st.tuples(st.integers(0, 3 * SLICE_US), st.integers(1, 1 << 30)), min_size=1, max_size=40
    )
)
def test_d6_only_the_last_minute_counts(steps: list[tuple[int, int]]):
    """Whoever asks turns the slices: here at every step, so what is older than a minute is gone."""
    sketch, now = MinuteQuantiles(0), 0
    seen: list[tuple[int, int]] = []
    for pause, value in steps:
        now += pause
        sketch.quantile(1.0, now)
        sketch.add(value)
        seen.append((now, value))

    found = sketch.quantile(1.0, now)
    # A slice is emptied as a whole: between 50 and 60 seconds may be remembered.
    surely = max(value for at, value in seen if at > now - MINUTE + SLICE_US)
    perhaps = max(value for at, value in seen if at > now - MINUTE)
    assert found is not None
    assert 0.98 * surely - 1 <= found <= 1.02 * perhaps + 1


def test_d6_a_minute_without_values_forgets_all():
    sketch = of([1_000] * 10)

    assert sketch.quantile(0.99, MINUTE - SLICE_US - 1) == 1_000
    assert sketch.quantile(0.99, MINUTE) is None
    sketch.add(5)
    assert sketch.quantile(0.99, MINUTE) == 5
    assert sketch.quantile(0.99, 1_000 * MINUTE) is None


def test_d6_the_largest_values_are_counted_together():
    assert of([1 << 90]).quantile(0.99, 0) == of([1 << 42]).quantile(0.99, 0)


def test_d6_memory_is_fixed():
    def held(sketch: MinuteQuantiles) -> int:
        return sum(sys.getsizeof(each) for each in sketch._slices)  # pyright: ignore[reportPrivateUsage]

    sketch = MinuteQuantiles(0)
    before = held(sketch)
    for value in range(0, 1 << 20, 7):
        sketch.add(value)
    for at in range(0, 10 * MINUTE, SLICE_US):
        sketch.quantile(0.99, at)

    assert held(sketch) == before < 100_000
