"""The admission queue against a plain model: no gate is ever exceeded and no work is left undone."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from locktender.base.limits import Fair, PoolRule, Rate
from locktender.kernel.admission import AdmissionQueue
from locktender.kernel.gates.count import CountGate
from locktender.kernel.gates.pool import PoolGate
from locktender.kernel.gates.protocol import Lane, SlotGate
from locktender.kernel.gates.rate import RateGate

POOLS = ("db", "api", "gpu")
GATES = ("runs", "window", "parallel")
PLENTY = 10_000

limits = st.integers(-1, 5).filter(bool)
needs = st.dictionaries(st.sampled_from(POOLS), st.integers(1, 3), max_size=2)
chosen = st.sets(st.sampled_from(GATES), max_size=2)


@dataclass(eq=False)
class Waiting:
    id: int
    rank: tuple[int, int]
    gates: frozenset[str]
    pools: dict[str, int]


class AdmissionMachine(RuleBasedStateMachine):
    """What the admission queue holds is kept a second time, by the plainest means, and compared at every start."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: AdmissionQueue[Waiting] = AdmissionQueue()
        self.gates = {name: CountGate("window", name, 2) for name in GATES}
        self.pools = {name: PoolGate(name, PoolRule(3)) for name in POOLS}
        self.rates: dict[str, RateGate] = {}
        self.waiting: dict[int, tuple[Waiting, Lane[Waiting]]] = {}
        self.flying: dict[int, tuple[Waiting, Lane[Waiting]]] = {}
        self.grants: dict[str, list[tuple[int, int]]] = {name: [] for name in POOLS}
        self.now = 10**12
        self.ids = 0
        self.settled = False

    @initialize(max_bypass=st.sampled_from([0, 2, 16]), fair=st.booleans())
    def start(self, max_bypass: int, fair: bool) -> None:
        self.queue.max_bypass = max_bypass
        self.queue.turns.set(Fair("tenant", {"a": 3}) if fair else None)

    # -- what happens --

    @rule(
        gates=chosen,
        pools=needs,
        priority=st.integers(0, 2),
        tenant=st.sampled_from("ab"),
        count=st.integers(1, 4),
    )
    def arrive(
        self, gates: set[str], pools: dict[str, int], priority: int, tenant: str, count: int
    ) -> None:
        fair = tenant if self.queue.turns.fair is not None else None
        key = (tuple(sorted(gates)), tuple(sorted(pools.items())), fair)
        for _ in range(count):
            lane = self.queue.lanes.get(key)
            if lane is None:
                lane = Lane[Waiting](
                    key,
                    tuple(self.gates[name] for name in sorted(gates)),
                    self.needs(tuple(sorted(pools.items()))),
                    fair=fair,
                )
            self.ids += 1
            waiter = Waiting(self.ids, (-priority, self.ids), frozenset(gates), pools)
            self.waiting[waiter.id] = (waiter, lane)
            self.queue.add(waiter, lane)
        self.settled = False

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        each = data.draw(st.sampled_from(sorted(self.waiting)))
        self.queue.remove(*self.waiting.pop(each))
        self.settled = False

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(self.flying)))
        for each in sorted(self.flying)[:count]:
            _, lane = self.flying.pop(each)
            self.queue.release(lane.gates, lane.slots)
        self.settled = False

    @rule(name=st.sampled_from(GATES), limit=limits, paused=st.booleans())
    def set_gate(self, name: str, limit: int, paused: bool) -> None:
        self.gates[name].set(limit, paused=paused)
        self.queue.opened(self.gates[name])
        self.settled = False

    @rule(
        name=st.sampled_from(POOLS),
        limit=limits,
        paused=st.booleans(),
        rate=st.sampled_from([None, None, Rate(2, 1_000, 2), Rate(1, 700, 4)]),
    )
    def set_pool(self, name: str, limit: int, paused: bool, rate: Rate | None) -> None:
        pool, known = self.pools[name], self.rates.get(name)
        rule = PoolRule(limit, paused=paused, rate=rate)
        if rate != (None if known is None else known.rate):
            self.grants[name] = []
        pool.apply(rule, self.now)
        self.queue.opened(pool)
        if rate is not None and known is not None:
            known.apply(rule, self.now)
            self.queue.opened(known)
        elif rate is not None or known is not None:
            self.rates.pop(name, None)
            if rate is not None:
                self.rates[name] = RateGate(name, rule)
            for lane in list(self.queue.lanes.values()):
                pools = tuple((gate.name, slots) for gate, slots in lane.slots)
                self.queue.set_needs(lane, self.needs(pools))
        self.settled = False

    def needs(self, pools: tuple[tuple[str, int], ...]) -> tuple[tuple[SlotGate, int], ...]:
        found: list[tuple[SlotGate, int]] = []
        for name, slots in pools:
            found.append((self.pools[name], slots))
            if name in self.rates:
                found.append((self.rates[name], slots))
        return tuple(found)

    @rule(passed=st.integers(1, 2_000))
    def time_passes(self, passed: int) -> None:
        self.now += passed
        self.settled = False

    @rule(budget=st.sampled_from([1, 3, PLENTY]))
    def decide(self, budget: int) -> None:
        started = 0
        for waiter, _ in self.queue.decide(self.now, budget):
            _, lane = self.waiting.pop(waiter.id)
            self.flying[waiter.id] = (waiter, lane)
            started += 1
            self.check_start(waiter)
        assert started <= budget
        self.settled = budget == PLENTY

    # -- what must hold --

    def used(self, pool: str) -> int:
        return sum(waiter.pools.get(pool, 0) for waiter, _ in self.flying.values())

    def inside(self, gate: str) -> int:
        return sum(gate in waiter.gates for waiter, _ in self.flying.values())

    def check_start(self, waiter: Waiting) -> None:
        for name in waiter.gates:
            gate = self.gates[name]
            assert not gate.paused
            assert gate.limit < 0 or self.inside(name) <= gate.limit
        for name, slots in waiter.pools.items():
            pool = self.pools[name]
            assert not pool.paused
            assert pool.limit < 0 or self.used(name) <= pool.limit
            self.grants[name].append((self.now, slots))
            if name in self.rates:
                self.check_rate(self.rates[name].rate, self.grants[name])

    def check_rate(self, rate: Rate, grants: list[tuple[int, int]]) -> None:
        total = 0
        for at, slots in reversed(grants):
            total += slots
            assert (total - rate.burst) * rate.per_us <= rate.count * (self.now - at)

    @invariant()
    def the_ledger_is_what_flies(self) -> None:
        assert {name: gate.used for name, gate in self.gates.items()} == {
            name: self.inside(name) for name in GATES
        }
        assert {name: pool.used for name, pool in self.pools.items()} == {
            name: self.used(name) for name in POOLS
        }

    @invariant()
    def nobody_is_lost(self) -> None:
        standing = {each for lane in self.queue.lanes.values() for each in lane.live}
        assert standing == set(self.waiting)

    @invariant()
    def nothing_that_could_go_is_left(self) -> None:
        """Work-conserving: after a whole decision every waiter is shut out by some gate of its own."""
        if not self.settled:
            return
        for waiter, lane in self.waiting.values():
            gates = [self.gates[name] for name in waiter.gates]
            if any(gate.paused or 0 <= gate.limit <= gate.used for gate in gates):
                continue
            if any(self.shut(self.pools[name], slots) for name, slots in waiter.pools.items()):
                continue
            # Only slots kept for somebody who was overtaken too often may stand in its way.
            assert [block.reason for block in self.queue.blocks(lane, waiter, self.now)][:1] == [
                "reserved"
            ]
            assert self.queue.reserved

    def shut(self, pool: PoolGate, slots: int) -> bool:
        if pool.paused or (pool.limit >= 0 and pool.used + slots > pool.limit):
            return True
        rate = self.rates.get(pool.name)
        return rate is not None and rate.granted_at(slots) > self.now

    @invariant()
    def a_settled_queue_rests(self) -> None:
        if self.settled and self.queue.unfinished:
            # A reservation that was used opens its pools once more: another look finds nothing, and it rests.
            assert list(self.queue.decide(self.now, PLENTY)) == []
            assert not self.queue.unfinished


AdmissionMachine.TestCase.settings = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestAdmission = AdmissionMachine.TestCase
