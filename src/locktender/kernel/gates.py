"""Gates and lanes: who holds how much of what, and who waits where.

A *gate* bounds something countable: runs, runs with a tag, tasks of a run,
items of a window, slots of a pool, permits of workers. A *lane* is a line of
waiters that need exactly the same of the same gates, so that only its head is
ever looked at: if the head is blocked, so are all behind it. A blocked lane is
parked under the gate that blocks it and touched again only when that gate opens.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any, Final, Generic, Protocol, TypeVar

from locktender.base.limits import PoolRule, Rate

UNBOUNDED: Final = 1 << 62
Key = tuple[int, int, int, int]
"""Global order: priority, fair turn, age, id. Smaller goes first."""


class Waiter(Protocol):
    """What stands in a lane."""

    @property
    def id(self) -> int: ...
    @property
    def rank(self) -> tuple[int, int]:
        """Priority and age, as `kernel.lanes.rank` makes them."""
        ...


class Gate:
    """A bound on a count. `cap` is the limit as the hot path compares it; 0 while paused."""

    __slots__ = ("cap", "kind", "limit", "name", "parked", "paused", "used")

    def __init__(self, kind: str, name: str, limit: int) -> None:
        self.kind: str = kind
        self.name: str = name
        self.used: int = 0
        self.parked: dict[int, list[tuple[Key, int, Lane[Any]]]] = {}
        """Lanes that wait here, by how much they need: a heap for each."""
        self.set(limit)

    def set(self, limit: int, *, paused: bool = False) -> None:
        self.limit: int = limit
        self.paused: bool = paused
        self.cap: int = 0 if paused else (UNBOUNDED if limit < 0 else limit)

    @property
    def room(self) -> int:
        return self.cap - self.used

    def __repr__(self) -> str:
        return f"<{self.kind}:{self.name} {self.used}/{self.limit}>"


class PoolGate(Gate):
    """Slots of a shared resource, and the rate at which they may be granted."""

    __slots__ = ("kept", "lease_us", "line", "rate", "tat", "wide")

    def __init__(self, name: str, rule: PoolRule | None) -> None:
        super().__init__("pool", name, -1)
        self.lease_us: int | None = None
        self.rate: Rate | None = None
        self.tat: int = 0
        """When the bucket is full again, in units of 1 / rate.count microseconds: integers stay exact."""
        self.wide: dict[Lane[Any], None] = {}
        """Parked lanes that need this pool and could be overtaken: several pools, or several slots."""
        self.kept: dict[Lane[Any], int] = {}
        """Lanes that were overtaken too often, and the slots that are to be kept for them."""
        self.line: list[tuple[Key, int, Lane[Any]]] = []
        """The same as a heap: its first tells at once that nobody here was overtaken. Old stamps are void."""
        self.apply(rule, 0)

    def apply(self, rule: PoolRule | None, now: int = 0) -> bool:
        """Bring `rule` into force; True where its rate changed, and with it the bucket."""
        rule = rule or PoolRule()
        self.set(rule.limit, paused=rule.paused)
        self.lease_us = rule.lease_us
        if rule.rate == self.rate:
            return False
        owed = self.owed(now)
        self.rate = rule.rate
        # What was taken and not yet paid for is owed under the new rate too, at its pace.
        new = rule.rate
        self.tat = 0 if new is None else now * new.count + min(owed, new.burst) * new.per_us
        return True

    def owed(self, now: int) -> int:
        """Grants that the bucket still has to make up for, rounded to the safe side."""
        if self.rate is None:
            return 0
        return max(0, -(-(self.tat - now * self.rate.count) // self.rate.per_us))

    @property
    def stored_tat(self) -> int:
        """The bucket in whole microseconds, rounded to the safe side."""
        return 0 if self.rate is None else -(-self.tat // self.rate.count)

    def restore(self, tat: int, rate: Rate | None) -> None:
        self.rate = rate
        self.tat = 0 if rate is None else tat * rate.count

    def granted_at(self, slots: int) -> int:
        """The earliest instant at which the rate lets `slots` go (in the past: now; `UNBOUNDED`: never)."""
        if self.rate is None:
            return 0
        rate = self.rate
        if slots > rate.burst:
            return UNBOUNDED
        return -(-(self.tat + (slots - rate.burst) * rate.per_us) // rate.count)

    def spend(self, slots: int, now: int) -> None:
        if self.rate is not None:
            self.tat = max(self.tat, now * self.rate.count) + slots * self.rate.per_us


W = TypeVar("W", bound=Waiter)


class Lane(Generic[W]):
    """Waiters that need the same of the same gates, in order."""

    __slots__ = (
        "_added",
        "bypassed",
        "entries",
        "fair",
        "gates",
        "key",
        "live",
        "parked_at",
        "pools",
        "stamp",
        "station",
        "waiting_since_bypass",
        "wide",
    )

    def __init__(
        self,
        key: object,
        gates: tuple[Gate, ...],
        pools: tuple[tuple[PoolGate, int], ...] = (),
        station: Gate | None = None,
        fair: str | None = None,
    ) -> None:
        self.key: object = key
        self.gates: tuple[Gate, ...] = gates
        self.pools: tuple[tuple[PoolGate, int], ...] = pools
        self.station: Gate | None = station
        self.fair: str | None = fair
        self.wide: bool = len(pools) > 1 or any(slots > 1 for _, slots in pools)
        self.entries: list[tuple[tuple[int, int], int, int, W]] = []
        """By rank and id; a number tells what was removed from what came back in the same place."""
        self._added = 0
        self.live: dict[int, W] = {}
        self.parked_at: Gate | None = None
        self.stamp: int = 0
        """Entries of gates' heaps that carry an older stamp are void."""
        self.bypassed: int = 0
        """How often a later task that shares a pool started while pools alone blocked this lane."""
        self.waiting_since_bypass: dict[int, int] = {}
        """Waiter → `bypassed` when it joined: what it was itself overtaken by is the difference."""

    def add(self, waiter: W) -> None:
        self._added += 1
        heappush(self.entries, (waiter.rank, waiter.id, self._added, waiter))
        self.live[waiter.id] = waiter
        if self.wide:
            self.waiting_since_bypass[waiter.id] = self.bypassed

    def discard(self, waiter: W) -> None:
        # The heap forgets it when it comes to the top: removal costs nothing now.
        self.live.pop(waiter.id, None)
        self.waiting_since_bypass.pop(waiter.id, None)

    def head(self) -> W | None:
        entries = self.entries
        while entries:
            waiter = entries[0][3]
            if self.live.get(waiter.id) is waiter:
                return waiter
            heappop(entries)
        return None

    def pop(self) -> W:
        waiter = heappop(self.entries)[3]
        self.discard(waiter)
        return waiter

    @property
    def possible(self) -> bool:
        """Its pools, were they empty, would let it go: none is paused, none smaller than its need."""
        return all(
            slots <= pool.cap and (pool.rate is None or slots <= pool.rate.burst)
            for pool, slots in self.pools
        )

    def overtaken(self, waiter: W) -> int:
        return self.bypassed - self.waiting_since_bypass.get(waiter.id, self.bypassed)

    def __len__(self) -> int:
        return len(self.live)
