"""Who stands at the gates at one instant: looked up once for all parts of an answer.

A run may have many steps that wait, each in a lane of its own. What is the same for all of them is kept here:
which lanes wait for a gate, what blocks the first of each, who holds what, which gates a worker's permit opens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final

import msgspec

from locktender.base.model import Unstopped
from locktender.base.text import nth
from locktender.kernel.entries import TaskEntry
from locktender.kernel.explain_workers import unstopped_by_token
from locktender.kernel.gates.pool import PoolGate
from locktender.kernel.gates.protocol import Gate, Lane
from locktender.kernel.gates.worker import WorkerGate
from locktender.kernel.ledger import Ledger
from locktender.kernel.placement import Worker
from locktender.kernel.reasons import Typical

if TYPE_CHECKING:
    from locktender.kernel.explain_waits import WaitEstimate

MAX_WALKED: Final = 200
"""Waiters before a task that are looked at one by one; of more it is only said what they would take if all of them
started."""
MAX_WALKED_IN_ALL: Final = 400
MIN_WALKED: Final = 10
DRAWS_PER_STEP: Final = 256
NEARLY: Final = 10
"""A tenth more or less is about the same."""
MAX_MERGED: Final = 50
"""Waiters of a lane that are sorted among those of others; a longer lane is counted by itself."""


Place = tuple[tuple[int, int], int]
"""Rank and id of a waiter."""


class GateView:
    """It is true as long as nothing is decided. `parts`: how many waiters are asked about."""

    def __init__(self, ledger: Ledger, now: int, parts: int = 1) -> None:
        self.ledger = ledger
        self.now = now
        self.max_walked: int = max(MIN_WALKED, min(MAX_WALKED, MAX_WALKED_IN_ALL // max(1, parts)))
        self._blocks: dict[Lane[TaskEntry], tuple[Gate, ...]] = {}
        self._lines: dict[Hashable, tuple[list[tuple[object, ...]], list[Lane[TaskEntry]]]] = {}
        self._beside: dict[Hashable, list[Lane[TaskEntry]]] = {}
        self._open: dict[frozenset[Gate], tuple[list[Place], list[Lane[TaskEntry]]]] = {}
        self._taken: dict[frozenset[Gate], tuple[int, Counter[Gate]]] = {}
        self._holders: dict[Gate, list[TaskEntry]] = {}
        self._running: dict[Hashable, list[TaskEntry]] = {}
        self._served: dict[tuple[str, str], frozenset[Gate]] = {}
        self._opened_by: dict[Hashable, frozenset[Gate]] = {}
        self._waits: dict[Hashable, list[tuple[float, WaitEstimate]]] = {}
        self._works: dict[Hashable, _Work] = {}
        self._kinds: dict[Hashable, int] = {}

    # -- lanes -------------------------------------------------------------------------------------

    def blocks(self, lane: Lane[TaskEntry], head: TaskEntry) -> tuple[Gate, ...]:
        """The gates that block the first of a lane."""
        found = self._blocks.get(lane)
        if found is None:
            several = self.ledger.task_queue.blocks(lane, head, self.now)
            found = self._blocks[lane] = tuple(block.gate for block in several)
        return found

    @cached_property
    def _by_gate(self) -> dict[Gate, list[Lane[TaskEntry]]]:
        found: dict[Gate, list[Lane[TaskEntry]]] = {}
        for lane in self.ledger.task_queue.lanes.values():
            for gate in {*lane.gates, *(gate for gate, _ in lane.needs)}:
                found.setdefault(gate, []).append(lane)
        return found

    def lanes_at(self, gate: Gate) -> list[Lane[TaskEntry]]:
        """Lanes that need `gate`."""
        return self._by_gate.get(gate, [])

    def lanes_beside(self, wanted: WorkerGate, workers: Sequence[Worker]) -> list[Lane[TaskEntry]]:
        """Lanes that wait for the same permits of these workers, of whatever step, and for nothing else."""
        executor = wanted.requirement.executor
        key = self.key_of(wanted, workers)
        if key not in self._beside:
            shares = {
                gate
                for gate in self.ledger.workers.gates.values()
                if gate is wanted
                or (
                    gate.requirement.executor == executor
                    and any(worker.fits(gate.requirement) for worker in workers)
                )
            }
            self._beside[key] = [
                lane
                for lane in self.ledger.task_queue.lanes.values()
                if lane.worker_gate in shares
                and (head := lane.head()) is not None
                and all(gate is lane.worker_gate for gate in self.blocks(lane, head))
            ]
        return self._beside[key]

    @cached_property
    def _by_block(self) -> dict[frozenset[Gate], list[tuple[Place, int, Lane[TaskEntry]]]]:
        """Gates that have to be opened → lanes, with the place of the first in each."""
        found: dict[frozenset[Gate], list[tuple[Place, int, Lane[TaskEntry]]]] = {}
        for number, lane in enumerate(self.ledger.task_queue.lanes.values()):
            head = lane.head()
            if head is not None:
                parked = () if lane.parked_at is None else (lane.parked_at,)
                closed = frozenset((*self.blocks(lane, head), *parked))
                first = next(lane.in_order(), head)
                found.setdefault(closed, []).append(((first.rank, first.id), number, lane))
        return found

    def open_lanes(self, opened: frozenset[Gate]) -> list[Lane[TaskEntry]]:
        """Lanes that nothing else blocks than what is opened, in the order of the first of each."""
        return self._opened(opened)[1]

    def open_before(self, opened: frozenset[Gate], entry: TaskEntry) -> list[Lane[TaskEntry]]:
        """Those of them in which some stand before a task by rank and age."""
        heads, lanes = self._opened(opened)
        return lanes[: bisect_left(heads, (entry.rank, entry.id))]

    def _opened(self, opened: frozenset[Gate]) -> tuple[list[Place], list[Lane[TaskEntry]]]:
        found = self._open.get(opened)
        if found is None:
            several = sorted(
                each
                for closed, lanes in self._by_block.items()
                if closed <= opened
                for each in lanes
            )
            found = [place for place, _, _ in several], [lane for _, _, lane in several]
            self._open[opened] = found
        return found

    def taken(
        self, opened: frozenset[Gate], ahead: int, count: Callable[[], Counter[Gate]]
    ) -> Counter[Gate]:
        """What so many take of each gate, about: as many of them as were counted before, if that is near."""
        known, found = self._taken.get(opened, (0, Counter[Gate]()))
        if NEARLY * abs(known - ahead) > ahead:
            self._taken[opened] = ahead, (found := count())
        return found.copy()

    def key_of(self, wanted: WorkerGate, workers: Iterable[Worker]) -> Hashable:
        """The same for all that wait for the same permits. A step that no worker has waits for itself."""
        ids = frozenset(worker.id for worker in workers)
        return ("worker", wanted.requirement.executor, ids) if ids else wanted

    def ahead(self, key: Hashable, lanes: Sequence[Lane[TaskEntry]], entry: TaskEntry) -> int:
        """How many in `lanes` stand before a task by rank and age. `key`: of these lanes."""
        if key not in self._lines:
            long = [lane for lane in lanes if len(lane) > MAX_MERGED]
            short = (lane for lane in lanes if len(lane) <= MAX_MERGED)
            merged = sorted((task.rank, task.id) for lane in short for task in lane.live.values())
            self._lines[key] = list[tuple[object, ...]](merged), long
        merged, long = self._lines[key]
        own = (entry.rank, entry.id)
        return bisect_left(merged, own) + sum(lane.before(entry.rank, entry.id) for lane in long)

    # -- holders -----------------------------------------------------------------------------------

    @cached_property
    def unstopped(self) -> dict[int, Unstopped]:
        return unstopped_by_token(self.ledger.workers.by_id.values())

    @cached_property
    def stalled(self) -> set[str]:
        return {each.id for each in self.ledger.workers.by_id.values() if each.stalled_since}

    def holders_of(self, gate: Gate) -> list[TaskEntry]:
        """Tasks in flight that hold some of `gate`, the oldest first."""
        if gate not in self._holders:
            self._holders[gate] = _holders_of(self.ledger, gate)
        return self._holders[gate]

    def in_flight(self, key: Hashable, wanted: Callable[[TaskEntry], bool]) -> list[TaskEntry]:
        """Tasks in flight of which `wanted` is true. `key`: of this question."""
        if key not in self._running:
            self._running[key] = [
                task
                for run in self.ledger.runs.values()
                for task in run.tasks_in_flight()
                if wanted(task)
            ]
        return self._running[key]

    def gates_served(self, worker: Worker, executor: str) -> frozenset[Gate]:
        """Gates that a free permit of this worker may open."""
        key = (worker.id, executor)
        if key not in self._served:
            self._served[key] = frozenset(
                gate
                for gate in self.ledger.workers.gates.values()
                if gate.requirement.executor == executor and worker.fits(gate.requirement)
            )
        return self._served[key]

    def opened_by(
        self, key: Hashable, ending: list[TaskEntry], more: frozenset[Gate]
    ) -> frozenset[Gate]:
        """Gates that may open when these tasks end, and `more`. `key`: of both."""
        if key not in self._opened_by:
            opened, workers = set(more), self.ledger.workers.by_id
            for task in ending:
                if task.lane is not None:
                    opened.update(task.lane.gates, (pool for pool, _ in task.lane.slots))
            for name, executor in {(task.worker or "", task.spec.executor) for task in ending}:
                if name in workers:
                    opened |= self.gates_served(workers[name], executor)
            self._opened_by[key] = frozenset(opened)
        return self._opened_by[key]

    # -- estimates ---------------------------------------------------------------------------------

    def spent(
        self, typical: Typical, key: Hashable, lanes: Sequence[Lane[TaskEntry]], ahead: int
    ) -> Typical:
        """With fewer draws where many different steps go first: what is drawn from is made for each of them."""
        if key not in self._kinds:
            self._kinds[key] = len({lane.worker_gate for lane in lanes})
        cost = DRAWS_PER_STEP * min(ahead, self._kinds[key] - 1)
        return msgspec.structs.replace(typical, draws=max(0, typical.draws - cost))

    def wait(
        self,
        key: Hashable,
        lanes: Sequence[Lane[TaskEntry]],
        entry: TaskEntry,
        ahead: int,
        what: str,
        typical: Typical,
        estimate: Callable[[], WaitEstimate],
    ) -> WaitEstimate:
        """How long a wait lasts: estimated for the first two of a line, in between a part of both.

        The part is that of the work before it, not of the number: long and short steps may stand in one line.

        key    of the line, which is `lanes`
        ahead  how many go first
        what   it is called in the text
        """
        if self.ledger.task_queue.turns.fair is not None:
            return estimate()
        if key not in self._works:
            self._works[key] = _Work(lanes, typical)
        work, known = self._works[key].before(entry), self._waits.setdefault(key, [])
        for one, other in pairwise(known):
            if one[0] <= work <= other[0] and (found := _between(one, other, work)):
                place = f"{nth(ahead + 1)} of {max(found.waiters, ahead + 1):,} for {what}"
                return found._replace(basis=f"{place}, from what the steps before it usually take")
        found = estimate()
        known.append((work, found))
        known.sort(key=lambda each: each[0])
        return found


class _Work:
    """What the waiters of a line would take one after the other, in microseconds."""

    def __init__(self, lanes: Sequence[Lane[TaskEntry]], typical: Typical) -> None:
        means = {step: sum(held) / len(held) for step, held in typical.holds.items() if held}
        usual = sum(means.values()) / len(means) if means else 1.0
        self._long: list[tuple[Lane[TaskEntry], float]] = []
        short: list[tuple[tuple[int, int], int, float]] = []
        for lane in lanes:
            head = lane.head()
            if head is None:
                continue
            mean = means.get(head.spec.step, usual)
            if len(lane) > MAX_MERGED:
                self._long.append((lane, mean))
            else:
                short += [(task.rank, task.id, mean) for task in lane.live.values()]
        short.sort()
        self._merged = [(rank, task) for rank, task, _ in short]
        self._sums = [0.0, *accumulate(mean for _, _, mean in short)]

    def before(self, entry: TaskEntry) -> float:
        found = self._sums[bisect_left(self._merged, (entry.rank, entry.id))]
        return found + sum(mean * lane.before(entry.rank, entry.id) for lane, mean in self._long)


def _between(
    one: tuple[float, WaitEstimate], other: tuple[float, WaitEstimate], work: float
) -> WaitEstimate | None:
    (first, low), (last, high) = one, other
    if low.us is None or high.us is None or low.p90_us is None or high.p90_us is None:
        return None
    part = (work - first) / (last - first) if last > first else 0.0
    return low._replace(
        us=round(low.us + part * (high.us - low.us)),
        p90_us=round(low.p90_us + part * (high.p90_us - low.p90_us)),
    )


def uses(task: TaskEntry, gate: Gate) -> int:
    """How much of `gate` this task needs or holds."""
    if task.lane is None:
        return 0
    return sum(slots for pool, slots in task.lane.slots if pool is gate) or int(
        gate in task.lane.gates
    )


def _holders_of(ledger: Ledger, gate: Gate) -> list[TaskEntry]:
    lingering = ledger.lingering.items() if isinstance(gate, PoolGate) else ()
    held = gate.used - sum(slots for (_, _, name), (slots, _, _) in lingering if name == gate.name)
    found: list[TaskEntry] = []
    for run in ledger.runs.values():
        for task in run.tasks_in_flight():
            if slots := uses(task, gate):
                found.append(task)
                held -= slots
            if held <= 0:
                break
        if held <= 0:
            break
    return sorted(found, key=lambda task: task.started_at or task.scheduled_at)
