"""What would let a task start: the limit that is enough, holders whose end is enough, an instant, a worker.

The gates that block it are opened in thought. Those that stand before it in the order of decision, and that
nothing else blocks, then start first and take of every gate they need. If that closes another gate, it is opened
too, and so on. What is named is enough if nobody else comes, and less is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from locktender.base.durations import spoken
from locktender.kernel.entries import TaskEntry
from locktender.kernel.fair_turns import Turns
from locktender.kernel.gate_view import GateView, uses
from locktender.kernel.gates.pool import PoolGate
from locktender.kernel.gates.protocol import UNBOUNDED, Gate, Key, Lane, SlotGate
from locktender.kernel.gates.rate import RateGate
from locktender.kernel.gates.worker import WorkerGate
from locktender.kernel.ledger import Ledger
from locktender.kernel.placement import Worker
from locktender.kernel.reasons import MAX_HOLDERS_SHOWN, GateOpening, ends_text


class Trial(NamedTuple):
    """What happens before a task starts if the gates that block it are opened."""

    opened: dict[Gate, int]
    """Gates that have to be opened → how much those before it take there, and what is kept for others."""
    before: list[TaskEntry]
    """Who starts before it, in order."""
    about: bool
    """There are more before it than were looked at."""


def openings(view: GateView, entry: TaskEntry, lane: Lane[TaskEntry]) -> list[GateOpening]:
    """What each gate in the way of a requested task lacks; all of it together lets the task start."""
    trial = tried(view, entry, lane)
    asked = _Asked(view, entry, lane, trial)
    return [asked.opening(gate, taken) for gate, taken in trial.opened.items()]


def tried(view: GateView, entry: TaskEntry, lane: Lane[TaskEntry]) -> Trial:
    ledger = view.ledger
    if not entry.in_line:
        entry.rank = ledger.rank_of(entry)
    blocks = ledger.task_queue.blocks(lane, entry, view.now)
    opened = dict.fromkeys([block.gate for block in blocks], 0)
    while True:
        walk = _Walk(view, entry, lane, frozenset(opened))
        more = walk.closed_behind()
        if not more:
            taken = {gate: walk.taken[gate] + walk.kept(gate, lane, entry) for gate in opened}
            # Which of those before it go to a new worker, and which to those with room, is not foreseen.
            either = any(isinstance(gate, WorkerGate) and gate.room > 0 for gate in opened)
            return Trial(taken, walk.started, walk.about or either)
        opened |= dict.fromkeys(more, 0)


class _Walk:
    """Those before a task start as far as they can. Permits are taken of the real workers, and given back."""

    def __init__(
        self, view: GateView, entry: TaskEntry, lane: Lane[TaskEntry], opened: frozenset[Gate]
    ) -> None:
        self._view, self._ledger = view, view.ledger
        self._queue, self._now = view.ledger.task_queue, view.now
        self._entry, self._lane, self._opened = entry, lane, opened
        self.taken: Counter[Gate] = Counter()
        self.started: list[TaskEntry] = []
        self.about: bool = False
        self._served: set[Lane[TaskEntry]] = set()
        self._turns = Turns()
        turns = self._queue.turns
        self._turns.set(turns.fair)
        self._turns.clock, self._turns.present = dict(turns.clock), turns.present
        self._placed: list[tuple[Worker, str]] = []
        self._closed: list[Gate] = []
        try:
            self._walk()
            self._closed = list(self._not_passed(lane, entry))
        finally:
            for worker, executor in self._placed:
                self._ledger.workers.undo_claim(worker, executor)

    def closed_behind(self) -> list[Gate]:
        """Gates that are open now, and closed when the task's turn comes."""
        return self._closed

    def _walk(self) -> None:
        lines: list[tuple[Key, int, Lane[TaskEntry], list[TaskEntry]]] = []
        view, entry, own = self._view, self._entry, (self._entry.rank, self._entry.id)
        lanes = view.open_lanes(self._opened)
        count = view.ahead(self._opened, lanes, entry)
        apart = self._lane not in lanes and self._stands()
        if self._turns.fair is None:
            lanes = view.open_before(self._opened, entry)
        if apart:
            lanes, count = [*lanes, self._lane], count + older(self._lane, entry)
        if count > view.max_walked:
            self.about = True
            self.taken = view.taken(self._opened, count, lambda: self._all_of(lanes))
            return
        for number, lane in enumerate(lanes):
            # Where turns are taken, others than the older ones may go first.
            if waiting := self._first(lane, own):
                lines.append((self._key(lane, waiting[-1]), number, lane, waiting))
        heapify(lines)
        while lines:
            key, number, lane, waiting = heappop(lines)
            actual = self._key(lane, waiting[-1])
            if actual >= self._key(self._lane, self._entry):
                if actual == key:
                    return
            elif actual == key:
                if any(True for _ in self._not_passed(lane, waiting[-1])):
                    continue
                self._start(lane, waiting.pop())
                if len(self.started) > self._view.max_walked:
                    self.about = True
                    return
            if waiting:
                heappush(lines, (self._key(lane, waiting[-1]), number, lane, waiting))

    def _stands(self) -> bool:
        at = self._lane.parked_at
        return (at is None or at in self._opened) and self._lane.head() is not None

    def _all_of(self, lanes: Iterable[Lane[TaskEntry]]) -> Counter[Gate]:
        """What those before it take, each of them."""
        for lane in lanes:
            if count := older(lane, self._entry):
                self._take(lane, count)
        return self.taken

    def _first(self, lane: Lane[TaskEntry], own: tuple[tuple[int, int], int]) -> list[TaskEntry]:
        """Its first waiters, the first last. In its own lane, and where no turns are taken, the older ones."""
        only_older = lane is self._lane or self._turns.fair is None
        found: list[TaskEntry] = []
        for task in lane.in_order():
            if len(found) >= self._view.max_walked or (only_older and (task.rank, task.id) >= own):
                break
            if task is not self._entry:
                found.append(task)
        return found[::-1]

    def _key(self, lane: Lane[TaskEntry], task: TaskEntry) -> Key:
        return (task.rank[0], self._turns.of(lane.fair), task.rank[1], task.id)

    def _not_passed(self, lane: Lane[TaskEntry], task: TaskEntry) -> Iterator[Gate]:
        """Gates that are not opened and do not let it pass behind those that have started."""
        needs = [(gate, 1) for gate in lane.gates] + list(lane.needs)
        for gate, need in needs:
            if gate not in self._opened:
                taken = self.taken[gate] + self.kept(gate, lane, task)
                if gate.blocks(taken + need, self._now) is not None:
                    yield gate
        gate = lane.worker_gate
        if isinstance(gate, WorkerGate) and gate not in self._opened and self._pick(gate) is None:
            yield gate

    def _start(self, lane: Lane[TaskEntry], task: TaskEntry) -> None:
        self._take(lane, 1)
        gate = lane.worker_gate
        if isinstance(gate, WorkerGate):
            self.taken[gate] -= 1
            worker = None if gate in self._opened else self._pick(gate)
            if worker is None:
                self.taken[gate] += 1
            else:
                self._ledger.workers.claim_permit(worker, gate.requirement.executor, offered=True)
                self._placed.append((worker, gate.requirement.executor))
        if self._queue.reserved.get(lane) is task:
            self._served.add(lane)
        self._turns.advance(lane.fair)
        self.started.append(task)

    def _take(self, lane: Lane[TaskEntry], count: int) -> None:
        for gate in lane.gates:
            self.taken[gate] += count
        for gate, need in lane.needs:
            self.taken[gate] += need * count
        if lane.worker_gate is not None:
            self.taken[lane.worker_gate] += count

    def _pick(self, gate: WorkerGate) -> Worker | None:
        return self._ledger.workers.pick(gate.requirement)

    def kept(self, gate: Gate, lane: Lane[TaskEntry], task: TaskEntry) -> int:
        """Slots that stay reserved for tasks before it which have not started."""
        if not isinstance(gate, SlotGate) or not gate.kept:
            return 0
        others = self._queue.kept_for_others(gate, lane, task, self._key)
        return sum(slots for other, slots in others if other not in self._served)


