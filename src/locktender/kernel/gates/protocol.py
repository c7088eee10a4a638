"""What admission knows of gates: `Gate`, `SlotGate`, `Block`, and the lanes that wait at them.

A *gate* bounds something: runs, runs with a tag, tasks of a run, items of a window, slots of a
pool, grants per time, permits of workers. A *lane* is a queue of waiters that need the same of
the same gates: if its head is blocked, so are all behind it. A blocked lane is parked at the gate
that blocks it and is looked at again only when that gate opens.

`used` and `cap` are plain numbers so that the hot path compares them without a call. Only a gate
whose answer depends on time (`timed`) is called for every candidate.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from locktender.base.changes import Bucket
from locktender.base.limits import PoolRule

UNBOUNDED: Final = 1 << 62
MAX_COUNTED_AT_ONCE: Final = 8
"""Up to this many waiters are counted directly; looking up a stored count takes longer."""
MAX_COUNTED_SINGLY: Final = 200
Key = tuple[int, int, int, int]
"""Global order: priority, fair turn, age, id. Smaller goes first."""


class Waiter(Protocol):
    """A run or a task in a lane."""

    @property
    def id(self) -> int: ...
    @property
    def rank(self) -> tuple[int, int]:
        """Priority and age, as `kernel.lanes.rank` makes them."""
        ...


class Block(NamedTuple):
    """A gate that does not let a waiter pass now, with its numbers."""

    gate: Gate
    reason: str
    """`full`, `paused`, `reserved` (for a task that was overtaken too often), or the gate's kind."""
    need: int = 1
    used: int = 0
    limit: int = -1
    until: int | None = None
    """The instant at which time alone opens the gate; None where something else has to happen."""
    never: bool = False
    """As limits are now, the gate can never let this waiter pass."""
    kept: int = 0
    """Of `reserved`: the slots that are kept for others."""

    @property
    def name(self) -> str:
        return self.gate.label(self.reason)


class Gate:
    """A bound. `cap` is the limit as the hot path compares it: 0 while paused."""

    __slots__ = ("cap", "kind", "limit", "name", "parked", "paused", "used")

    timed: ClassVar[bool] = False
    """Its answer depends on time: it is asked by `blocks` and charged by `charge` for every waiter."""

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

    def blocks(self, need: int, now: int) -> Block | None:  # noqa: ARG002
        """Why `need` cannot be granted now; None where it can."""
        if self.used + need <= self.cap:
            return None
        if 0 <= self.limit < need:
            return Block(self, "full", need, self.used, self.limit, never=True)
        reason = "paused" if self.paused else "full"
        return Block(self, reason, need, self.used, self.limit)

    def charge(self, need: int, now: int) -> None:  # noqa: ARG002
        """`need` are granted. Only a timed gate is called: of others `used` is raised in place.

        Of a gate in `Lane.gates` `used` has to rise here as well: an end lowers it.
        """
        self.used += need

    def label(self, reason: str = "full") -> str:
        """The name under which events, messages and `why` speak of it."""
        prefix = reason if reason in ("paused", "reserved") else self.kind
        return f"{prefix}:{self.name}"

    def __repr__(self) -> str:
        return f"<{self.kind}:{self.name} {self.used}/{self.limit}>"


class SlotGate(Gate):
    """A gate that a pool's rule sets. Tasks need several slots of several pools at once.

    A task that needs little can start before an earlier one that needs much; admission counts that
    here, and keeps slots for a task that was overtaken too often.
    """

    __slots__ = ("holders", "kept", "line", "wide")

    KIND: ClassVar[str]
    used: int

    def __init__(self, name: str, rule: PoolRule) -> None:  # noqa: ARG002
        super().__init__(self.KIND, name, -1)
        self.holders: dict[int, int] = {}
        """Runs that hold slots of it, and how many."""
        self.wide: dict[Lane[Any], None] = {}
        """Parked lanes that need this gate and can be overtaken: several pools, or several slots."""
        self.kept: dict[Lane[Any], int] = {}
        """Lanes that were overtaken too often, and the slots that are kept for them."""
        self.line: list[tuple[Key, int, Lane[Any]]] = []
        """`wide` as a heap: its first shows whether anybody here was overtaken. Old stamps are void."""

    @classmethod
    def wanted(cls, rule: PoolRule) -> bool:
        """Whether `rule` asks for a gate of this kind."""
        raise NotImplementedError

    def apply(self, rule: PoolRule, now: int) -> bool:
        """Bring `rule` into force; True where the state that is stored has changed with it."""
        raise NotImplementedError

    def idle(self, now: int) -> bool:
        """Forgetting it now would change no decision."""
        raise NotImplementedError

    def dump(self) -> Bucket | None:
        """What it has granted, as it is stored; None where the tasks' own rows tell it."""
        return None

    def restore(self, bucket: Bucket) -> None:
        """As `dump` stored it, at the beginning of a term."""

    def move(self, by_us: int) -> None:
        """The clock was set by so much: what depends on time moves with it."""

    def bound_debt(self, now: int) -> None:
        """The clock may have been set back since it was stored: it owes no more than it can."""


