"""Admission: one path for runs and for tasks, through every gate they need.

`decide` walks lanes in global order and starts every head that passes all its
gates; nothing is charged before all of them agreed. The walk touches only
lanes that are new or whose gate has opened since: its cost grows with what
changed, not with what waits.

`blocks` is the one rule: deciding takes the first block, explaining lists all.

No task starves. A task that needs much can be overtaken by later ones that
need little; after `max_bypass` such starts its slots are reserved: later
tasks see the pool smaller by what it needs, until it has started.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Generic, TypeVar

from locktender.kernel.fair_turns import Turns
from locktender.kernel.gates.protocol import NO_WAIT, Block, Gate, Key, Lane, SlotGate, Waiter

W = TypeVar("W", bound=Waiter)

Source = tuple[Gate, int] | None
"""The gate (and how much of it) a lane was parked for: when it has been looked at, the next one comes."""


class AdmissionQueue(Generic[W]):
    """Lanes of waiters, in one global order."""

    def __init__(self) -> None:
        self.lanes: dict[object, Lane[W]] = {}
        self.turns: Turns = Turns()
        self._max_bypass = 16
        self.reserved: dict[Lane[W], W] = {}
        self.reservations_changed: bool = False
        self.found_blocked: list[tuple[Lane[W], W, Block]] = []
        """Lanes newly parked in this decision, with the block: what *waiting* events say."""
        self._front: list[tuple[Key, int, int, Lane[W], Source]] = []
        self._opened: dict[Gate, None] = {}
        self._full = False
        self._timed: list[tuple[int, int, Gate]] = []
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
            # The next head of the lane may have been overtaken as often.
            self._reserve_if_overdue(lane)

    def opened(self, gate: Gate) -> None:
        """`gate` has more room than before (a release, a raised limit, a resumed pool, a free permit)."""
        if gate.parked:
            self._opened[gate] = None

    def end_cycle(self) -> None:
        """Called between two starts: the rest is decided in the next cycle."""
        self._full = True

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
        self._full = False
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
                block, target = self._try(lane, head, now, place)
                if block is not None:
                    self._park(lane, head, block)
                    # Parked where it came from: lanes behind it that need as much there are blocked too.
                    if source is None or source[0] is not block.gate:
                        self._next(source)
                    break
                self._start(lane, head, actual, now)
                yield head, target
                budget = 0 if self._full else budget - 1
                if source is not None:
                    # A lane behind it at the gate that opened may stand before this lane's next waiter.
                    self._pull(*source)
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
    ) -> tuple[Block | None, object | None]:
        """(the first block, the worker it goes to): nothing is charged before all gates agreed."""
        if not self._counts_agree(lane):
            block = next(self.blocks(lane, head, now, worker=False), None)
            if block is not None:
                return block, None
        if place is None:
            return None, None
        target = place(lane, head)
        if target is None and lane.worker_gate is not None:
            return lane.worker_gate.blocks(1, now), None
        return None, target

    def _counts_agree(self, lane: Lane[W]) -> bool:
        """Whether the numbers alone let the lane's head pass, as `Gate.blocks` would: it spares most calls."""
        for gate in lane.gates:
            if gate.used >= gate.cap or gate.timed:
                return False
        for gate, need in lane.needs:  # noqa: SIM110 — a generator here costs more than the loop
            if gate.used + need > gate.cap or gate.timed or gate.kept:
                return False
        return True

    def _start(self, lane: Lane[W], head: W, key: Key, now: int) -> None:
        self.charge(lane, now)
        if lane.needs:
            self._count_bypass(lane, key)
        lane.pop()
        if self.reserved and self.reserved.get(lane) is head:
            self._drop_reservation(lane)
        self.turns.advance(lane.fair)

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

    def blocks(self, lane: Lane[W], waiter: W, now: int, *, worker: bool = True) -> Iterator[Block]:
        """Every gate that blocks `waiter` now, in the order in which deciding asks them."""
        for gate in lane.gates:
            if (block := gate.blocks(1, now)) is not None:
                yield block
        for gate, need in lane.needs:
            block = gate.blocks(need, now)
            if block is None and gate.kept:
                block = self._reserved_for_others(gate, lane, waiter, need, now)
            if block is not None:
                yield block
        if worker and lane.worker_gate is not None:
            block = lane.worker_gate.blocks(1, now)
            if block is not None:
                yield block

    def _reserved_for_others(
        self, gate: SlotGate, lane: Lane[W], waiter: W, need: int, now: int
    ) -> Block | None:
        kept = 0
        for _, slots in self.kept_for_others(gate, lane, waiter, self.key):
            kept += slots
            if gate.blocks(need + kept, now) is not None:
                return Block(gate, "reserved", need, gate.used, gate.limit, kept=kept)
        return None

    def kept_for_others(
        self, gate: SlotGate, lane: Lane[W], waiter: W, key: Callable[[Lane[W], W], Key]
    ) -> Iterator[tuple[Lane[W], int]]:
        """Lanes for which slots of `gate` are kept from `waiter`, and how many; `key`: the order of decision.

        They are kept for tasks before it that were overtaken too often and wait for pools alone. For a task that
        waits for a worker, a window or the end of a pause nothing is kept: the pool would stand empty.
        """
        own = key(lane, waiter)
        for other, slots in gate.kept.items():
            holder = self.reserved.get(other)
            if (
                other is not lane
                and holder is not None
                and key(other, holder) < own
                and self.waits_for_pools(other)
                # What a timed gate grants comes back by itself while the other waits elsewhere.
                and not (gate.timed and other.parked_at is not gate)
            ):
                yield other, slots

    def waits_for_pools(self, lane: Lane[W]) -> bool:
        """Pools alone block this lane, and could let it pass: nothing else would stop its head."""
        return (
            isinstance(lane.parked_at, SlotGate)
            and lane.possible
            and all(gate.used < gate.cap for gate in lane.gates)
            and (lane.worker_gate is None or lane.worker_gate.room > 0)
        )

    def charge(self, lane: Lane[W], now: int) -> None:
        for gate in lane.gates:
            if gate.timed:
                gate.charge(1, now)
            else:
                gate.used += 1
        for gate, need in lane.needs:
            if gate.timed:
                gate.charge(need, now)
            else:
                gate.used += need

    def release(self, gates: tuple[Gate, ...], slots: tuple[tuple[SlotGate, int], ...]) -> None:
        for gate in gates:
            gate.used -= 1
            if gate.parked:
                self._opened[gate] = None
        for gate, need in slots:
            gate.used -= need
            if gate.parked:
                self._opened[gate] = None

    def set_needs(self, lane: Lane[W], needs: tuple[tuple[SlotGate, int], ...]) -> None:
        """A pool of this lane has another set of gates now (a rate was set or taken away)."""
        self._unpark(lane)
        for gate, _ in lane.needs:
            gate.kept.pop(lane, None)
        lane.set_needs(needs)
        if (head := self.reserved.get(lane)) is not None:
            self.reserve(lane, head)
        self._push(lane, None)

    @property
    def unfinished(self) -> bool:
        """The last decision stopped at its budget: another cycle has work at once."""
        return bool(self._front or self._opened)

    def next_wake(self) -> int | None:
        """When time alone lets the next waiter pass."""
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
        else:
            self._wait_at(lane, head, *source)
            self._pull(*source)

    def _park(self, lane: Lane[W], head: W, block: Block) -> None:
        if block.until is not None:
            self._serial += 1
            heappush(self._timed, (block.until, self._serial, block.gate))
        self._wait_at(lane, head, block.gate, block.need)
        self.found_blocked.append((lane, head, block))

    def _wait_at(self, lane: Lane[W], head: W, gate: Gate, need: int) -> None:
        self._stamps += 1
        lane.stamp = self._stamps
        lane.parked_at = gate
        heappush(gate.parked.setdefault(need, []), (self.key(lane, head), lane.stamp, lane))
        if self.reserved.get(lane) is head:
            # Its count is complete. Parked where no pool can help, what was kept for it is free meanwhile.
            if not isinstance(gate, SlotGate):
                self._open_pools(lane)
        elif lane.wide and isinstance(gate, SlotGate):
            for pool, _ in lane.needs:
                pool.wide[lane] = None
                if len(pool.line) > 2 * len(pool.wide) + 64:
                    pool.line = [each for each in pool.line if each[2].stamp == each[1]]
                    heapify(pool.line)
                heappush(pool.line, (self.key(lane, head), lane.stamp, lane))
            self._reserve_if_overdue(lane)

    def _unpark(self, lane: Lane[W]) -> None:
        lane.parked_at = None
        if lane.wide:
            for pool, _ in lane.needs:
                pool.wide.pop(lane, None)

    def _forget(self, lane: Lane[W]) -> None:
        self._unpark(lane)
        lane.clock = NO_WAIT
        self._stamps += 1
        lane.stamp = self._stamps
        if lane in self.reserved:
            self._drop_reservation(lane)
        if self.lanes.get(lane.key) is lane:
            del self.lanes[lane.key]

    # -- bypass and reservation ----------------------------------------------------------------------------

    def _count_bypass(self, lane: Lane[W], key: Key) -> None:
        """`lane`'s head starts: each head before it that shares a pool and waits for pools alone is bypassed."""
        seen: set[Lane[W]] = set()
        for pool, _ in lane.needs:
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

    def _anybody_before(self, pool: SlotGate, key: Key) -> bool:
        """Whether a lane that waits for `pool` stands before `key`: most starts overtake no waiter."""
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
        head = lane.head() if lane.wide and isinstance(lane.parked_at, SlotGate) else None
        # A new head may have come before the one that holds the lane's reservation.
        if head is None or self.reserved.get(lane) is head:
            return
        if lane.overtaken(head) >= self._max_bypass:
            self.reserve(lane, head)

    def reserve(self, lane: Lane[W], head: W) -> None:
        """From here on the slots that `head` needs are kept for it; it is counted no further."""
        self.reserved[lane] = head
        self.reservations_changed = True
        for pool, slots in lane.needs:
            pool.wide.pop(lane, None)
            pool.kept[lane] = slots

    def _drop_reservation(self, lane: Lane[W]) -> None:
        del self.reserved[lane]
        self.reservations_changed = True
        for pool, _ in lane.needs:
            pool.kept.pop(lane, None)
        self._open_pools(lane)

    def _open_pools(self, lane: Lane[W]) -> None:
        for pool, _ in lane.needs:
            self.opened(pool)

    def reconsider(self) -> None:
        """Once a second: lanes that a reservation without need holds back are examined again.

        A worker that left or a window that filled up takes it away without any gate having opened.
        """
        for lane in self.reserved:
            self._open_pools(lane)
