"""A heap of instants, and how long a failed task waits.

Entries are not removed: the receiver checks whether a due timer still matters.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final, Literal

import msgspec

from locktender.base.graph import RetryPolicy
from locktender.base.limits import DISPATCH_DEADLINE_US

Kind = Literal[
    "back_off",
    "sleep",
    "queue_timeout",
    "dispatch_deadline",
    "run_deadline",
    "queued_deadline",
    "linger",
    "offer",
    "offers",
    "passed_over",
]


_BY_INSTANT: Final = frozenset({"back_off", "queue_timeout", "dispatch_deadline"})
"""Their detail is the instant from which the task waits. That of a run's deadline is the deadline as in its row,
which a clock that is set does not move."""


class Defaults(msgspec.Struct, frozen=True):
    """What applies where neither step, flow nor run says otherwise."""

    queue_timeout_us: int | None = None
    dispatch_deadline_us: int = DISPATCH_DEADLINE_US
    offer_ttl_us: int = 2_000_000
    items_per_cycle: int | None = None
    hold_back_us: int = 2_000_000
    """How long after its start a large map asks for its items as they can start (`kernel/map_slices.py`)."""


def delay(policy: RetryPolicy, tries: int, task: int, seed: int = 0) -> int:
    """Microseconds to wait before the try after `tries` failed ones. Jitter comes from a hash, not from chance.

    Full delay grows by `backoff` per try up to the maximum; jitter takes off up to half of it, so
    that tasks that failed together do not come back together.
    """
    exponent = min(tries - 1, 64)
    full = min(policy.max_delay_us, int(policy.delay_us * policy.backoff**exponent))
    if not policy.jitter:
        return full
    draw = zlib.crc32(f"{seed}:{task}:{tries}".encode()) / 0xFFFFFFFF
    return full - int(full * 0.5 * draw)


class Timers:
    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Kind, int, int]] = []
        self._serial = 0
        self._offers: dict[int, list[tuple[int, int]]] = {}
        """By the serial number of their entry: (task, token) of offers that end at one instant."""
        self._last_offers = (0, 0)
        """The instant of the newest, and its number."""

    def set(self, at: int, kind: Kind, subject: int, detail: int = 0) -> None:
        """Wake for `subject` at `at`; `detail` tells a later check which one was meant (a token, an attempt)."""
        self._serial += 1
        heappush(self._heap, (at, self._serial, kind, subject, detail))

    def set_offer(self, at: int, task: int, token: int) -> None:
        """Wake for an offer. Those of a cycle end at one instant, and nearly all are answered long before:
        they share one entry."""
        instant, number = self._last_offers
        offers = self._offers.get(number)
        if offers is None or instant != at:
            self.set(at, "offers", 0)
            self._last_offers = at, self._serial
            offers = self._offers[self._serial] = []
        offers.append((task, token))

    def due(self, now: int) -> Iterator[tuple[int, Kind, int, int]]:
        while self._heap and self._heap[0][0] <= now:
            at, serial, kind, subject, detail = heappop(self._heap)
            if kind == "offers":
                for task, token in self._offers.pop(serial):
                    yield at, "offer", task, token
            else:
                yield at, kind, subject, detail

    def move(self, by: int) -> None:
        """The clock was set by so much: every instant moves with it, also those that details name.

        A sleep is until a time of that clock, and stays.
        """
        self._heap = [
            (
                at if kind == "sleep" else at + by,
                serial,
                kind,
                subject,
                detail + by if kind in _BY_INSTANT and detail else detail,
            )
            for at, serial, kind, subject, detail in self._heap
        ]
        heapify(self._heap)
        self._last_offers = (0, 0)

    def __len__(self) -> int:
        return len(self._heap) + sum(map(len, self._offers.values()))

    def keep(self, matters: Callable[[Kind, int], bool]) -> None:
        """Drop every entry that does not matter any more."""
        for offers in self._offers.values():
            offers[:] = [each for each in offers if matters("offer", each[0])]
        self._heap = [
            entry for entry in self._heap if entry[2] == "offers" or matters(entry[2], entry[3])
        ]
        heapify(self._heap)

    def next(self) -> int | None:
        return self._heap[0][0] if self._heap else None
