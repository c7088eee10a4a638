"""The admission queue: order, fair turns, blocked waiters are skipped, and none starves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from locktender.base.limits import Fair, PoolRule, Rate
from locktender.kernel.admission import AdmissionQueue
from locktender.kernel.gates.count import CountGate
from locktender.kernel.gates.pool import PoolGate
from locktender.kernel.gates.protocol import Block, Gate, Lane, SlotGate
from locktender.kernel.gates.rate import RateGate

NOW = 10**15


@dataclass(eq=False)
class Waiting:
    id: int
    rank: tuple[int, int]


class Line:
    """An admission queue with lanes by name, and what each start holds."""

    def __init__(self, *, max_bypass: int = 16) -> None:
        self.queue: AdmissionQueue[Waiting] = AdmissionQueue()
        self.queue.max_bypass = max_bypass
        self.lanes: dict[str, Lane[Waiting]] = {}
        self.held: dict[int, Lane[Waiting]] = {}
        self.waiting: dict[int, tuple[Waiting, Lane[Waiting]]] = {}
        self.ids = 0

    def lane(
        self,
        name: str,
        *gates: Gate,
        pools: Iterable[tuple[SlotGate, int]] = (),
        fair: str | None = None,
    ) -> str:
        self.lanes[name] = Lane(name, gates, tuple(pools), fair=fair)
        return name

    def add(self, lane: str, count: int = 1, *, priority: int = 0, age: int | None = None) -> int:
        """The first of the ids that now wait in `lane`."""
        first = self.ids + 1
        for _ in range(count):
            self.ids += 1
            waiter = Waiting(self.ids, (-priority, self.ids if age is None else age))
            self.waiting[self.ids] = (waiter, self.lanes[lane])
            self.queue.add(waiter, self.lanes[lane])
        return first

    def go(self, budget: int = 1_000, now: int = NOW) -> list[int]:
        started: list[int] = []
        for waiter, _ in self.queue.decide(now, budget):
            started.append(waiter.id)
            self.held[waiter.id] = self.waiting.pop(waiter.id)[1]
        return started

    def end(self, *ids: int) -> None:
        for each in ids:
            lane = self.held.pop(each)
            self.queue.release(lane.gates, lane.slots)

    def cancel(self, each: int) -> None:
        self.queue.remove(*self.waiting.pop(each))


def pool(limit: int = -1) -> PoolGate:
    return PoolGate("p", PoolRule(limit))


def rate(each: Rate) -> RateGate:
    return RateGate("p", PoolRule(rate=each))


# -- order -----------------------------------------------------------------------------------------


def test_e2_priority_then_age_over_all_lanes():
    line, gate = Line(), CountGate("tag", "g", 2)
    line.lane("a", gate)
    line.lane("b", gate)
    old, young = line.add("a"), line.add("b")
    urgent = line.add("b", priority=5)
    assert line.go() == [urgent, old]
    line.end(urgent)
    assert line.go() == [young]


def test_ties_go_to_the_smaller_id_also_in_a_lane_that_waits():
    line, gate = Line(), CountGate("tag", "g", 0)
    line.lane("a", gate)
    line.lane("b", gate)
    first, second, third = Waiting(1, (0, 7)), Waiting(2, (0, 7)), Waiting(3, (0, 7))
    for waiter, lane in ((third, "a"), (second, "b")):
        line.waiting[waiter.id] = (waiter, line.lanes[lane])
        line.queue.add(waiter, line.lanes[lane])
    assert line.go() == []
    line.waiting[1] = (first, line.lanes["a"])
    line.queue.add(first, line.lanes["a"])
    gate.set(1)
    line.queue.opened(gate)
    assert line.go() == [1]


def test_e2_blocked_lanes_are_skipped_and_later_ones_overtake():
    line, full, free = Line(), CountGate("tag", "a", 1), CountGate("tag", "b", 5)
    line.lane("a", full)
    line.lane("b", free)
    line.add("a", 3)
    line.add("b", 2)
    assert line.go() == [1, 4, 5]
    line.end(1)
    assert line.go() == [2]


def test_the_budget_cuts_and_the_rest_follows():
    line = Line()
    line.lane("a")
    line.add("a", 7)
    assert line.go(budget=3) == [1, 2, 3]
    assert line.queue.unfinished
    assert line.go(budget=3) == [4, 5, 6]
    assert line.go(budget=3) == [7]
    assert not line.queue.unfinished


def test_all_free_slots_are_filled_at_once():
    """Refilling one slot per completion would shrink a window for good."""
    line, window = Line(), CountGate("window", "w", 3)
    line.lane("a", window)
    line.add("a", 9)
    assert line.go() == [1, 2, 3]
    line.end(1, 2, 3)
    assert line.go() == [4, 5, 6]


def test_a_waiter_that_leaves_is_never_started():
    line, gate = Line(), CountGate("tag", "g", 1)
    line.lane("a", gate)
    line.add("a", 3)
    assert line.go() == [1]
    line.cancel(2)
    line.end(1)
    assert line.go() == [3]


def test_one_walk_touches_only_what_changed():
    """Lanes parked under a shut gate are not looked at when another opens."""
    line = Line()
    gates = [CountGate("tag", str(index), 0) for index in range(100)]
    for index, gate in enumerate(gates):
        line.add(line.lane(str(index), gate))
    line.go()
    assert len(line.queue.found_blocked) == 100
    gates[7].set(1)
    line.queue.opened(gates[7])
    assert line.go() == [8]
    assert line.queue.found_blocked == []


# -- limits that change ----------------------------------------------------------------------------


def test_e5_raised_limits_start_waiters_lowered_ones_wait():
    line, db = Line(), pool(2)
    line.lane("a", pools=[(db, 1)])
    line.add("a", 8)
    assert line.go() == [1, 2]
    db.apply(PoolRule(4), NOW)
    line.queue.opened(db)
    assert line.go() == [3, 4]
    db.apply(PoolRule(1), NOW)
    line.end(1, 2)
    assert line.go() == []
    line.end(3)
    assert line.go() == []
    line.end(4)
    assert line.go() == [5]


def test_a_paused_pool_keeps_its_holders_and_starts_nobody():
    line, db = Line(), pool(2)
    line.lane("a", pools=[(db, 1)])
    line.add("a", 3)
    line.go()
    db.apply(PoolRule(2, paused=True), NOW)
    line.end(1, 2)
    assert line.go() == []
    assert line.queue.found_blocked == []  # it was parked before, and stays parked
    db.apply(PoolRule(2), NOW)
    line.queue.opened(db)
    assert line.go() == [3]


def test_a_paused_pool_says_so():
    line, db = Line(), pool(2)
    db.apply(PoolRule(2, paused=True), NOW)
    line.add(line.lane("a", pools=[(db, 1)]))
    line.go()
    [(_, head, block)] = line.queue.found_blocked
    assert (head.id, block.gate, block.reason) == (1, db, "paused")


def test_e5_an_unset_pool_is_unlimited():
    line, db = Line(), pool(1)
    line.lane("a", pools=[(db, 1)])
    line.add("a", 50)
    assert line.go() == [1]
    db.apply(PoolRule(), NOW)
    line.queue.opened(db)
    assert len(line.go()) == 49


# -- several pools ---------------------------------------------------------------------------------


def test_e5_all_or_none_over_several_pools():
    line, db, api = Line(), pool(1), pool(1)
    line.lane("both", pools=[(db, 1), (api, 1)])
    line.lane("db", pools=[(db, 1)])
    line.lane("api", pools=[(api, 1)])
    api_holder = line.add("api")
    assert line.go() == [api_holder]
    both, other = line.add("both"), line.add("db")
    assert line.go() == [other]  # `both` took nothing of db while it waits for api
    line.end(api_holder)
    assert (db.used, api.used) == (1, 0)
    line.end(other)
    assert line.go() == [both]
    assert (db.used, api.used) == (1, 1)


def test_e5_weights():
    line, db = Line(), pool(5)
    line.lane("two", pools=[(db, 2)])
    line.add("two", 3)
    assert line.go() == [1, 2]
    assert db.used == 4
    line.end(1)
    assert line.go() == [3]


# -- rates -----------------------------------------------------------------------------------------


def test_a_rate_wakes_at_the_instant_of_the_next_grant():
    line, api = Line(), rate(Rate(1, 1_000, burst=2))
    line.lane("a", pools=[(api, 1)])
    line.add("a", 4)
    assert line.go() == [1, 2]
    assert line.queue.next_wake() == NOW + 1_000
    assert line.go(now=NOW + 999) == []
    assert line.go(now=NOW + 1_000) == [3]
    assert line.go(now=NOW + 5_000) == [4]


def test_a_need_beyond_the_burst_waits_for_the_rule():
    line, api = Line(), rate(Rate(1, 1_000, burst=1))
    line.add(line.lane("a", pools=[(api, 2)]))
    assert line.go() == []
    assert line.queue.next_wake() is None
    assert line.go(now=2 * NOW) == []
    api.apply(PoolRule(rate=Rate(1, 1_000, burst=2)), NOW)
    line.queue.opened(api)
    assert line.go(now=2 * NOW) == [1]


class OpensAt(Gate):
    """Shut until an instant: a timed gate that no pool's rule sets."""

    __slots__ = ("granted", "instant")
    timed = True

    def __init__(self, instant: int) -> None:
        super().__init__("hours", "h", -1)
        self.instant = instant
        self.granted: list[tuple[int, int]] = []

    def charge(self, need: int, now: int) -> None:
        super().charge(need, now)
        self.granted.append((need, now))

    def blocks(self, need: int, now: int) -> Block | None:
        if now >= self.instant:
            return None
        return Block(self, self.kind, need, until=self.instant)


