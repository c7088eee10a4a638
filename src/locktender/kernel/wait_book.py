"""What waiting costs, and who holds the gates that others wait at.

Who holds a gate is written when lanes come to wait there and when holders change while they wait, at most ten
times a second for each gate. The gate *worker* has several lists of holders: for tasks that fit the same workers
and need the same permits, the runs whose tasks occupy permits there. What waits lasted is added up per gate and
written once a second. Both are events of no run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import nlargest
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from locktender.base.clock import MILLISECOND, SECOND
from locktender.base.events import NO_RUN, Change
from locktender.kernel.gates.protocol import Gate, Lane, SlotGate
from locktender.kernel.gates.worker import WorkerGate
from locktender.kernel.placement import bound_by_total

if TYPE_CHECKING:
    from locktender.kernel.ledger import Ledger

SAMPLE_US: Final = 100 * MILLISECOND
MAX_HOLDERS: Final = 8
"""Runs that are named, those with most slots; the others are not."""
MAX_LOOKED_AT: Final = 1_000
MAX_GATES: Final = 10_000
MAX_KINDS: Final = 16
"""Sets of workers that tasks wait for, of which holders are written."""
MAX_ALIKE: Final = 64
"""Steps that fit the same workers and are named with them."""
OCCUPIED: Final = frozenset({"permits", "total", "full", "pressed"})
"""What bounds a worker whose tasks are in the way. One that drains takes none, however few it has."""


class WaitBook:
    def __init__(self) -> None:
        self.joined: dict[Lane[Any], None] = {}
        """Blocked lanes that were found blocked again, or that somebody joined, in this cycle."""
        self.touched: dict[Gate, None] = {}
        """Gates with waiters whose holders have changed."""
        self._over: list[dict[str, int]] = []
        self._costs: dict[str, list[int]] = {}
        self._written_at = 0
        self._sampled: dict[str, int] = {}
        """Gate → when its holders were written last."""
        self._late: dict[str, Gate | None] = {}
        """Gates whose holders are to be written, and were a moment ago."""
        self._workers: dict[WorkerGate, None] = {}
        """The same of gates that workers open: they have one name, and are written together."""
        self.due: int | None = None
        """When the first of them is written."""

    def add(self, waits: dict[str, int]) -> None:
        """A wait is over."""
        self._over.append(waits)
        for gate, us in waits.items():
            cost = self._costs.get(gate)
            if cost is None:
                self._costs[gate] = [us, 1]
            else:
                cost[0] += us
                cost[1] += 1

    def take_ended(self) -> list[dict[str, int]]:
        """The waits that are over since the last call: gate → microseconds."""
        over, self._over = self._over, []
        return over

    def changes(self, ledger: Ledger, now: int) -> Iterator[Change]:
        """What is to be written with the commit of this cycle."""
        joined = list(self.joined)
        gates = {lane.clock.gate: lane.parked_at for lane in joined}
        gates |= {gate.label(): gate for gate in self.touched}
        self.joined.clear()
        self.touched.clear()
        if self._late:
            gates = self._late | gates
            self._late = {}
        due: int | None = None
        for lane in joined:
            if isinstance(lane.parked_at, WorkerGate):
                self._workers[lane.parked_at] = None
        for name, gate in gates.items():
            if not name or gate is None or not gate.parked:
                continue
            last = self._sampled.get(name)
            if last is not None and 0 <= now - last < SAMPLE_US:
                self._late[name] = gate
                due = last + SAMPLE_US if due is None else min(due, last + SAMPLE_US)
            elif isinstance(gate, WorkerGate):
                self._sampled[name] = now
                yield from _permits(ledger, self._workers)
                self._workers = {}
            elif held := _holders(ledger, gate, name):
                if len(self._sampled) > MAX_GATES:
                    self._sampled.clear()
                self._sampled[name] = now
                data = {"gate": name, "held": held, **_numbers(gate, name, now)}
                yield Change("wait", 0, name, name, 0, data)
        self.due = due
        waiting = ledger.task_queue.lanes or ledger.run_queue.lanes
        if self._costs and (not waiting or now - self._written_at >= SECOND):
            self._written_at, costs, self._costs = now, self._costs, {}
            yield Change("cost", 0, "", "", 0, {"gates": costs})


def _numbers(gate: Gate, name: str, now: int) -> dict[str, int]:
    """Of a pool: its numbers, and a task that waits for it, so that the checker can judge them."""
    if not isinstance(gate, SlotGate) or gate.timed:
        return {}
    for need, heap in gate.parked.items():
        lane = heap[0][2]
        head = lane.head() if lane.parked_at is gate and lane.clock.gate == name else None
        block = None if head is None else gate.blocks(need, now)
        if head is not None and block is not None and block.reason == "full":
            return {"used": gate.used, "limit": gate.limit, "need": need, "task": head.id}
    return {}


def _holders(ledger: Ledger, gate: Gate, name: str) -> list[tuple[int, int]]:
    """[(run, how much of the gate it holds)], the most first; none of a gate that only one run has."""
    if name.startswith(("paused:", "window:", "run:")):
        return []
    found: dict[int, int] = {}
    if name.startswith("reserved:") and isinstance(gate, SlotGate):
        for lane, slots in gate.kept.items():
            if (waiter := ledger.task_queue.reserved.get(lane)) is not None:
                found[waiter.run.seq] = found.get(waiter.run.seq, 0) + slots
    elif isinstance(gate, SlotGate):
        found = ledger.pool(gate.name).holders
    else:
        runs = islice(ledger.runs.values(), MAX_LOOKED_AT)
        found = {run.seq: 1 for run in runs if run.placed and gate in run.gates}
    return _named(found)


def _named(found: Mapping[int, int]) -> list[tuple[int, int]]:
    """The runs that hold most slots; the slots of all other runs are recorded under run `NO_RUN`."""
    named = nlargest(MAX_HOLDERS, found.items(), key=lambda each: each[1])
    others = sum(found.values()) - sum(slots for _, slots in named)
    return [*named, (NO_RUN, others)] if others else named


def _permits(ledger: Ledger, gates: Iterable[WorkerGate]) -> Iterator[Change]:
    """Who occupies permits that those at these gates could have had, for each set of workers that fit.

    Permits of the same executor; of any where the worker's total is what is used up. Nobody is to blame where no
    worker fits, or where those that fit have permits and do not take tasks: that is written, too.
    """
    alike: dict[tuple[str, tuple[str, ...]], list[WorkerGate]] = {}
    for gate in gates:
        if gate.parked:
            several = ledger.workers.matching(gate.requirement)
            key = gate.requirement.executor, tuple(worker.id for worker in several)
            alike.setdefault(key, []).append(gate)
    for (executor, ids), several in islice(alike.items(), MAX_KINDS):
        workers = [ledger.workers.by_id[each] for each in ids]
        by_total = {each.id for each in workers if bound_by_total(each, executor)}
        occupied = {each.id for each in workers if each.room(executor)[1] in OCCUPIED}
        found: dict[int, int] = {}
        left = sum(each.used for each in workers if each.id in occupied)
        for run in islice(ledger.runs.values(), MAX_LOOKED_AT) if left else ():
            for task in run.tasks_in_flight():
                if task.worker in occupied:
                    left -= 1
                    if task.spec.executor == executor or task.worker in by_total:
                        found[run.seq] = found.get(run.seq, 0) + 1
            if left <= 0:
                break
        held = _named(found)
        of = [gate.requirement.name for gate in several[:MAX_ALIKE]]
        yield Change("wait", 0, "worker", "worker", 0, {"gate": "worker", "of": of, "held": held})
