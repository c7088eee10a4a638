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
from heapq import heapify, heapreplace
from math import ceil, exp, sqrt
from typing import Final, NamedTuple

LAST: Final = 400
"""Durations that are kept of each step."""
MAX_STEPS: Final = 2_000
PLAYS: Final = 120
FEW_PLAYS: Final = 24
MAX_DRAWN: Final = 7_200
"""Durations that are drawn for one answer: the longer the line, the less often it is played."""
MAX_PLAYED: Final = MAX_DRAWN // FEW_PLAYS
"""A line that is longer, or has more holders, is reckoned and not played."""
P90: Final = 1.2816
"""The 90th percentile of a normal distribution, in standard deviations."""


class Holds(Mapping[str, tuple[int, ...]]):
    """How long attempts of each step held what they needed: the last of them, in bounded memory."""

    def __init__(self) -> None:
        self._by_step: dict[str, deque[int]] = {}

    def record(self, step: str, lasted_us: int) -> None:
        known = self._by_step.get(step)
        if known is None:
            if len(self._by_step) >= MAX_STEPS:
                del self._by_step[next(iter(self._by_step))]
            known = self._by_step[step] = deque(maxlen=LAST)
        known.append(lasted_us)

    def __getitem__(self, step: str) -> tuple[int, ...]:
        """Sorted."""
        return tuple(sorted(self._by_step[step]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_step)

    def __len__(self) -> int:
        return len(self._by_step)


class Holding(NamedTuple):
    """One that holds a place."""

    elapsed_us: int
    durations: Sequence[int]
    """Of its kind, sorted."""


class Line(NamedTuple):
    """Waiters of one kind before the one that is asked about."""

    waiters: int
    durations: Sequence[int]


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
    *,
    quick: bool = False,
) -> Estimate | None:
    """When `missing` more places have come free than those before it take; None where nothing is known.

    holding  who has a place, each one place
    places   how many there are in all
    quick    for long lists: reckoned, never played
    """
    lines = [line for line in before if line.waiters > 0]
    known = [line.durations for line in lines] + [each.durations for each in holding]
    if not holding or not all(known):
        return None
    ahead = sum(line.waiters for line in lines)
    most = max(known, key=len)
    busy = sorted(holding, key=lambda each: -each.elapsed_us)
    variation = _variation(most)
    spread = variation / sqrt(len(most))
    # Of what began lately the short ones have ended first: those that go on count as far as they have come.
    ended = sum(
        sum(each) for each in {id(each.durations): each.durations for each in holding}.values()
    )
    going_on = sum(each.elapsed_us for each in holding) / max(1, ended)
    pace = 1 + min(1.0, variation * variation) * going_on
    # Above a lowered limit the first places that come free are for nobody.
    turns = ahead + max(1, ceil(missing)) - 1
    if not quick and turns + len(busy) <= MAX_PLAYED:
        found = _played(busy, lines, turns, spread, pace)
    else:
        found = _reckoned(busy, lines, turns, max(1.0, min(places, len(busy))), spread, pace)
    return Estimate(*found, len(most), most[len(most) // 2])


def _played(
    busy: Sequence[Holding], lines: Sequence[Line], turns: int, spread: float, pace: float
) -> tuple[int, int]:
    """Played through, each time with other durations and, for want of knowledge, at another pace."""
    chance = _Chance(len(busy) + 31 * turns)
    kinds = [line.durations for line in lines for _ in range(line.waiters)]
    waits: list[float] = []
    plays = max(FEW_PLAYS, min(PLAYS, MAX_DRAWN // (turns + len(busy))))
    for _ in range(plays):
        own = pace * exp(spread * chance.normal())
        free = [own * _left(each, chance.uniform()) for each in busy]
        heapify(free)
        for turn in range(turns):
            kind = kinds[turn] if turn < len(kinds) else busy[0].durations
            heapreplace(free, free[0] + own * _drawn(kind, 0, chance.uniform()))
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
    means = [(line.waiters, _mean(line.durations), line.durations) for line in lines]
    if not means:
        means = [(1, _mean(busy[0].durations), busy[0].durations)]
    mean = sum(number * each for number, each, _ in means) / count
    variance = sum(number * (_variation(kind) * each) ** 2 for number, each, kind in means) / count
    left = sum(_left(each, (step + 0.5) / 8) for each in busy for step in range(8)) / 8 / len(busy)
    wait = mean * ((turns + 0.5) / places - (1 + variance / (mean * mean or 1)) / 2) + left
    wait = pace * max(wait, left / places)
    deviation = sqrt(turns * variance / (places * places) + (wait * spread) ** 2)
    return round(wait), round(wait + P90 * deviation)


def _left(holding: Holding, chance: float) -> float:
    """How long it lasts from now on: as those that lasted longer."""
    elapsed, durations = holding
    first = bisect_right(durations, elapsed)
    if first < len(durations):
        return max(0.0, _drawn(durations, first, chance) - elapsed)
    # Longer than any that was seen: the longer it has lasted, the longer it goes on.
    return chance * max(durations[len(durations) // 2], elapsed / 2)


def _drawn(durations: Sequence[int], first: int, chance: float) -> float:
    """One of the durations from `first` on, or between two of them."""
    place = first + chance * (len(durations) - first) - 0.5
    below = int(max(place, first))
    above = min(below + 1, len(durations) - 1)
    return durations[below] + (max(place, first) - below) * (durations[above] - durations[below])


def _mean(durations: Sequence[int]) -> float:
    return sum(durations) / len(durations)


def _variation(durations: Sequence[int]) -> float:
    """The standard deviation in parts of the mean."""
    mean = _mean(durations)
    if not mean:
        return 0.0
    return sqrt(sum((each - mean) ** 2 for each in durations) / len(durations)) / mean


class _Chance:
    """Numbers that look drawn and are the same for the same question: the kernel has no chance of its own."""

    def __init__(self, seed: int) -> None:
        self._state = (seed * 2_654_435_761 + 88_172_645_463_325_252) % (1 << 64) or 1

    def uniform(self) -> float:
        state = self._state
        state ^= (state << 13) % (1 << 64)
        state ^= state >> 7
        state ^= (state << 17) % (1 << 64)
        self._state = state
        return (state >> 11) / (1 << 53)

    def normal(self) -> float:
        return sum(self.uniform() for _ in range(12)) - 6.0


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
