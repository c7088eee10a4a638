"""What workers on demand cost, under a virtual clock: work ÷ permits, start-up and idle time, and little more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.worlds import worker_row

from locktender.base.model import AskedWorker
from locktender.kernel.demand import Demand, Want
from locktender.provision.policy import Policy, Rules, WorkersSeen
from locktender.provision.protocol import Capacity, Provisioned

SECOND = 1_000_000
TICK = SECOND // 10
FACTOR = 1.3
PATIENCE = 24 * 3_600 * SECOND


@dataclass
class SimulatedWorker:
    began: int
    joins: int
    idle_since: int = 0
    ends: list[int] = field(default_factory=list[int])
    """When its tasks end."""
    ended: int = 0


class Burst:
    """A leader whose provisioner starts workers of some permits in some time; tasks all last the same."""

    def __init__(self, tasks: int, took: int, permits: int, most: int, start_up: int, idle: int):
        self.queued, self.took, self.permits = tasks, took, permits
        self.start_up, self.idle = start_up, idle
        self.policy = Policy(Rules(max_workers=most, start_timeout_us=PATIENCE), self.capacity)
        self.workers: dict[str, SimulatedWorker] = {}
        self.stored: dict[str, AskedWorker] = {}
        self.now = SECOND
        self.peak = 0

    def capacity(self, needs: Mapping[str, str]) -> Capacity | None:
        return Capacity({"async": self.permits}, self.permits, {}, {"step": "s"})

    @property
    def living(self) -> dict[str, SimulatedWorker]:
        return {name: worker for name, worker in self.workers.items() if not worker.ended}

    def run(self) -> None:
        while self.queued or self.living:
            assert self.now < PATIENCE, "it does not come to an end"
            self.work()
            if self.now % SECOND == 0:
                self.sweep()
            self.peak = max(self.peak, len(self.living))
            self.now += TICK

    def work(self) -> None:
        """Tasks end; waiting ones go to the first worker with room, as `pack` has it; the idle end."""
        for name, worker in self.living.items():
            if worker.joins > self.now:
                continue
            if not self.stored[name].joined_at:
                self.stored[name] = msgspec.structs.replace(self.stored[name], joined_at=self.now)
                worker.idle_since = self.now
            before = len(worker.ends)
            worker.ends = [end for end in worker.ends if end > self.now]
            if before and not worker.ends:
                worker.idle_since = self.now
            while self.queued and len(worker.ends) < self.permits:
                worker.ends.append(self.now + self.took)
                self.queued -= 1
            if not worker.ends and self.now - worker.idle_since >= self.idle:
                worker.ended = self.now

    def sweep(self) -> None:
        joined = [name for name, worker in self.living.items() if worker.joins <= self.now]
        total = {"async": self.permits}
        rows = [worker_row(n, provision=n, permits=total, steps={"step": "s"}) for n in joined]
        wants = (Want("async", (), "step", "s", self.queued),) if self.queued else ()
        listed = [
            Provisioned(name, "ended" if worker.ended else "running")
            for name, worker in self.workers.items()
            if name in self.stored
        ]
        seen = WorkersSeen(
            Demand(self.queued, wants, len(rows)), rows, listed, tuple(self.stored.values())
        )
        plan = self.policy.plan(seen, self.now)
        for name in plan.gone:
            del self.stored[name]
        for ask in plan.asks:
            names = [f"worker-{len(self.workers) + n}" for n in range(ask.n)]
            body = msgspec.json.encode(ask.capacity)
            for name in names:
                self.stored[name] = AskedWorker(name, self.now, self.now + PATIENCE, 0, body)
                self.workers[name] = SimulatedWorker(self.now, self.now + self.start_up)
            self.policy.asked(ask, names)


@settings(max_examples=60)
@given(
    rounds=st.integers(4, 12),
    took=st.integers(1, 60),
    permits=st.integers(1, 8),
    most=st.integers(1, 12),
    start_up=st.integers(0, 90),
    idle=st.integers(1, 120),
)
def test_a_burst_costs_its_work_its_starts_and_its_idle_times(
    rounds: int, took: int, permits: int, most: int, start_up: int, idle: int
):
    """`rounds` of tasks for every permit that there may be: else a last worker is mostly empty by its size."""
    tasks = rounds * permits * most
    burst = Burst(tasks, took * SECOND, permits, most, start_up * SECOND, idle * SECOND)

    burst.run()

    lived = sum(worker.ended - worker.began for worker in burst.workers.values()) / SECOND
    each = start_up + idle + 2 * TICK / SECOND
    assert lived <= FACTOR * tasks * took / permits + len(burst.workers) * each
    # As many as may be, none twice, and none is left.
    assert burst.peak == len(burst.workers) == most
    assert burst.living == {}