class _Asked(NamedTuple):
    """One task that is asked about, and what happens before it."""

    view: GateView
    entry: TaskEntry
    lane: Lane[TaskEntry]
    trial: Trial

    def opening(self, gate: Gate, taken: int) -> GateOpening:
        """What `gate` lacks; `taken`: what those before the task take of it."""
        need = next((slots for pool, slots in self.lane.needs if pool is gate), 1)
        return TASK_OPENINGS[gate.kind](self, gate, taken, need)

    def worker(self, gate: Gate, taken: int, need: int) -> GateOpening:
        assert isinstance(gate, WorkerGate)  # noqa: S101
        requirement, permits, ends = gate.requirement, taken + need, self._permits_to_free(gate)
        wanted = "".join(f" and {label}={value}" for label, value in requirement.needs)
        several = "one" if permits == 1 else str(permits)
        text = (
            f"{several} more {requirement.executor} permit{'' if permits == 1 else 's'}"
            f" on workers with step {requirement.step}{wanted}"
        )
        if ends.enough:
            text += f", or {ends.text()}"
        return GateOpening(
            "worker", text, None, ends.tasks, ends.enough, permits=permits, about=self.trial.about
        )

    def rate(self, gate: Gate, taken: int, need: int) -> GateOpening:
        assert isinstance(gate, RateGate)  # noqa: S101
        now = self.view.now
        at = gate.granted_at(need, after=taken, now=now)
        if at == UNBOUNDED:
            text = f"pool {gate.name} with a burst of {need} (locktender pools set {gate.name} --burst {need})"
            return GateOpening(gate.label(), text, need)
        text = f"{spoken(max(0, at - now))} to pass for the rate of pool {gate.name}"
        return GateOpening(gate.label(), text, at=at, about=self.trial.about)

    def bound(self, gate: Gate, taken: int, need: int) -> GateOpening:
        """The run's own bounds are part of its flow: nobody can change them."""
        slots, ends = gate.used + taken + need - gate.limit, self._ends(gate, need)
        text = ends.text() if ends.tasks else "those before it to end"
        about = self.trial.about
        return GateOpening(
            gate.label(), text, None, ends.tasks, ends.enough, slots=slots, about=about
        )

    def pool(self, gate: Gate, taken: int, need: int) -> GateOpening:
        assert isinstance(gate, PoolGate)  # noqa: S101
        name, limit = gate.label(), gate.used + taken + need
        slots = limit - gate.limit
        if gate.limit < 0 or slots <= 0:
            return GateOpening(name, f"pool {gate.name} resumed", resume=True)
        ends = self._ends(gate, need)
        text = f"pool {gate.name} {gate.limit} → {limit}" + (" and resumed" if gate.paused else "")
        at = None
        if gate.limit < need:
            ends = _Ends()
            if limit > need:
                text += f" to start at once, or → {need} and those before it to end"
            text += f" (locktender pools set {gate.name} {need})"
        elif not gate.paused:
            text += f", or {ends.text()}" if ends.tasks else ""
            at, dead = _dead(self.view.ledger, gate, slots)
            if at is not None:
                left = spoken(max(0, at - self.view.now))
                text += f", or {left} to pass: slots are kept for dead worker {dead}"
        return GateOpening(
            name,
            text,
            limit,
            ends.tasks,
            ends.enough,
            slots=slots,
            resume=gate.paused,
            at=at,
            about=self.trial.about,
        )

    def _ends(self, gate: Gate, need: int) -> _Ends:
        """Who holds it, and how many of them have to end.

        Their end opens other gates too: some that these block alone may start first.
        """
        holders = self.view.holders_of(gate)
        if self.trial.about:
            return _ends([(task.id, 1) for task in holders], UNBOUNDED)
        walk = self._behind(gate, holders, frozenset())
        taken = walk.taken[gate] + walk.kept(gate, self.lane, self.entry)
        slots = gate.used + taken + need - gate.limit
        return _ends([(task.id, uses(task, gate)) for task in holders], slots)

    def _behind(self, key: Hashable, ending: list[TaskEntry], more: frozenset[Gate]) -> _Walk:
        """Who starts before it if these end. `key`: of those and of what else is opened."""
        opened = self.view.opened_by(key, ending, more)
        if not self.trial.opened.keys() <= opened:
            opened = opened.union(self.trial.opened)
        return _Walk(self.view, self.entry, self.lane, opened)

    def _permits_to_free(self, gate: WorkerGate) -> _Ends:
        """Tasks whose end leaves permits for it and for those before it that wait for the same ones.

        Nothing is said where those workers lack more than permits, or where some of them serve others alone.
        """
        workers, executor = self.view.ledger.workers, gate.requirement.executor
        several = list(workers.matching(gate.requirement))
        served = {self.view.gates_served(worker, executor) for worker in several}
        # Who serves some of them serves all, and no other worker does.
        if len(served) != 1 or any(worker.room(executor)[1] != "permits" for worker in several):
            return _Ends()
        [sharing] = served
        ids = frozenset(worker.id for worker in several)
        if any(
            not sharing.isdisjoint(self.view.gates_served(other, executor))
            for other in workers.by_id.values()
            if other.id not in ids
        ):
            return _Ends()
        key = ("permits", executor, ids)
        running = self.view.in_flight(
            key,
            lambda task: task.worker in ids and task.spec.executor == executor,
        )
        walk = self._behind(key, running, sharing)
        free = 1 + sum(walk.taken[other] for other in walk.taken.keys() & sharing)
        ends = _ends([(task.id, 1) for task in running], free)
        return ends if ends.enough else _Ends()


