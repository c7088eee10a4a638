"""Quantiles of the last minute in fixed memory, however many values there were.

A value is counted in a bucket as wide as one 32nd of its power of two, so the
middle of a bucket is within 1.6 % of everything in it. Six slices of ten
seconds each hold such counts; the oldest is emptied when a new one begins.
The slices turn when a quantile is read, not with each value: to add is to raise one
number, and reads no clock.
"""

from __future__ import annotations

from math import ceil

SLICES = 6
SLICE_US = 10_000_000
_FINE = 32
"""Buckets per power of two."""
_SHIFT = _FINE.bit_length()
_MAX_BITS = 42
"""Values from here up (over 50 days in microseconds) are all counted as the largest there is."""
_LARGEST = (1 << _MAX_BITS) - 1
_BUCKETS = _FINE * (_MAX_BITS - _SHIFT + 2)


class MinuteQuantiles:
    """Add values; ask which of the last minute is above a given share of the others."""

    __slots__ = ("_at", "_current", "_slices", "_turn")

    def __init__(self, now: int) -> None:
        self._slices: list[list[int]] = [[0] * _BUCKETS for _ in range(SLICES)]
        self._at = 0
        self._current = self._slices[0]
        self._turn = now + SLICE_US

    def add(self, value: int) -> None:
        """Count one value into the slice of this moment."""
        if value < _FINE:
            self._current[max(0, value)] += 1
            return
        if value > _LARGEST:
            value = _LARGEST
        # The power of two picks the row, the five bits behind the leading one the place in it.
        shift = value.bit_length() - _SHIFT
        self._current[(shift << 5) + (value >> shift)] += 1

    def quantile(self, share: float, now: int) -> int | None:
        """The value that `share` of the last minute's do not exceed; None where there were none."""
        self._turn_to(now)
        total = sum(map(sum, self._slices))
        if not total:
            return None
        above = total - max(1, ceil(share * total))
        # From the top: of what is asked for, most lies below.
        for bucket in range(_BUCKETS - 1, -1, -1):
            for each in self._slices:
                above -= each[bucket]
            if above < 0:
                return _middle(bucket)
        return 0

    def _turn_to(self, now: int) -> None:
        if now < self._turn:
            return
        passed = 1 + (now - self._turn) // SLICE_US
        self._turn += passed * SLICE_US
        for _ in range(min(passed, SLICES)):
            self._at = (self._at + 1) % SLICES
            self._slices[self._at] = [0] * _BUCKETS
        self._current = self._slices[self._at]


def _middle(bucket: int) -> int:
    """What stands for every value of a bucket."""
    shift = (bucket >> 5) - 1
    if shift <= 0:
        return bucket
    return ((bucket - (shift << 5)) << shift) + (1 << shift >> 1)
