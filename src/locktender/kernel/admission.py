"""The board: one admission path for runs and for tasks.

`decide` walks lanes in global order and starts every head that passes all its
gates; nothing is charged before all of them agreed. The walk touches only
lanes that are new or whose gate has opened since: its cost grows with what
changed, not with what waits.

Nobody starves. A waiter that needs much can be overtaken by later ones that
need little; after `max_bypass` such starts its slots are reserved: later
tasks see the pool smaller by what it needs, until it has started.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Generic, TypeVar

from locktender.kernel.fair_turns import Turns
from locktender.kernel.gates import UNBOUNDED, Gate, Key, Lane, PoolGate, Waiter

W = TypeVar("W", bound=Waiter)

Source = tuple[Gate, int] | None
"""The gate (and how much of it) a lane was parked for: when it has been looked at, the next one comes."""


class AdmissionQueue(Generic[W]):
    def __init__(self) -> None:
        self.lanes: dict[object, Lane[W]] = {}
        self.turns: Turns = Turns()
        self._max_bypass = 16
        self.reserved: dict[Lane[W], W] = {}
        self.reservations_changed: bool = False
        self.found_blocked: list[tuple[Lane[W], W, Gate, str]] = []
        """Lanes newly parked in this decision, with the gate and its reason: what *waiting* events tell."""
        self._front: list[tuple[Key, int, int, Lane[W], Source]] = []
        self._opened: dict[Gate, None] = {}
        self._timed: list[tuple[int, int, PoolGate]] = []
        self._serial = 0
        self._stamps = 0

    @property
    def max_bypass(self) -> int:
        return self._max_bypass

    @max_bypass.setter
    def max_bypass(self, most: int) -> None:
        if most != self._max_bypass:
            self._max_bypass = most
            for lane in self.lanes.values():
                self._reserve_if_overdue(lane)

    # -- what changed ------------------------------------------------------------------------------

    def add(self, waiter: W, lane: Lane[W]) -> None:
        """`waiter` stands in line. A parked lane is looked at again only if its head has changed."""
        head = lane.head()
        lane.add(waiter)
        known = self.lanes.get(lane.key)
        if known is None:
            self.lanes[lane.key] = lane
            self._push(lane, None)
        elif head is None or (waiter.rank, waiter.id) < (head.rank, head.id):
            self._push(lane, None)

    def remove(self, waiter: W, lane: Lane[W]) -> None:
        lane.discard(waiter)
        if self.reserved.get(lane) is waiter:
            self._drop_reservation(lane)
        if not lane.live:
            self._forget(lane)
        elif lane.wide:
            # Whoever comes to its head may have been overtaken as often.
            self._reserve_if_overdue(lane)

    def opened(self, gate: Gate) -> None:
        """`gate` has more room than before (a release, a raised limit, a resumed pool, a free permit)."""
        if gate.parked:
            self._opened[gate] = None

    def recheck(self) -> None:
        """Every lane is looked at again: for changes that concern all of them."""
        for lane in self.lanes.values():
            self._push(lane, None)

    # -- deciding ----------------------------------------------------------------------------------

    def decide(
        self,
        now: int,
        budget: int,
        place: Callable[[Lane[W], W], object | None] | None = None,
    ) -> Iterator[tuple[W, object | None]]:
        """Yields what starts now, already charged, in global order; at most `budget`.

        `place` names where it goes, or None where no worker can take it: the last gate of all.
        """
        self.found_blocked.clear()
        while self._timed and self._timed[0][0] <= now:
            gate = heappop(self._timed)[2]
            self._opened[gate] = None
        for gate in self._opened:
            for need in list(gate.parked):
                self._pull(gate, need)
        self._opened.clear()
        front = self._front
        while budget > 0 and front:
            key, _, stamp, lane, source = heappop(front)
            if lane.stamp != stamp:
                self._next(source)
                continue
            head = lane.head()
            if head is None:
                self._forget(lane)
                self._next(source)
                continue
            actual = self.key(lane, head)
            if actual > key:
                # Its turn moved on, or its head left: back in line with the true key.
                self._requeue(lane, head, source)
                continue
            while True:
                gate, reason, target = self._try(lane, head, now, place)
                if gate is not None:
                    self._park(lane, head, gate, reason)
                    # Parked where it came from: who waits there for as much, behind it, is blocked too.
                    if source is None or source[0] is not gate:
                        self._next(source)
                    break
                self._start(lane, head, actual, now)
                budget -= 1
                yield head, target
                # Whoever waited behind it at the gate that opened may stand before this lane's next.
                self._next(source)
                source = None
                head = lane.head()
                if head is None:
                    self._forget(lane)
                    break
                actual = self.key(lane, head)
                if budget <= 0 or (front and front[0][0] < actual):
                    self._push(lane, None)
                    break

    def _try(
        self,
        lane: Lane[W],
        head: W,
        now: int,
        place: Callable[[Lane[W], W], object | None] | None,
    ) -> tuple[Gate | None, str, object | None]:
        """(the gate that blocks, its reason, where it goes): nothing is charged before all agreed."""
        gate, reason = self.blocked_by(lane, head, now)
        if gate is not None or place is None:
            return gate, reason, None
        target = place(lane, head)
        if target is None:
            return lane.station, "worker", None
        return None, "", target

    def _start(self, lane: Lane[W], head: W, key: Key, now: int) -> None:
        self.charge(lane, now)
        if lane.pools:
            self._count_bypass(lane, key)
        lane.pop()
        if self.reserved and self.reserved.get(lane) is head:
            self._drop_reservation(lane)
        self.turns.took(lane.fair)

    def key(self, lane: Lane[W], waiter: W) -> Key:
        # Asked several times per decision: the turn is read without a call.
        rank, turns = waiter.rank, self.turns
        if turns.fair is None:
            return (rank[0], 0, rank[1], waiter.id)
        turn = turns.present
        if lane.fair is not None:
            own = turns.clock.get(lane.fair, 0)
            if own > turn:
                turn = own
        return (rank[0], turn, rank[1], waiter.id)

    def blocked_by(self, lane: Lane[W], waiter: W, now: int) -> tuple[Gate | None, str]:
        """The first gate that blocks `waiter` (not the worker's), and the reason's name."""
        for gate in lane.gates:
            if gate.used >= gate.cap:
                return gate, "full"
        for pool, slots in lane.pools:
            if pool.used + slots > pool.cap:
                return pool, "paused" if pool.paused else "full"
            if pool.rate is not None and pool.granted_at(slots) > now:
                return pool, "rate"
            if pool.kept and self.kept_from(pool, lane, waiter, slots, now):
                return pool, "reserved"
        return None, ""

    def kept_from(self, pool: PoolGate, lane: Lane[W], waiter: W, slots: int, now: int) -> int:
        """Slots of `pool` that are kept for others and that `waiter` would take away; 0 if it may go.

        They are kept for whoever stands before it in global order, was overtaken too often and waits
        for pools alone. For one who waits for a worker, a window or a pause to end nothing is kept: it
        could not use it, and the pool would stand empty.
        """
        own = self.key(lane, waiter)
        room = pool.cap - pool.used - slots
        kept = tokens = 0
        for other, need in pool.kept.items():
            holder = self.reserved.get(other)
            if (
                other is lane
                or holder is None
                or self.key(other, holder) >= own
                or not self.waits_for_pools(other)
            ):
                continue
            kept += need
            tokens += need if other.parked_at is pool else 0
            # As soon as it is too much the rest need not be looked at.
            if kept > room or (pool.rate is not None and pool.granted_at(slots + tokens) > now):
                return kept
        return 0

    def waits_for_pools(self, lane: Lane[W]) -> bool:
        """Pools alone block this lane, and could let it go: nothing else would stop its head."""
        parked = lane.parked_at
        return (
            isinstance(parked, PoolGate)
            and lane.possible
            and all(gate.used < gate.cap for gate in lane.gates)
            and (lane.station is None or lane.station.room > 0)
        )

    def charge(self, lane: Lane[W], now: int) -> None:
        for gate in lane.gates:
            gate.used += 1
        for pool, slots in lane.pools:
            pool.used += slots
            pool.spend(slots, now)

    def release(self, gates: tuple[Gate, ...], pools: tuple[tuple[PoolGate, int], ...]) -> None:
        for gate in gates:
            gate.used -= 1
            if gate.parked:
                self._opened[gate] = None
        for pool, slots in pools:
            pool.used -= slots
            if pool.parked:
                self._opened[pool] = None

    @property
    def unfinished(self) -> bool:
        """The last decision stopped at its budget: another cycle has work at once."""
        return bool(self._front or self._opened)

    def next_wake(self) -> int | None:
        """When a rate lets the next waiter go."""
        return self._timed[0][0] if self._timed else None

    # -- lines -------------------------------------------------------------------------------------

    def _push(self, lane: Lane[W], source: Source) -> None:
        head = lane.head()
        if head is None:
            self._forget(lane)
            self._next(source)
            return
        self._unpark(lane)
        self._stamps += 1
        lane.stamp = self._stamps
        self._serial += 1
        heappush(self._front, (self.key(lane, head), self._serial, lane.stamp, lane, source))

    def _pull(self, gate: Gate, need: int) -> None:
        """Bring the first lane that waits for `need` of `gate` to the front, if there is that much."""
        heap = gate.parked.get(need)
        if heap is None:
            return
        while heap:
            key, stamp, lane = heap[0]
            head = lane.head() if lane.stamp == stamp else None
            if head is None:
                heappop(heap)
            elif (actual := self.key(lane, head)) > key:
                # Turns have moved on since it was parked: the true first must be found before it goes.
                heapreplace(heap, (actual, stamp, lane))
            else:
                break
        if heap and gate.room >= need:
            self._push(heappop(heap)[2], (gate, need))
        if not heap:
            del gate.parked[need]

    def _next(self, source: Source) -> None:
        if source is not None:
            self._pull(*source)

    def _requeue(self, lane: Lane[W], head: W, source: Source) -> None:
        if source is None:
            self._push(lane, None)
            return
        self._wait_at(lane, head, *source)
        self._pull(*source)

    def _park(self, lane: Lane[W], head: W, gate: Gate, reason: str) -> None:
        need = 1
        for pool, slots in lane.pools:
            if pool is gate:
                need = slots
        if reason == "rate" and isinstance(gate, PoolGate):
            at = gate.granted_at(need)
            if at < UNBOUNDED:
                self._serial += 1
                heappush(self._timed, (at, self._serial, gate))
        self._wait_at(lane, head, gate, need)
        self.found_blocked.append((lane, head, gate, reason))

    def _wait_at(self, lane: Lane[W], head: W, gate: Gate, need: int) -> None:
        self._stamps += 1
        lane.stamp = self._stamps
        lane.parked_at = gate
        heappush(gate.parked.setdefault(need, []), (self.key(lane, head), lane.stamp, lane))
        if self.reserved.get(lane) is head:
            # Its count is complete. Parked where no pool can help, what was kept for it is free meanwhile.
            if not isinstance(gate, PoolGate):
                self._open_pools(lane)
        elif lane.wide and isinstance(gate, PoolGate):
            for pool, _ in lane.pools:
                pool.wide[lane] = None
                if len(pool.line) > 2 * len(pool.wide) + 64:
                    pool.line = [each for each in pool.line if each[2].stamp == each[1]]
                    heapify(pool.line)
                heappush(pool.line, (self.key(lane, head), lane.stamp, lane))
            self._reserve_if_overdue(lane)

    def _unpark(self, lane: Lane[W]) -> None:
        lane.parked_at = None
        if lane.wide:
            for pool, _ in lane.pools:
                pool.wide.pop(lane, None)

    def _forget(self, lane: Lane[W]) -> None:
        self._unpark(lane)
        self._stamps += 1
        lane.stamp = self._stamps
        if lane in self.reserved:
            self._drop_reservation(lane)
        if self.lanes.get(lane.key) is lane:
            del self.lanes[lane.key]

    # -- nobody starves ----------------------------------------------------------------------------

    def _count_bypass(self, lane: Lane[W], key: Key) -> None:
        """`lane`'s head starts: whoever stands before it, shares a pool and waits for pools alone is bypassed."""
        seen: set[Lane[W]] = set()
        for pool, _ in lane.pools:
            if not self._anybody_before(pool, key):
                continue
            for other in pool.wide:
                head = None if other is lane or other in seen else other.head()
                if head is None or self.key(other, head) >= key or not self.waits_for_pools(other):
                    continue
                seen.add(other)
                other.bypassed += 1
        for other in seen:
            self._reserve_if_overdue(other)

    def _anybody_before(self, pool: PoolGate, key: Key) -> bool:
        """Whether a lane that waits for `pool` stands before `key`: most starts overtake nobody."""
        line = pool.line
        while line and line[0][0] < key:
            _, stamp, lane = line[0]
            head = lane.head() if lane.stamp == stamp else None
            if head is None:
                heappop(line)
            elif (actual := self.key(lane, head)) > line[0][0]:
                heapreplace(line, (actual, stamp, lane))
            else:
                return True
        return False

    def _reserve_if_overdue(self, lane: Lane[W]) -> None:
        """A lane that waits for a pool and has been overtaken often enough: its slots are kept from here on."""
        if not lane.wide or not isinstance(lane.parked_at, PoolGate):
            return
        head = lane.head()
        # A new head may have come before the one that holds the lane's reservation.
        if head is None or self.reserved.get(lane) is head:
            return
        if lane.overtaken(head) >= self._max_bypass:
            self.reserve(lane, head)

    def reserve(self, lane: Lane[W], head: W) -> None:
        """From here on the slots that `head` needs are kept for it; it is counted no further."""
        self.reserved[lane] = head
        self.reservations_changed = True
        for pool, slots in lane.pools:
            pool.wide.pop(lane, None)
            pool.kept[lane] = slots

    def _drop_reservation(self, lane: Lane[W]) -> None:
        del self.reserved[lane]
        self.reservations_changed = True
        for pool, _ in lane.pools:
            pool.kept.pop(lane, None)
        self._open_pools(lane)

    def _open_pools(self, lane: Lane[W]) -> None:
        for pool, _ in lane.pools:
            self.opened(pool)

    def reconsider(self) -> None:
        """Once a second: who was held back for a reservation that has lost its point is looked at again.

        A worker that left or a window that filled up takes it away without any gate having opened.
        """
        for lane in self.reserved:
            self._open_pools(lane)
