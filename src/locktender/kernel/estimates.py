"""About how long a wait lasts, from how long things took lately.

A waiter starts when as many places have come free as stand before it. Who holds a place now is as old as it is,
and lasts as long as those that lasted longer; each place that comes free is taken by the next in line. A short
line is played through a number of times with durations drawn from the last ones; for a long line the law of
large numbers does. How little is known of the durations widens the answer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import shake_128
from heapq import heapify, heapreplace
from math import ceil, exp, sqrt
from typing import Final, NamedTuple

LAST: Final = 400
"""Durations that are kept of each step."""
MAX_STEPS: Final = 2_000
PLAYS: Final = 120
FEW_PLAYS: Final = 24
MAX_DRAWN: Final = 14_400
"""Durations that are drawn for one `why`: the more gates, and the longer a line, the less often it is played.

A line that could be played less than `FEW_PLAYS` times is reckoned.
"""
_NORMAL: Final = 12
"""So many bytes, added up, are about normally distributed; in parts of 256 their variance is one."""
P90: Final = 1.2816
"""The 90th percentile of a normal distribution, in standard deviations."""


class Holds(Mapping[str, tuple[int, ...]]):
    """How long attempts of each step held what they needed: the last of them, in bounded memory."""

    def __init__(self) -> None:
        self._by_step: dict[str, deque[int]] = {}
        self._sorted: dict[str, tuple[int, ...]] = {}
        """Those that were asked for since the last of their kind."""

    def record(self, step: str, lasted_us: int) -> None:
        known = self._by_step.get(step)
        if known is None:
            if len(self._by_step) >= MAX_STEPS:
                oldest = next(iter(self._by_step))
                del self._by_step[oldest]
                self._sorted.pop(oldest, None)
            known = self._by_step[step] = deque(maxlen=LAST)
        known.append(lasted_us)
        if self._sorted:
            self._sorted.pop(step, None)

    def __getitem__(self, step: str) -> tuple[int, ...]:
        """Sorted."""
        found = self._sorted.get(step)
        if found is None:
            found = self._sorted[step] = tuple(sorted(self._by_step[step]))
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_step)

    def __len__(self) -> int:
        return len(self._by_step)


class Holding(NamedTuple):
    """One that holds a place."""

    elapsed_us: int
    durations: tuple[int, ...]
    """Of its kind, sorted."""


class Line(NamedTuple):
    """Waiters of one kind before the one that is asked about."""

    waiters: int
    durations: tuple[int, ...]


class Estimate(NamedTuple):
    us: int
    """As often shorter as longer."""
    p90_us: int
    """Shorter in nine of ten cases."""
    seen: int
    """Durations that it is from."""
    median_us: int


def estimate(
    holding: Sequence[Holding],
    before: Iterable[Line],
    places: float,
    missing: float,
    draws: int = MAX_DRAWN,
) -> Estimate | None:
    """When `missing` more places have come free than those before it take; None where nothing is known.

    holding  who has a place, each one place
    places   how many there are in all
    draws    durations that may be drawn; what would need more is reckoned
    """
    lines = [line for line in before if line.waiters > 0]
    known = [line.durations for line in lines] + [each.durations for each in holding]
    if not holding or not all(known):
        return None
    ahead = sum(line.waiters for line in lines)
    most = max(known, key=len)
    busy = sorted(holding, key=lambda each: -each.elapsed_us)
    _, variation = _moments(most)
    spread = variation / sqrt(len(most))
    # Of what began lately the short ones have ended first: those that go on count as far as they have come.
    ended = sum(
        sum(each) for each in {id(each.durations): each.durations for each in holding}.values()
    )
    going_on = sum(each.elapsed_us for each in holding) / max(1, ended)
    pace = 1 + min(1.0, variation * variation) * going_on
    # Above a lowered limit the first places that come free are for nobody.
    turns = ahead + max(1, ceil(missing)) - 1
    plays = min(PLAYS, draws // (turns + len(busy)))
    if plays >= FEW_PLAYS:
        found = _played(busy, lines, turns, spread, pace, plays)
    else:
        found = _reckoned(busy, lines, turns, max(1.0, min(places, len(busy))), spread, pace)
    return Estimate(*found, len(most), most[len(most) // 2])


def _played(
    busy: Sequence[Holding],
    lines: Sequence[Line],
    turns: int,
    spread: float,
    pace: float,
    plays: int,
) -> tuple[int, int]:
    """Played through, each time with other durations and, for want of knowledge, at another pace.

    Durations are drawn by byte: one of 256 quantiles of their kind.
    """
    ahead = sum(line.waiters for line in lines)
    kinds = [(line.waiters, _quantiles(line.durations, 256)) for line in lines]
    if turns > ahead:
        kinds.append((turns - ahead, _quantiles(busy[0].durations, 256)))
    shades = min(64, plays)
    left = [_left(each, shades) for each in busy]
    count = len(busy) + turns
    drawn = _bytes(len(busy) + 31 * turns, plays * (count + _NORMAL))
    waits: list[float] = []
    at = 0
    for _ in range(plays):
        own = pace * exp(spread * (sum(drawn[at : at + _NORMAL]) / 256 - _NORMAL / 2))
        at += _NORMAL
        free = [
            own * each[byte * shades >> 8]
            for each, byte in zip(left, drawn[at : at + len(left)], strict=True)
        ]
        at += len(left)
        heapify(free)
        for number, durations in kinds:
            for byte in drawn[at : at + number]:
                heapreplace(free, free[0] + own * durations[byte])
            at += number
        waits.append(free[0])
    waits.sort()
    middle = waits[plays // 2]
    if plays == PLAYS:
        return round(middle), round(waits[plays * 9 // 10])
    deviation = sqrt(sum((each - middle) ** 2 for each in waits) / plays)
    return round(middle), round(middle + P90 * deviation)


def _reckoned(
    busy: Sequence[Holding],
    lines: Sequence[Line],
    turns: int,
    places: float,
    spread: float,
    pace: float,
) -> tuple[int, int]:
    count = sum(line.waiters for line in lines) or 1
    moments = [(line.waiters, *_moments(line.durations)) for line in lines]
    if not moments:
        moments = [(1, *_moments(busy[0].durations))]
    mean = sum(number * each for number, each, _ in moments) / count
    variance = sum(number * (part * each) ** 2 for number, each, part in moments) / count
    left = sum(sum(_left(each, 8)) for each in busy) / 8 / len(busy)
    wait = mean * ((turns + 0.5) / places - (1 + variance / (mean * mean or 1)) / 2) + left
    wait = pace * max(wait, left / places)
    deviation = sqrt(turns * variance / (places * places) + (wait * spread) ** 2)
    return round(wait), round(wait + P90 * deviation)


def _left(holding: Holding, count: int) -> list[float]:
    """How long it lasts from now on, as those that lasted longer: quantiles."""
    elapsed, durations = holding
    first = bisect_right(durations, elapsed)
    if first < len(durations):
        return [max(0.0, each - elapsed) for each in _quantiles(durations, count, first)]
    # Longer than any that was seen: the longer it has lasted, the longer it goes on.
    most = max(durations[len(durations) // 2], elapsed / 2)
    return [(number + 0.5) / count * most for number in range(count)]


def _quantiles(durations: Sequence[int], count: int, first: int = 0) -> list[float]:
    """Of the durations from `first` on; between two of them, a part of both."""
    last, step = len(durations) - 1, (len(durations) - first) / count
    found: list[float] = []
    for number in range(count):
        place = max(first + (number + 0.5) * step - 0.5, first)
        below = int(place)
        duration = durations[below]
        if below < last:
            duration += (place - below) * (durations[below + 1] - duration)
        found.append(duration)
    return found


@lru_cache(maxsize=200)
def _moments(durations: tuple[int, ...]) -> tuple[float, float]:
    """The mean, and the standard deviation in parts of it. A line of one answer asks for the same ones again."""
    mean = sum(durations) / len(durations)
    if not mean:
        return 0.0, 0.0
    return mean, sqrt(sum((each - mean) ** 2 for each in durations) / len(durations)) / mean


def _bytes(seed: int, count: int) -> bytes:
    """Bytes that look drawn and are the same for the same question: the kernel has no chance of its own."""
    return shake_128(seed.to_bytes(8, "big")).digest(count)


def wait_for(
    elapsed: list[int], usual: int | None, ahead: int, gate: tuple[int, int], need: int = 1
) -> int | None:
    """The same from one usual duration: about how long until `need` are free for one with `ahead` before it.

    `gate` is how many are used, and the limit.
    """
    if usual is None or not elapsed:
        return None
    left = sorted(max(usual - each, usual // 10) for each in elapsed)
    used, limit = gate
    # Above a lowered limit the first places that come free are for nobody.
    places = left[max(0, len(left) - limit) :] if limit > 0 else left
    slots = (ahead + 1) * need - max(0, limit - used)
    each = max(1, used // len(elapsed))
    turns, place = divmod(max(1, ceil(slots / each)) - 1, len(places))
    return places[place] + turns * usual