def _dead(ledger: Ledger, pool: PoolGate, slots: int) -> tuple[int | None, str]:
    """When so many slots of dead workers come free by themselves, and whose the last of them is."""
    for until, held, worker in sorted(
        (until, held, worker)
        for (_, _, name), (held, until, worker) in ledger.lingering.items()
        if name == pool.name
    ):
        slots -= held
        if slots <= 0:
            return until, worker
    return None, ""


class _Ends(NamedTuple):
    tasks: tuple[int, ...] = ()
    """The first holders."""
    enough: int = 0
    """How many holders have to end, whichever. 0: all of them do not do."""
    more: int = 0
    """Holders that are not among the first."""

    def text(self) -> str:
        return ends_text("task", [str(each) for each in self.tasks], self.enough, self.more)


def _ends(holders: list[tuple[int, int]], slots: int) -> _Ends:
    tasks = tuple(task for task, _ in holders[:MAX_HOLDERS_SHOWN])
    more, free = len(holders) - len(tasks), 0
    for ends, held in enumerate(sorted(held for _, held in holders), 1):
        free += held
        if free >= slots:
            return _Ends(tasks, ends, more)
    return _Ends(tasks, 0, more)


TASK_OPENINGS: Final[dict[str, Callable[[_Asked, Gate, int, int], GateOpening]]] = {
    "run": _Asked.bound,
    "window": _Asked.bound,
    "pool": _Asked.pool,
    "rate": _Asked.rate,
    "worker": _Asked.worker,
}
"""What opens a gate, by its kind."""


def older(lane: Lane[TaskEntry], task: TaskEntry) -> int:
    """How many of a lane stand before a task by rank and age."""
    return lane.before(task.rank, task.id)