def test_a_timed_gate_that_is_no_pools_decides_too():
    line, hours = Line(), OpensAt(NOW + 1_000)
    line.add(line.lane("a", hours), 2)
    assert line.go() == []
    assert line.queue.next_wake() == NOW + 1_000
    assert line.go(now=NOW + 999) == []
    assert line.go(now=NOW + 1_000) == [1, 2]
    assert hours.used == 2
    assert hours.granted == [(1, NOW + 1_000)] * 2


# -- fair turns ------------------------------------------------------------------------------------


def shares(weights: dict[str, int], starts: int, backlog: int = 400) -> list[str]:
    line, gate = Line(), CountGate("tag", "g", 1)
    line.queue.turns.set(Fair("tenant", weights))
    names: dict[int, str] = {}
    for name in weights:
        line.lane(name, gate, fair=name)
        first = line.add(name, backlog)
        names |= dict.fromkeys(range(first, first + backlog), name)
    order: list[str] = []
    for _ in range(starts):
        [started] = line.go()
        order.append(names[started])
        line.end(started)
    return order


@pytest.mark.parametrize("weights", [{"a": 1, "b": 1}, {"a": 3, "b": 1}, {"a": 5, "b": 2, "c": 1}])
def test_fair_shares_follow_the_weights_within_one_turn(weights: dict[str, int]):
    order = shares(weights, 240)
    whole = sum(weights.values())
    for length in range(1, len(order) + 1):
        counts = Counter(order[:length])
        for name, weight in weights.items():
            assert abs(counts[name] - length * weight / whole) <= 1 + weight / whole * 2


