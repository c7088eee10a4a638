"""Counters of one engine, raised as things happen on the engine's loop.

A task adds to a few integers. `observe/prometheus.py` turns them into text and
is imported only by a process that serves it. Numbers the engine has anyway
(tasks in flight, tasks waiting) are read on request and not counted here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence, Sized
from typing import Final, NamedTuple

from locktender.base.clock import SECOND, Clock, SystemClock
from locktender.base.model import WorkerRow
from locktender.kernel.commit_builder import Cycle
from locktender.kernel.demand import Demand
from locktender.kernel.gates.protocol import SlotGate
from locktender.kernel.ledger import Ledger

CYCLE_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
TASK_SECONDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0)
CLAIMED_TASKS: Final = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)
DELAY_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
WAIT_SECONDS: Final = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0, 86400.0)
MAX_POOL_LABELS: Final = 50
"""Pools with series of their own; any further one is counted as `other`. Keys of one pool are one: `api[*]`."""
WORST_KEPT_US: Final = 5 * SECOND
MAX_STEP_LABELS: Final = 50
"""Steps with a series of their own; the durations of any further one are counted as `other`."""
OTHER: Final = "other"
_CLOCK: Final = SystemClock()


class Spread:
    """How many had which value, durations or sizes: a histogram."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds: Sequence[float] = bounds
        self.counts: list[int] = [0] * (len(bounds) + 1)
        """Up to each bound and above the one before it; the last: above all."""
        self.total: float = 0.0
        """The values, summed."""

    def add(self, value: float, count: int = 1) -> None:
        """`count` of them had this value."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count


class Worst:
    """The largest value of the last five to ten seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.monotonic()
        self._now = self._before = 0

    def add(self, value: int) -> None:
        self._turn()
        self._now = max(self._now, value)

    @property
    def value(self) -> int:
        self._turn()
        return max(self._now, self._before)

    def _turn(self) -> None:
        passed = (self._clock.monotonic() - self._since) // WORST_KEPT_US
        if passed:
            self._before, self._now = (self._now if passed == 1 else 0), 0
            self._since = self._clock.monotonic()


class PoolNumbers(NamedTuple):
    used: int
    limit: int
    """-1: unlimited, or not known."""
    waiting: int
    """Tasks that the pool, or its rate, blocks now."""


MAX_VIOLATIONS_NOTED: Final = 10_000


class AuditNumbers:
    """What the audit beside the leader has found. Set in its thread, read on the engine's loop."""

    def __init__(self) -> None:
        self.violations: Counter[str] = Counter()
        """By the rule that is broken: those that this process found."""
        self.broken: int = 0
        """How many no operator has seen, also of earlier audits."""
        self.first_broken: str = ""
        self.events: int = 0
        """How many were checked, in all."""
        self.lag_us: int = 0
        """How old the history is where the audit stands; 0: at its end."""
        self._noted: set[str] = set()

    def problems(self) -> list[str]:
        """For `/health`."""
        if not self.broken:
            return []
        promises = "1 promise" if self.broken == 1 else f"{self.broken} promises"
        return [f"the history breaks {promises}, first {self.first_broken} Run: locktender audit"]

    def note(self, violation: str) -> bool:
        """False: this process has counted it before."""
        if violation in self._noted or len(self._noted) >= MAX_VIOLATIONS_NOTED:
            return False
        self._noted.add(violation)
        return True


MAX_LABEL_SETS = 100
OTHER_LABELS = "(others)"


