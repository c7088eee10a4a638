"""How much a worker asks for: its free permits, less under pressure, without flapping.

Two numbers come out. The *size* is what the worker would take at this moment.
The *standing* claim is what it tells the leader, which may use it until
the next beat and counts permits itself, task by task: permits in use are left
out of it. Otherwise a worker that was full for an instant, at the beat, would
be given nothing until the next. Without pressure it is two batches: the next one
is on its way while this one is accepted.

A claim is one number for a worker with permits of several kinds. A kind of 100
permits or more that is nearly full adds nothing to it, and is named so that
nothing of it is offered; the others go on: a hundred async tasks in flight must
not keep eight idle threads idle.

A nearly full kind waits for a batch: until a fifth of its permits is free. If no
batch comes, its last permits must not stay idle beside tasks that wait: after one
beat it claims them too (it is *filling*), until none is free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from locktender.base.errors import InvalidInput
from locktender.base.limits import CLAIM_BATCH
from locktender.base.names import UNLIMITED

LARGE_WORKER = 100
"""From this many permits up, a nearly full worker stops asking; a small one must be able to fill its last."""
NEARLY_FULL = 10
"""Set in: fewer than one in ten permits free."""
ROOM_AGAIN = 5
"""Ended: at least one in five free."""
RELEASE = 0.9
"""Memory and latency let go at 90 % of their threshold."""
BATCHES_OFFERED = 2
"""Batches of offers that a worker without pressure may leave unanswered."""
UNANSWERED = CLAIM_BATCH * BATCHES_OFFERED
"""Offers that it may leave unanswered as shipped."""
TOTAL = "total"
"""The name under which the worker as a whole is nearly full."""


@dataclass(frozen=True, slots=True)
class PressureSignals:
    """Which signals hold the worker back now. Each lets go only well below where it set in."""

    nearly_full: frozenset[str] = frozenset()
    """Kinds of executor, and `total`."""
    memory: bool = False
    latency: bool = False
    idle_since: Mapping[str, int] = field(default_factory=dict[str, int], compare=False)
    """Of nearly full kinds: since when permits of theirs are free and not claimed."""
    filling: frozenset[str] = field(default=frozenset(), compare=False)
    """Kinds that claim their last permits, because these were idle for a beat."""


class Load(msgspec.Struct, frozen=True):
    permits: Mapping[str, int]
    """Per kind of executor that its steps use; −1: unlimited."""
    in_flight: Mapping[str, int] = {}
    total: int = UNLIMITED
    """Permits over all kinds; −1: unlimited."""
    memory: float = 0.0
    """Share of memory in use, 0 to 1."""
    p99_us: int | None = None


class ClaimPolicy(msgspec.Struct, frozen=True):
    batch: int = CLAIM_BATCH
    memory_high: float = 0.8
    latency_threshold_us: int | None = None
    idle_us: int = 2_000_000
    """For how long a nearly full kind leaves free permits unclaimed: one beat."""

    def __post_init__(self) -> None:
        """A threshold below zero would hold a worker back for ever: it is an error, and not a setting."""
        if self.batch < 1:
            raise _wrong("claim_batch", self.batch, "1 or more")
        if not 0.0 <= self.memory_high <= 1.0:
            raise _wrong("memory_high", self.memory_high, "between 0 and 1")
        if self.latency_threshold_us is not None and self.latency_threshold_us < 0:
            raise _wrong("latency_threshold", self.latency_threshold_us, "zero or more, or none")


class Claim(msgspec.Struct, frozen=True):
    size: int
    """How many tasks it would take at this moment."""
    standing: int
    """How many offers it will take until it says otherwise, beside the permits the leader counts."""
    share: int
    """Percent of its permits that it uses under this pressure."""
    felt: PressureSignals
    """Give it back at the next call."""


class _Fullness:
    """Which kinds are nearly full at one call, and which of them fill up all the same."""

    def __init__(self, policy: ClaimPolicy, before: PressureSignals, now: int) -> None:
        self._idle_us = policy.idle_us
        self._before = before
        self._now = now
        self.nearly_full: set[str] = set()
        self.filling: set[str] = set()
        self.idle_since: dict[str, int] = {}

    def holds_back(self, kind: str, permits: int, used: int) -> bool:
        before = self._before
        known = kind in before.nearly_full or kind in before.filling
        if not _nearly_full(permits, used, known):
            return False
        if used < permits:
            since = before.idle_since.get(kind, self._now)
            if kind in before.filling or self._now - since >= self._idle_us:
                self.filling.add(kind)
                return False
            self.idle_since[kind] = since
        self.nearly_full.add(kind)
        return True


def claim_size(load: Load, policy: ClaimPolicy, before: PressureSignals, now: int = 0) -> Claim:
    """What to ask for at `now` (of any clock that does not go back), given the pressure felt at the last call."""
    free = room = 0
    full = _Fullness(policy, before, now)
    for kind, permits in load.permits.items():
        used = load.in_flight.get(kind, 0)
        if permits < 0:
            _refuse_below_unlimited(f"{kind}_permits", permits)
            free += policy.batch
            room += policy.batch * BATCHES_OFFERED
        elif not full.holds_back(kind, permits, used):
            free += max(0, permits - used)
            room += permits
    _refuse_below_unlimited("total_permits", load.total)
    if load.total >= 0:
        used_in_all = sum(load.in_flight.values())
        if full.holds_back(TOTAL, load.total, used_in_all):
            free = room = 0
        free = min(free, load.total - used_in_all)
        room = min(room, load.total)
    felt = PressureSignals(
        frozenset(full.nearly_full),
        _over(load.memory, policy.memory_high, before.memory),
        _over(load.p99_us, policy.latency_threshold_us, before.latency),
        full.idle_since,
        frozenset(full.filling),
    )
    share = _share(felt)
    offered = policy.batch * (BATCHES_OFFERED if share == 100 else 1)
    return Claim(_pressed(free, policy.batch, share), _pressed(room, offered, share), share, felt)


def _pressed(free: int, most: int, percent: int) -> int:
    if free <= 0:
        return 0
    # In hundredths: 0.7 has no exact binary form, and 90 × 0.7 must be 63.
    # Under pressure a free worker still takes one: otherwise two slow tasks could stop it for good.
    return max(1, min(free, most) * percent // 100)


def _share(felt: PressureSignals) -> int:
    return (50 if felt.memory else 100) * (70 if felt.latency else 100) // 100


def _nearly_full(permits: int, used: int, before: bool) -> bool:
    return (
        permits >= LARGE_WORKER
        and (permits - used) * (ROOM_AGAIN if before else NEARLY_FULL) < permits
    )


def _over(value: float | None, threshold: float | None, before: bool) -> bool:
    if value is None or threshold is None:
        return False
    return value > threshold * (RELEASE if before else 1.0)


def _refuse_below_unlimited(name: str, permits: int) -> None:
    if permits < UNLIMITED:
        raise _wrong(name, permits, "zero or more, or -1 for no bound")


def _wrong(name: str, got: float, allowed: str) -> InvalidInput:
    return InvalidInput(
        f"{name} must be {allowed}, not {got}.",
        field=name,
        got=got,
        hint=f"Change or unset {name}.",
    )