def test_a_large_backlog_does_not_drown_a_newcomer():
    line, gate = Line(), CountGate("tag", "g", 1)
    line.queue.turns.set(Fair("tenant"))
    line.lane("crowd", gate, fair="crowd")
    line.lane("late", gate, fair="late")
    line.add("crowd", 1_000)
    for _ in range(300):
        [started] = line.go()
        line.end(started)
    newcomer = line.add("late", 100)
    order: list[bool] = []
    for _ in range(100):
        [started] = line.go()
        order.append(started >= newcomer)
        line.end(started)
    # It has a turn at once, and has saved none up from the time it was away.
    assert order[0] or order[1]
    assert 49 <= sum(order) <= 51


def test_priority_stands_above_fair_turns():
    line, gate = Line(), CountGate("tag", "g", 1)
    line.queue.turns.set(Fair("tenant"))
    line.lane("a", gate, fair="a")
    line.lane("b", gate, fair="b")
    line.add("a", 2)
    line.add("b", 2)
    urgent = line.add("a", 3, priority=9)
    order: list[int] = []
    for _ in range(3):
        order += line.go()
        line.end(order[-1])
    assert order == [urgent, urgent + 1, urgent + 2]


# -- nobody starves --------------------------------------------------------------------------------


def stream(line: Line, small: str, rounds: int) -> list[int]:
    """One small task after another ends and the next comes; what started, in order."""
    started: list[int] = []
    for _ in range(rounds):
        line.add(small)
        got = line.go()
        started += got
        if got:
            line.end(got[0])
    return started


@pytest.mark.parametrize("max_bypass", [0, 1, 4, 16])
def test_after_max_bypass_starts_slots_are_reserved(max_bypass: int):
    line, db = Line(max_bypass=max_bypass), pool(2)
    line.lane("small", pools=[(db, 1)])
    line.lane("big", pools=[(db, 2)])
    holder = line.add("small")
    assert line.go() == [holder]
    big = line.add("big")
    assert line.go() == []
    bypassing = stream(line, "small", max_bypass + 5)
    assert len(bypassing) == max_bypass
    assert line.queue.reserved == {line.lanes["big"]: line.waiting[big][0]}
    line.end(holder)
    assert line.go() == [big]
    assert line.queue.reserved == {}
    line.end(big)
    assert len(line.go()) == 2  # the small ones that were held back


