"""About how long a wait lasts, from how long things took lately.

A waiter starts when as many places have come free as stand before it. Who holds a place now is as old as it is,
and lasts as long as those that lasted longer; each place that comes free is taken by the next in line. A short
line is played through a number of times, in its order, with durations drawn from the last ones; for a long line
the law of large numbers does. How little is known of the durations of each step widens the answer.
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

MAX_DURATIONS_PER_STEP: Final = 400
"""Durations that are kept of each step."""
MAX_STEPS: Final = 2_000
PLAYS: Final = 120
MIN_PLAYS: Final = 24
MAX_DRAWN: Final = 14_400
"""Durations that are drawn for one `why`: the more gates, and the longer a line, the less often it is played.

A line that could be played less than `MIN_PLAYS` times is reckoned.
"""
_NORMAL: Final = tuple(
    (((byte + 0.5) / 256) ** 0.135 - ((255.5 - byte) / 256) ** 0.135) / 0.1975
    for byte in range(256)
)
"""Quantiles of a normal distribution by byte, after Tukey; less than one percent off."""
UNSEEN: Final = 0.5
"""How much the durations of a step vary of which one was seen, in parts of it."""
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
            known = self._by_step[step] = deque(maxlen=MAX_DURATIONS_PER_STEP)
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
    shared: SharedPlays | None = None,
) -> Estimate | None:
    """When `missing` more places have come free than those before it take; None where nothing is known.

    holding  who has a place, each one place
    before   in the order in which they start
    places   how many there are in all
    draws    durations that may be drawn; what would need more is reckoned
    shared   of several questions: a line of one kind is played once for all of them, with the same answers
    """
    lines = [line for line in before if line.waiters > 0]
    known = [line.durations for line in lines] + [each.durations for each in holding]
    if not holding or not all(known):
        return None
    most = max(known, key=len)
    # Above a lowered limit the first freed places are not reused.
    if missing > 1:
        lines.append(Line(ceil(missing) - 1, holding[0].durations))
    turns = sum(line.waiters for line in lines)
    kinds = _kinds(holding, lines)
    plays = min(PLAYS, draws // (turns + len(holding)))
    if plays >= MIN_PLAYS:
        if shared is not None and len(kinds) == 1:
            waits = shared.waits(holding, kinds, turns, plays)
        else:
            waits = _played(holding, lines, kinds, plays)
        found = _middle(waits)
    else:
        found = _reckoned(holding, lines, kinds, max(1.0, min(places, len(holding))))
    return Estimate(*found, len(most), most[len(most) // 2])


class _Kind(NamedTuple):
    """What is known of the durations of one step."""

    mean: float
    variation: float
    """The standard deviation, in parts of the mean."""
    pace: float
    """By how much they are longer than those that have ended."""
    spread: float
    """By how much the mean may be wrong, in parts of it: a standard deviation."""


def _kinds(holding: Sequence[Holding], lines: Sequence[Line]) -> dict[int, _Kind]:
    """By the identity of the durations."""
    several = {id(each.durations): each.durations for each in (*holding, *lines)}
    elapsed = dict.fromkeys(several, 0)
    for each in holding:
        elapsed[id(each.durations)] += each.elapsed_us
    found: dict[int, _Kind] = {}
    for key, durations in several.items():
        mean, variation = _moments(durations)
        pace, count = 1.0, len(durations)
        if mean and count < MAX_DURATIONS_PER_STEP:
            # The short ones have ended first: those that go on count as far as they have come. Once
            # `MAX_DURATIONS_PER_STEP` are kept, the long ones that had begun before all others make up for that.
            pace += min(1.0, variation * variation) * elapsed[key] / (mean * count)
        doubt = sqrt(variation * variation + UNSEEN * UNSEEN / count)
        found[key] = _Kind(mean, variation, pace, doubt / sqrt(count))
    return found


def _played(
    holding: Sequence[Holding],
    lines: Sequence[Line],
    kinds: Mapping[int, _Kind],
    plays: int,
) -> list[float]:
    """Played through, each time with other durations and, for want of knowledge, each step at another pace.

    Durations are drawn by byte: one of 256 quantiles of their kind. What a play draws for one place does not
    depend on how long the line is: `SharedPlays` has the waits of all its places.
    """
    place = {key: number for number, key in enumerate(kinds)}
    steps = list(kinds.values())
    order = [place[id(line.durations)] for line in lines for _ in range(line.waiters)]
    several = {id(line.durations): line.durations for line in lines}
    known = {place[key]: _table(durations) for key, durations in several.items()}
    tables = [known[step] for step in order]
    left = [
        (place[id(each.durations)], each.elapsed_us, len(longer), longer)
        for each in holding
        for longer in (_left(each),)
    ]
    first, begun = len(steps), len(steps) + len(left)
    waits: list[float] = []
    seed = _seed(holding)
    for play in range(plays):
        drawn = _bytes(seed, play, begun + len(order))
        paces = [
            step.pace * exp(step.spread * _NORMAL[byte])
            for step, byte in zip(steps, drawn[:first], strict=True)
        ]
        free = [
            paces[step] * (longer[byte * count >> 8] - elapsed)
            for (step, elapsed, count, longer), byte in zip(left, drawn[first:begun], strict=True)
        ]
        heapify(free)
        for step, durations, byte in zip(order, tables, drawn[begun:], strict=True):
            heapreplace(free, free[0] + paces[step] * durations[byte])
        waits.append(free[0])
    return waits


def _middle(waits: list[float]) -> tuple[int, int]:
    plays = len(waits)
    waits = sorted(waits)
    middle = waits[plays // 2]
    if plays == PLAYS:
        return round(middle), round(waits[plays * 9 // 10])
    deviation = sqrt(sum((each - middle) ** 2 for each in waits) / plays)
    return round(middle), round(middle + P90 * deviation)


class _Play(NamedTuple):
    pace: float
    free: list[float]
    """When each place comes free after the last turn that was played."""
    waits: list[float]
    """Of one with no turn before it, with one, with two, …"""


class SharedPlays:
    """Lines of one kind each, played as far as they are asked for: 50 rows of a list cost little more than one."""

    def __init__(self) -> None:
        self._lines: dict[tuple[tuple[int, ...], tuple[int, ...]], list[_Play]] = {}

    def waits(
        self, holding: Sequence[Holding], kinds: Mapping[int, _Kind], turns: int, plays: int
    ) -> list[float]:
        """`_played` of a line of so many turns."""
        elapsed, durations = tuple(each.elapsed_us for each in holding), holding[0].durations
        line, table = self._lines.setdefault((elapsed, durations), []), _table(durations)
        (kind,) = kinds.values()
        seed = _seed(holding)
        if len(line) < plays:
            left = [(each.elapsed_us, _left(each)) for each in holding]
            line += [_begun(left, kind, seed, number) for number in range(len(line), plays)]
        for number, play in enumerate(line[:plays]):
            if turns >= len(play.waits):
                # Some more than are asked for: the next row asks for them.
                target = turns + TURNS_DRAWN_AHEAD
                drawn = _bytes(seed, number, 1 + len(holding) + target)
                for byte in drawn[len(holding) + len(play.waits) :]:
                    heapreplace(play.free, play.free[0] + play.pace * table[byte])
                    play.waits.append(play.free[0])
        return [play.waits[turns] for play in line[:plays]]


TURNS_DRAWN_AHEAD: Final = 50
"""Turns that are drawn beyond the one that was asked for."""


def _begun(
    left: Sequence[tuple[int, Sequence[float]]], kind: _Kind, seed: bytes, number: int
) -> _Play:
    """Before the first turn. `left`: of who holds a place, how long it has and how long it may last."""
    drawn = _bytes(seed, number, 1 + len(left))
    pace = kind.pace * exp(kind.spread * _NORMAL[drawn[0]])
    free = [
        pace * (longer[byte * len(longer) >> 8] - elapsed)
        for (elapsed, longer), byte in zip(left, drawn[1:], strict=True)
    ]
    heapify(free)
    return _Play(pace, free, [free[0]])


def _reckoned(
    holding: Sequence[Holding],
    lines: Sequence[Line],
    kinds: Mapping[int, _Kind],
    places: float,
) -> tuple[int, int]:
    ahead: dict[int, int] = {}
    for line in lines:
        ahead[id(line.durations)] = ahead.get(id(line.durations), 0) + line.waiters
    turns = sum(ahead.values())
    if not ahead:
        ahead[id(holding[0].durations)] = 1
    count = sum(ahead.values())
    parts = [(number, kinds[key]) for key, number in ahead.items()]
    mean = sum(number * each.pace * each.mean for number, each in parts) / count
    variance = (
        sum(number * (each.pace * each.mean * each.variation) ** 2 for number, each in parts)
        / count
    )
    doubt = sqrt(sum((number * each.pace * each.mean * each.spread) ** 2 for number, each in parts))
    left = 0.0
    for each in holding:
        longer = _left(each)
        left += kinds[id(each.durations)].pace * (sum(longer) / len(longer) - each.elapsed_us)
    left /= len(holding)
    wait = mean * ((turns + 0.5) / places - (1 + variance / (mean * mean or 1)) / 2) + left
    wait = max(wait, left / places)
    spread = doubt / (count * mean or 1)
    deviation = sqrt(turns * variance / (places * places) + (wait * spread) ** 2)
    return round(wait), round(wait + P90 * deviation)


def _left(holding: Holding) -> Sequence[float]:
    """How long it may last in all, as those that lasted longer: quantiles, the shortest first."""
    elapsed, durations = holding
    table = _table(durations)
    if elapsed < table[-1]:
        return table[bisect_right(table, elapsed) :]
    # Longer than any that was seen: the longer it has lasted, the longer it goes on.
    most = max(durations[len(durations) // 2], elapsed / 2)
    return [elapsed + (number + 0.5) / 16 * most for number in range(16)]


@lru_cache(maxsize=200)
def _table(durations: tuple[int, ...]) -> tuple[float, ...]:
    """256 quantiles; between two durations, a part of both."""
    last, step = len(durations) - 1, len(durations) / 256
    found: list[float] = []
    for number in range(256):
        place = max((number + 0.5) * step - 0.5, 0.0)
        below = int(place)
        duration = durations[below]
        if below < last:
            duration += (place - below) * (durations[below + 1] - duration)
        found.append(duration)
    return tuple(found)


@lru_cache(maxsize=200)
def _moments(durations: tuple[int, ...]) -> tuple[float, float]:
    """The mean, and the standard deviation in parts of it. A line of one answer asks for the same ones again."""
    mean = sum(durations) / len(durations)
    if not mean:
        return 0.0, 0.0
    return mean, sqrt(sum((each - mean) ** 2 for each in durations) / len(durations)) / mean


def _seed(holding: Sequence[Holding]) -> bytes:
    """The same for all questions about one moment, and another one for the next moment."""
    elapsed = (each.elapsed_us.to_bytes(8, "big", signed=True) for each in holding)
    return shake_128(b"".join(elapsed)).digest(8)


def _bytes(seed: bytes, play: int, count: int) -> bytes:
    """Bytes that look drawn and are the same for the same question: the kernel has no chance of its own.

    Fewer of them are the first of more. The very first is the pace of a step, which counts most: it is spread
    evenly over the plays.
    """
    even = 159 * play + 3 & 255
    return bytes([even]) + shake_128(seed + play.to_bytes(2, "big")).digest(count - 1)


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
    # Above a lowered limit the first freed places are not reused.
    places = left[max(0, len(left) - limit) :] if limit > 0 else left
    slots = (ahead + 1) * need - max(0, limit - used)
    each = max(1, used // len(elapsed))
    turns, place = divmod(max(1, ceil(slots / each)) - 1, len(places))
    return places[place] + turns * usual