class WaitClock(msgspec.Struct, frozen=True, gc=False):
    """How long a lane has waited at each gate. Replaced, never changed: a waiter keeps the one it joined at."""

    totals: dict[str, int]
    """Gates that the lane waited at before, by name: microseconds."""
    gate: str
    """The one it waits at now; empty: it was not blocked yet."""
    since: int


NO_WAIT: Final = WaitClock({}, "", 0)

W = TypeVar("W", bound=Waiter)


class Lane(Generic[W]):
    """Waiters that need the same of the same gates, in order."""

    __slots__ = (
        "_added",
        "_counted",
        "_counted_at",
        "bypassed",
        "clock",
        "entries",
        "fair",
        "gates",
        "key",
        "live",
        "name",
        "needs",
        "parked_at",
        "slots",
        "stamp",
        "waiting_since_bypass",
        "wide",
        "worker_gate",
    )

    def __init__(
        self,
        key: object,
        gates: tuple[Gate, ...],
        needs: tuple[tuple[SlotGate, int], ...] = (),
        worker_gate: Gate | None = None,
        fair: str | None = None,
    ) -> None:
        self.key: object = key
        self.gates: tuple[Gate, ...] = gates
        """Gates of which each waiter needs one."""
        self.worker_gate: Gate | None = worker_gate
        self.fair: str | None = fair
        self.set_needs(needs)
        self.entries: list[tuple[tuple[int, int], int, int, W]] = []
        """By rank and id; a number tells what was removed from what came back in the same place."""
        self._added = 0
        self._counted: dict[tuple[tuple[int, int], int], int] = {}
        """What was counted since it changed last: one answer asks several times."""
        self._counted_at: tuple[int, int] = (0, 0)
        self.live: dict[int, W] = {}
        self.parked_at: Gate | None = None
        self.clock: WaitClock = NO_WAIT
        self.name: str = ""
        """As events call it; made when it is needed (`wait_times.lane_name`)."""
        self.stamp: int = 0
        """Entries of gates' heaps that carry an older stamp are void."""
        self.bypassed: int = 0
        """How often a later task that shares a pool started while pools alone blocked this lane."""
        self.waiting_since_bypass: dict[int, int] = {}
        """Waiter → `bypassed` when it joined: the difference is how often it was itself overtaken."""

    def set_needs(self, needs: tuple[tuple[SlotGate, int], ...]) -> None:
        self.needs: tuple[tuple[SlotGate, int], ...] = needs
        """Gates of which each waiter needs several slots, in the order in which they are asked."""
        self.slots: tuple[tuple[SlotGate, int], ...] = needs
        """Of these, what a waiter that has started holds until it ends."""
        self.wide: bool = False
        if needs:
            if any(gate.timed for gate, _ in needs):
                self.slots = tuple(each for each in needs if not each[0].timed)
            self.wide = len(self.slots) > 1 or any(need > 1 for _, need in needs)

    def add(self, waiter: W) -> None:
        self._added += 1
        heappush(self.entries, (waiter.rank, waiter.id, self._added, waiter))
        self.live[waiter.id] = waiter
        if self.wide:
            self.waiting_since_bypass[waiter.id] = self.bypassed

    def discard(self, waiter: W) -> None:
        # The heap drops it when it comes to the top: removal costs nothing now.
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
        del self.live[waiter.id]
        if self.wide:
            self.waiting_since_bypass.pop(waiter.id, None)
        return waiter

    def before(self, rank: tuple[int, int], number: int) -> int:
        """How many of its waiters stand before this rank and id."""
        place: tuple[Any, ...] = rank, number
        if len(self.entries) == len(self.live) <= MAX_COUNTED_AT_ONCE:
            return sum(map(place.__gt__, self.entries))
        changes = (self._added, len(self.live))
        if self._counted_at != changes:
            self._counted_at, self._counted = changes, {}
        known = self._counted
        if place not in known:
            known[place] = self._count(place)
        return known[place]

    def _count(self, own: tuple[Any, ...]) -> int:
        # Mostly the first of a lane are asked about, and counted one by one; of others all are, in one call.
        found = 0
        for found, waiter in enumerate(self.in_order()):
            if (waiter.rank, waiter.id) >= own:
                return found
            if found >= MAX_COUNTED_SINGLY:
                break
        else:
            return len(self.live)
        if len(self.entries) == len(self.live):
            return sum(map(own.__gt__, self.entries))
        return sum((each.rank, each.id) < own for each in self.live.values())

    def in_order(self) -> Iterator[W]:
        """Its waiters, the first first; each costs the same, however many wait behind it."""
        entries, seen = self.entries, set[int]()
        front = [(entries[0], 0)] if entries else []
        while front:
            entry, place = heappop(front)
            waiter = entry[3]
            here = self.live.get(waiter.id) is waiter and entry[0] == waiter.rank
            if here and waiter.id not in seen:
                seen.add(waiter.id)
                yield waiter
            for below in range(2 * place + 1, min(2 * place + 3, len(entries))):
                heappush(front, (entries[below], below))

    @property
    def possible(self) -> bool:
        """Its pools, were they empty, would let it pass: none is paused, none smaller than its need."""
        return all(need <= gate.cap for gate, need in self.needs)

    def overtaken(self, waiter: W) -> int:
        return self.bypassed - self.waiting_since_bypass.get(waiter.id, self.bypassed)

    def __len__(self) -> int:
        return len(self.live)