def test_a_reservation_names_its_reason():
    line, db = Line(max_bypass=0), pool(2)
    line.lane("small", pools=[(db, 1)])
    line.lane("big", pools=[(db, 2)])
    line.add("small")
    line.go()
    line.add("big")
    line.go()
    line.add("small")
    line.go()
    assert [block.reason for *_, block in line.queue.found_blocked] == ["reserved"]


def test_higher_priority_is_no_bypass():
    line, db = Line(max_bypass=2), pool(2)
    line.lane("small", pools=[(db, 1)])
    line.lane("big", pools=[(db, 2)])
    holder = line.add("small")
    line.go()
    line.add("big")
    line.go()
    for _ in range(20):
        urgent = line.add("small", priority=1)
        assert line.go() == [urgent]
        line.end(urgent)
    assert line.lanes["big"].bypassed == 0
    assert len(stream(line, "small", 5)) == 2
    line.end(holder)


def test_a_start_that_shares_no_pool_is_no_bypass():
    line, db, api = Line(max_bypass=1), pool(2), pool(5)
    line.lane("small", pools=[(db, 1)])
    line.lane("big", pools=[(db, 2)])
    line.lane("other", pools=[(api, 1)])
    line.lane("free")
    line.add("small")
    line.go()
    line.add("big")
    line.go()
    assert len(stream(line, "other", 9)) == 9
    assert len(stream(line, "free", 9)) == 9
    assert line.lanes["big"].bypassed == 0


def test_while_a_pool_is_paused_nobody_is_bypassed():
    line, db, api = Line(max_bypass=1), pool(2), pool(2)
    line.lane("small", pools=[(db, 1)])
    line.lane("both", pools=[(api, 1), (db, 1)])
    api.apply(PoolRule(2, paused=True), NOW)
    line.add("both")
    line.go()
    assert len(stream(line, "small", 9)) == 9
    assert line.lanes["both"].bypassed == 0


def test_reserved_slots_are_kept_in_global_order():
    """Two starved waiters: the one that stands first is served first, and both before any later one."""
    line, db = Line(max_bypass=1), pool(3)
    line.lane("small", pools=[(db, 1)])
    line.lane("two", pools=[(db, 2)])
    line.lane("three", pools=[(db, 3)])
    holders = [line.add("small"), line.add("small")]
    assert line.go() == holders
    three, two = line.add("three"), line.add("two")
    line.go()
    assert len(stream(line, "small", 9)) == 1
    for holder in holders:
        line.end(holder)
    assert line.go() == [three]
    line.end(three)
    assert line.go()[0] == two


def test_a_waiter_that_leaves_frees_what_was_kept_for_it():
    line, db = Line(max_bypass=0), pool(2)
    line.lane("small", pools=[(db, 1)])
    line.lane("big", pools=[(db, 2)])
    line.add("small")
    line.go()
    big = line.add("big")
    line.go()
    held_back = line.add("small")
    assert line.go() == []
    line.cancel(big)
    assert line.go() == [held_back]


@pytest.mark.parametrize(
    "shut",
    [PoolRule(1), PoolRule(2, paused=True), PoolRule(rate=Rate(100, 1_000, burst=1))],
    ids=["lowered", "paused", "rate"],
)
def test_nothing_is_kept_for_a_waiter_whom_a_change_shuts_out(shut: PoolRule):
    """A reservation that cannot be honoured must not shut the pools it names for everybody."""
    line, db, api = Line(max_bypass=0), pool(2), PoolGate("q", PoolRule(2))
    line.lane("small", pools=[(db, 1)])
    line.lane("api", pools=[(api, 1)])
    line.lane("big", pools=[(api, 2), (db, 1)])
    holder = line.add("api")
    line.go()
    line.add("big")
    line.go()
    needs = line.lanes["big"].needs
    held_back = [line.add("small"), line.add("small")]
    assert line.go() == held_back[:1]  # one of two slots is kept for `big`
    if shut.rate is None:
        api.apply(shut, NOW)
    else:
        more: list[tuple[SlotGate, int]] = [(RateGate("q", shut), 2)]
        line.queue.set_needs(line.lanes["big"], (*needs, *more))
    line.queue.opened(api)
    line.queue.opened(db)
    assert line.go() == held_back[1:]
    api.apply(PoolRule(2), NOW)
    line.queue.set_needs(line.lanes["big"], needs)
    line.end(holder, *held_back)
    line.queue.opened(api)
    assert len(line.go()) == 1