class Metrics:
    """The numbers of one engine. Told on its loop."""

    def __init__(self) -> None:
        # of the leader
        self.term: int = 0
        """0: it does not lead."""
        self.take_overs: int = 0
        self.failed_terms: int = 0
        """Terms of this process that failed, in a row; 0: the last one did not."""
        self.demand: int = 0
        self.demand_by_labels: dict[str, int] = {}
        """By the labels that tasks need: `gpu=a100,zone=b`; empty: none."""
        self.stalled: set[str] = set()
        """Workers whose lease has passed and whose process lives."""
        self.cycles: Spread = Spread(CYCLE_SECONDS)
        self.commits: Spread = Spread(CYCLE_SECONDS)
        self.change_delays: Spread = Spread(DELAY_SECONDS)
        """From a worker's commit to the cycle of the leader that takes it in."""
        self.task_waits: Spread = Spread(WAIT_SECONDS)
        self.gate_waits: dict[str, Spread] = {}
        """By the kind of gate: how long tasks waited there before they started."""
        self.unfit: int = 0
        """Tasks of the demand that no live worker fits."""
        self.oldest_offer_us: int = 0
        self.silent: int = 0
        """Workers that left their last offers unanswered."""
        self.unadvanced: int = 0
        """Executing runs of which nothing is requested, in flight or waiting, in two sweeps in a row."""
        self.loop_lag: Worst = Worst(_CLOCK)
        self._swept_at: int | None = None
        self._pool_names: dict[str, None] = {}
        self.runs_started: int = 0
        self.runs_ended: dict[str, int] = {}
        self.offers: dict[str, int] = {"accepted": 0, "declined": 0, "withdrawn": 0}
        self.audit: AuditNumbers = AuditNumbers()
        self.lookups: dict[str, int] = {"hit": 0, "miss": 0}
        """Of cached results."""
        # of the worker
        self.claims: Spread = Spread(CLAIMED_TASKS)
        """By how many tasks each accepted."""
        self.next_claim: int = 0
        """How many tasks it would take now."""
        self.tasks_ended: dict[str, int] = {}
        self.tasks: dict[str, Spread] = {}
        self.loop_blocked: dict[str, int] = {}
        self.describe: Callable[[], WorkerRow] | None = None
        """The worker as it is now; None: this engine has none."""
        self.runs_held: int = 0
        """How many runs became held, ever."""
        self._ledger: Ledger | None = None
        self._held: Sized = ()

    # -- the leader --------------------------------------------------------------------------------

    def leads(self, term: int, ledger: Ledger, held: Sized = ()) -> None:
        """A term began: `ledger` is what it decides with, `held` are the runs that it decides nothing for."""
        self._held = held
        self.take_overs += 1
        self.term = term
        self._ledger = ledger

    def led(self) -> None:
        """The term is over: what only a leader knows is not known here any more."""
        self.term = self.demand = 0
        self.demand_by_labels = {}
        self.unfit = self.oldest_offer_us = self.silent = self.unadvanced = 0
        self._swept_at = None
        self.stalled = set()
        self.audit.broken = self.audit.lag_us = 0
        self._ledger = None
        self._held = ()

    @property
    def held_now(self) -> int:
        """Runs that are held, as the leader of this process knows; 0: none, or it does not lead."""
        return len(self._held)

    def swept(self, ledger: Ledger, demand: Demand, unadvanced: int, now: int) -> None:
        """Once a second: what a sweep found, at `now` in the store's time."""
        self._swept_at = _CLOCK.monotonic()
        self.demand = demand.total
        self._count_labels(demand)
        self.unfit = sum(want.tasks for want in demand.wants if not want.workers)
        self.unadvanced = unadvanced
        # The oldest offer comes first.
        first = next(iter(ledger.offers.values()), None)
        self.oldest_offer_us = 0 if first is None else max(0, now - first.scheduled_at)
        self.silent = len(ledger.workers.silences())

    def _count_labels(self, demand: Demand) -> None:
        # A set that was wanted once stays, as 0: what scales by it must not find nothing there.
        found = dict.fromkeys(("", *self.demand_by_labels), 0)
        for want in demand.wants:
            labels = ",".join(f"{label}={value}" for label, value in want.needs)
            if labels not in found and len(found) >= MAX_LABEL_SETS:
                labels = OTHER_LABELS
            found[labels] = found.get(labels, 0) + want.tasks
        self.demand_by_labels = found

    @property
    def sweep_age_us(self) -> int:
        """How long ago the last sweep ended; 0: it does not lead, or its first sweep is to come."""
        return 0 if self._swept_at is None else max(0, _CLOCK.monotonic() - self._swept_at)

    def changes_read(self, delay_us: int, count: int) -> None:
        """A worker committed so many changes, and a cycle takes them in."""
        self.change_delays.add(max(0, delay_us) / SECOND, count)

    def cycle(self, cycle: Cycle, seconds: float) -> None:
        """A cycle was written, `seconds` after it was begun."""
        commit = cycle.commit
        self.cycles.add(seconds)
        self.runs_started += len(commit.runs_started)
        for end in commit.runs_ended:
            self.runs_ended[end.state] = self.runs_ended.get(end.state, 0) + 1
        # In the leader's own process an offer is accepted by the commit that makes it.
        self.offers["accepted"] += len(cycle.starts)
        self._waited(cycle)

    def _waited(self, cycle: Cycle) -> None:
        commit, ledger = cycle.commit, self._ledger
        started = list(cycle.starts)
        if ledger is not None:
            offered = (
                ledger.offers.get(each.task) for each in commit.orders if each.kind == "offer"
            )
            started += [entry for entry in offered if entry is not None]
        at, at_once = commit.at, 0
        for entry in started:
            if entry.requested_at == at:
                at_once += 1
                continue
            ready_at = max(entry.requested_at, entry.not_before)
            self.task_waits.add(max(0, at - ready_at) / SECOND)
        if at_once:
            self.task_waits.add(0.0, at_once)
        for waits in cycle.waits:
            for gate, waited_us in waits.items():
                self._gate_spread(gate.partition(":")[0]).add(waited_us / SECOND)

    def _gate_spread(self, kind: str) -> Spread:
        found = self.gate_waits.get(kind)
        if found is None:
            found = self.gate_waits[kind] = Spread(WAIT_SECONDS)
        return found

    def offer_answered(self, outcome: str, offers: int = 1) -> None:
        """Offers to other processes were `accepted`, `declined` or `withdrawn`."""
        self.offers[outcome] += offers

    def looked_up(self, hits: int, misses: int) -> None:
        """Keys of cached results were looked up."""
        self.lookups["hit"] += hits
        self.lookups["miss"] += misses

    def blocked(self) -> dict[str, int]:
        """Tasks that wait now, by the kind of gate that the leader found in their way."""
        found: dict[str, int] = {}
        if self._ledger is not None:
            for lane in self._ledger.task_queue.lanes.values():
                if lane.parked_at is not None:
                    kind = lane.parked_at.kind
                    found[kind] = found.get(kind, 0) + len(lane)
        return found

    def pools(self) -> dict[str, PoolNumbers]:
        """What is in use of each pool, its limit, and the tasks that it blocks."""
        ledger = self._ledger
        if ledger is None:
            return {}
        waiting: dict[str, int] = {}
        for lane in ledger.task_queue.lanes.values():
            if isinstance(lane.parked_at, SlotGate):
                name = lane.parked_at.name
                waiting[name] = waiting.get(name, 0) + len(lane)
        found: dict[str, PoolNumbers] = {}
        for name, rule in ledger.limits.pools.items():
            if "[" not in name:
                found[self._pool_label(name)] = PoolNumbers(0, rule.limit, 0)
        for name, (gate, *_) in ledger.slot_gates.items():
            label = self._pool_label(name)
            known = found.get(label)
            one = PoolNumbers(gate.used, gate.limit, waiting.get(name, 0))
            if known is None or label == name:
                found[label] = one
            else:
                unlimited = known.limit < 0 or one.limit < 0
                limit = -1 if unlimited else known.limit + one.limit
                used, waits = known.used + one.used, known.waiting + one.waiting
                found[label] = PoolNumbers(used, limit, waits)
        return found

    def _pool_label(self, pool: str) -> str:
        base, keyed, _ = pool.partition("[")
        name = f"{base}[*]" if keyed else base
        if name in self._pool_names or len(self._pool_names) < MAX_POOL_LABELS:
            self._pool_names[name] = None
            return name
        return OTHER

    # -- the worker --------------------------------------------------------------------------------

    def claimed(self, tasks: int) -> None:
        """The worker accepted so many tasks in one write."""
        self.claims.add(tasks)

    def task_ended(self, step: str, state: str, duration_us: int) -> None:
        """An attempt of `step` ended in `state`."""
        self.tasks_ended[state] = self.tasks_ended.get(state, 0) + 1
        durations = self.tasks.get(step)
        if durations is None:
            name = step if len(self.tasks) < MAX_STEP_LABELS else OTHER
            durations = self.tasks.get(name) or self.tasks.setdefault(name, Spread(TASK_SECONDS))
        durations.add(duration_us / 1_000_000)

    def held_loop(self, step: str, _lag_us: int = 0) -> None:
        """An async step kept the loop from everything else for too long."""
        name = (
            step if step in self.loop_blocked or len(self.loop_blocked) < MAX_STEP_LABELS else OTHER
        )
        self.loop_blocked[name] = self.loop_blocked.get(name, 0) + 1
