"""Stretches of a run's time and what they went into: values and arithmetic of `run_times.py`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from locktender.base.text import gate_word

WORK: Final = "work"
HAND_OFF: Final = "hand-off"
BACK_OFF: Final = "back-off"
PAUSED: Final = "paused"
SEQUENTIAL: Final = "sequential"
LOST: Final = "lost attempt"
"""An attempt whose worker died, or was drained and handed it back: from its start until the leader knew."""
OFFER: Final = "offer"
"""Offered to a worker that did not accept."""
LEADER: Final = "leader"
"""There was no leader, or a new one had not decided yet."""
CLOCK: Final = "clock"
"""The store's clock was set back."""


class Piece(NamedTuple):
    """A stretch of time, and what it went into: `work`, `hand-off`, or a gate."""

    what: str
    us: int


class TimeSpan(NamedTuple):
    """The time between two instants, and what it went into."""

    start: int
    end: int
    pieces: list[Piece]


class Stretch(NamedTuple):
    """While a run or a task waited, and what for."""

    start: int
    end: int
    what: str


def added(pieces: Iterable[Piece]) -> dict[str, int]:
    found: dict[str, int] = {}
    for what, us in pieces:
        found[what] = found.get(what, 0) + us
    return found


def disjoint(stretches: Iterable[Stretch], start: int, end: int) -> Iterator[Stretch]:
    """Their parts between two instants, one after another: where two overlap, the one that began first."""
    for each in sorted(stretches):
        until = min(each.end, end)
        if until > max(start, each.start):
            yield Stretch(max(start, each.start), until, each.what)
            start = until


def fitted(waits: Mapping[str, int], most: int) -> dict[str, int]:
    """The same, and no more than `most` in all: the clock may have been set meanwhile."""
    found: dict[str, int] = {}
    for what, us in ((gate_word(each), us) for each, us in waits.items()):
        part = min(us, most)
        if part > 0:
            found[what] = found.get(what, 0) + part
            most -= part
    return found


def filled(waits: Mapping[str, int], us: int, rest: str) -> dict[str, int]:
    """Adds up to `us`: what is missing counts for the first gate; without one, for `rest`."""
    found = fitted(waits, us)
    left = us - sum(found.values())
    if left > 0:
        first = next(iter(found), rest)
        found[first] = found.get(first, 0) + left
    return found


def in_order(start: int, end: int, waits: Mapping[str, int]) -> Iterator[Stretch]:
    for what, us in waits.items():
        if us > 0 and start < end:
            yield Stretch(start, min(end, start + us), what)
            start += us


def merged(pieces: Iterable[Piece]) -> list[Piece]:
    return [Piece(what, us) for what, us in added(pieces).items() if us]
