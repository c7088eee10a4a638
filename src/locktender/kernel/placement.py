"""Workers and placement: the last gate. A task takes a permit only when every other gate has agreed.

`spread` offers to the worker with the most free permits; `pack` fills workers
in a stable order, so that the last ones drain, go idle and can end themselves.
Affinity is a preference: no task waits for the worker it prefers.

The leader's own worker starts tasks with the commit that decides them only
while no other live worker could run them. Beside others it gets offers as they
do: else it would have most of the work, for being near and not for being fast.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from locktender.base.commits import Silence
from locktender.base.graph import TRACE
from locktender.base.limits import Placement
from locktender.base.model import WorkerRow
from locktender.kernel.claim import TOTAL, UNANSWERED
from locktender.kernel.gates.protocol import UNBOUNDED
from locktender.kernel.gates.worker import Requirement, WorkerGate

HOLD = "hold"
"""The kind of permit of a process that only holds slots for code of its own."""
MAX_OWN_OFFERS = UNANSWERED
"""Offers that the leader's own worker may leave unanswered: as many as others claim by default."""
MAX_AFFINITIES = 10_000
"""Texts of `affinity` whose worker is remembered."""

FIRST_PAUSE_US = 2_000_000
"""For how long a worker is passed over that left an offer unanswered; doubled by each that follows."""
MAX_PAUSE_US = 60_000_000

NoRoom = Literal[
    "", "stalled", "draining", "silent", "permits", "total", "full", "pressed", "offers", "claim"
]
"""What keeps a worker from getting one more task; empty where nothing does."""


def _abilities(row: WorkerRow) -> tuple[object, ...]:
    return row.labels, row.steps, row.flows, row.permits


Misfit = Literal["", "code", "version", "labels", "permits"]
"""The first thing that a worker lacks for a requirement; empty where it fits."""


class Worker:
    """A worker as the leader sees it. What is in flight is counted from tasks, not from its reports."""

    __slots__ = (
        "_misfits",
        "asked_again_at",
        "assigned",
        "by",
        "given",
        "id",
        "local",
        "offered",
        "passed_over",
        "row",
        "silent_since",
        "stalled_since",
        "trial",
        "unanswered",
        "used",
        "used_by",
    )

    def __init__(self, row: WorkerRow, *, local: bool = False) -> None:
        self.row: WorkerRow = row
        self.id: str = row.id
        self.by: dict[str, object] = {"by": f"worker:{row.id}"}
        """What its changes carry when the leader writes them: one dictionary for all."""
        self.local: bool = local
        self.used: int = 0
        self.used_by: dict[str, int] = {}
        self.offered: int = 0
        """Offers it has not answered yet: `claim` bounds these."""
        self.given: int = 0
        """Of the leader's own worker: how many tasks it has begun in this term. Its `claim` bounds these too."""
        self.unanswered: int = 0
        """Offers in a row that expired unanswered. From the first on it gets one offer at a time."""
        self.passed_over: bool = False
        """It gets none at all before `asked_again_at`."""
        self.asked_again_at: int = 0
        self.silent_since: int = 0
        """When the last unanswered offer was counted: offers made before it are not counted again."""
        self.trial: int = 0
        """The task that it was offered last since it left an offer unanswered."""
        self.stalled_since: int = 0
        """Its lease has passed and its process lives: since when. 0: it is not stalled."""
        self.assigned: int = 0
        self._misfits: dict[Requirement, Misfit] = {}

    def describe(self, row: WorkerRow) -> None:
        known = self.row
        if _abilities(row) != _abilities(known):
            self._misfits.clear()
        self.row = row

    @property
    def fitness(self) -> tuple[object, ...]:
        """Whatever decides which tasks it can take at all."""
        row = self.row
        return row.draining, *_abilities(row)

    def fits(self, requirement: Requirement) -> bool:
        known = self._misfits.get(requirement)
        if known is None:
            known = self._misfits[requirement] = self.misfit(requirement)
        return not known

    def misfit(self, requirement: Requirement) -> Misfit:
        """What it lacks. Of a flow that is to be traced, any version will do."""
        row = self.row
        if row.steps is not None:
            if requirement.step == TRACE:
                if requirement.signature not in row.flows:
                    return "code"
            elif requirement.step not in row.steps:
                return "code"
            elif row.steps[requirement.step] != requirement.signature:
                return "version"
        if any(row.labels.get(label) != value for label, value in requirement.needs):
            return "labels"
        return "" if row.permits.get(requirement.executor, 0) else "permits"

    def room(self, executor: str) -> tuple[int, NoRoom]:
        """How many more tasks of this kind it may get now; where none, the hardest bound."""
        row = self.row
        if self.stalled_since:
            return 0, "stalled"
        if row.draining:
            return 0, "draining"
        if self.unanswered and (self.passed_over or self.offered):
            return 0, "silent"
        permits, used = row.permits.get(executor, 0), self.used_by.get(executor, 0)
        room = UNBOUNDED - self.used if permits < 0 else permits - used
        if room <= 0:
            return 0, "permits"
        if row.total >= 0:
            room = min(room, row.total - self.used)
            if room <= 0:
                return 0, "total"
        if row.full and (executor in row.full or TOTAL in row.full):
            return 0, "full"
        if row.share < 100:
            # Where there is no bound there is no part of it: there only the claim is smaller.
            if permits >= 0:
                room = min(room, self.usable(permits) - used)
            if row.total >= 0:
                room = min(room, self.usable(row.total) - self.used)
            if room <= 0:
                return 0, "pressed"
        if self.unanswered:
            room = 1
        if row.claim >= 0:
            room = min(room, row.claim - self.offered - self.given)
        if self.local:
            room = min(room, MAX_OWN_OFFERS - self.offered)
        if room <= 0:
            return 0, "offers" if self.offered else "claim"
        return room, ""

    def usable(self, permits: int) -> int:
        """How many of its permits it uses under pressure: at least one, else it might stop for good."""
        return max(1, permits * self.row.share // 100)

    @property
    def bounded_by_answers(self) -> bool:
        """It gets no more offers before those that it has are answered."""
        return bool(self.unanswered) or 0 <= self.row.claim <= self.offered + self.given

    def vacant(self, executor: str) -> int:
        """Permits not in use, whatever it claims at the moment: how busy it is."""
        row = self.row
        permits = row.permits.get(executor, 0)
        vacant = UNBOUNDED - self.used if permits < 0 else permits - self.used_by.get(executor, 0)
        return min(vacant, row.total - self.used) if row.total >= 0 else vacant


class WorkerSet:
    """All workers, in a stable order."""

    def __init__(self, placement: Placement = "spread") -> None:
        self.placement: Placement = placement
        self.by_id: dict[str, Worker] = {}
        self.gates: dict[Requirement, WorkerGate] = {}
        self._ordered: list[Worker] = []
        self._preferred: dict[str, str] = {}
        """Text of `affinity` → the worker that last had a task with it, the latest last."""
        self.silences_changed: bool = False
        self._freed: dict[tuple[str, str | None], None] = {}
        """Workers that got room since `reopened`, and for which executor; None: for any."""
        self.some_unfit: bool = False
        """There is a gate for which no worker is fit."""
        self.refitted: list[WorkerGate] = []
        """Gates that lost their last fitting worker, or got one, since this was last emptied."""

    def gate(self, requirement: Requirement) -> WorkerGate:
        gate = self.gates.get(requirement)
        if gate is None:
            gate = self.gates[requirement] = WorkerGate(requirement, self.pick)
            gate.unfit = not self._fits_any(requirement)
            self.some_unfit = self.some_unfit or gate.unfit
        return gate

    def put(self, row: WorkerRow, *, local: bool = False) -> Worker:
        worker = self.by_id.get(row.id)
        before = None if worker is None else worker.fitness
        if worker is None:
            worker = Worker(row, local=local)
            # It starts at the present: light load must not all go to the newest worker.
            worker.assigned = min((each.assigned for each in self._ordered), default=0)
            self.by_id[row.id] = worker
            self._ordered = sorted(self.by_id.values(), key=lambda each: (each.row.since, each.id))
        else:
            worker.describe(row)
        if worker.fitness != before:
            self._refit()
        return worker

    def _fits_any(self, requirement: Requirement) -> bool:
        return any(not worker.row.draining and worker.fits(requirement) for worker in self._ordered)

    def _refit(self) -> None:
        for gate in self.gates.values():
            unfit = not self._fits_any(gate.requirement)
            if unfit != gate.unfit:
                gate.unfit = unfit
                self.refitted.append(gate)
        self.some_unfit = any(gate.unfit for gate in self.gates.values())

    def drop(self, worker_id: str) -> Worker | None:
        worker = self.by_id.pop(worker_id, None)
        if worker is not None and worker.unanswered:
            self.silences_changed = True
        self._ordered = [each for each in self._ordered if each.id != worker_id]
        if worker is not None:
            self._refit()
        return worker

    def alone(self, worker: Worker, requirement: Requirement) -> bool:
        """Whether `worker` is the only one that could take such a task."""
        return not any(
            other is not worker
            and not other.row.draining
            and not other.stalled_since
            and other.fits(requirement)
            for other in self._ordered
        )

    def preferred(self, affinity: str) -> str | None:
        """The worker that last had a task with this text, of whatever run."""
        return self._preferred.get(affinity)

    def prefer(self, affinity: str, worker: str) -> None:
        """A task with this text goes to `worker`: its caches are warm for the next one."""
        self._preferred.pop(affinity, None)
        self._preferred[affinity] = worker
        if len(self._preferred) > MAX_AFFINITIES:
            del self._preferred[next(iter(self._preferred))]

    def pick(self, requirement: Requirement, prefer: str | None = None) -> Worker | None:
        """The worker that gets the next such task; None where none has room."""
        executor = requirement.executor
        if prefer is not None:
            known = self.by_id.get(prefer)
            if (
                known is not None
                and not known.unanswered
                and known.fits(requirement)
                and known.room(executor)[0] > 0
            ):
                return known
        best: Worker | None = None
        silent: Worker | None = None
        most_vacant = 0
        for worker in self._ordered:
            if not worker.fits(requirement) or worker.room(executor)[0] <= 0:
                continue
            if worker.unanswered:
                # It lives but left an offer unanswered: only where no other worker can take the task.
                silent = silent or worker
                continue
            if self.placement == "pack" or len(self._ordered) == 1:
                return worker
            vacant = worker.vacant(executor)
            # Ties go to the worker that has had the least, so that light load is spread too.
            if vacant > most_vacant or (
                best is not None and vacant == most_vacant and worker.assigned < best.assigned
            ):
                best, most_vacant = worker, vacant
        return best or silent

    def claim_permit(self, worker: Worker, executor: str, *, offered: bool) -> None:
        worker.used += 1
        worker.used_by[executor] = worker.used_by.get(executor, 0) + 1
        worker.assigned += 1
        if offered:
            worker.offered += 1
        elif worker.local:
            worker.given += 1

    def undo_claim(self, worker: Worker, executor: str) -> None:
        """As if the offer that `claim_permit` counted had never been made."""
        worker.used -= 1
        worker.used_by[executor] -= 1
        worker.assigned -= 1
        worker.offered -= 1

    def give_back(self, worker_id: str, executor: str, *, offered: bool) -> None:
        """A permit is free again."""
        worker = self.by_id.get(worker_id)
        if worker is None:
            return
        worker.used -= 1
        worker.used_by[executor] -= 1
        if offered:
            worker.offered -= 1
        self._freed[worker_id, executor] = None

    def answered(self, worker_id: str) -> None:
        """An offer was accepted: it no longer counts against the worker's claim."""
        worker = self.by_id.get(worker_id)
        if worker is None:
            return
        worker.offered -= 1
        worker.given += worker.local
        if worker.unanswered:
            self.clear_silence(worker_id)
        self._freed[worker_id, None] = None

    def reopened(self) -> list[WorkerGate]:
        """Gates where a lane may be served now by a worker that got room since this was last asked.

        Found once for a cycle: most ends and answers of a cycle are of few workers.
        """
        freed, self._freed = self._freed, {}
        return [
            gate
            for worker_id, executor in freed
            if (worker := self.by_id.get(worker_id)) is not None
            for gate in self.waiting_for(worker, executor)
        ]

    def left_unanswered(self, worker_id: str, offered_at: int, now: int) -> int | None:
        """An offer to it expired: it is passed over until the instant returned. None: counted already."""
        worker = self.by_id.get(worker_id)
        if worker is None or offered_at < worker.silent_since:
            return None
        pause = min(MAX_PAUSE_US, FIRST_PAUSE_US << min(worker.unanswered, 16))
        self.pass_over(worker, worker.unanswered + 1, now + pause)
        worker.silent_since = now
        return worker.asked_again_at

    def pass_over(self, worker: Worker, unanswered: int, until: int) -> None:
        worker.unanswered, worker.asked_again_at = unanswered, until
        worker.passed_over = self.silences_changed = True

    def move_pauses(self, by: int) -> None:
        """The clock was set by so much: the pauses of silent workers move with it."""
        for worker in self._ordered:
            if worker.unanswered:
                worker.asked_again_at += by
                worker.silent_since += by
                self.silences_changed = True

    def clear_silence(self, worker_id: str) -> None:
        """It answered an offer: it gets as many as any other."""
        worker = self.by_id.get(worker_id)
        if worker is not None and worker.unanswered:
            worker.unanswered = worker.asked_again_at = worker.trial = 0
            worker.passed_over = False
            self.silences_changed = True

    def silences(self) -> list[Silence]:
        return [
            Silence(worker.id, worker.unanswered, worker.asked_again_at)
            for worker in self._ordered
            if worker.unanswered
        ]

    def waiting_for(self, worker: Worker, executor: str | None) -> list[WorkerGate]:
        """Gates where a lane waits that `worker` may serve now."""
        return [
            gate
            for gate in self.gates.values()
            if gate.parked
            and (executor is None or worker.row.total >= 0 or gate.requirement.executor == executor)
            and worker.fits(gate.requirement)
        ]

    def awaits_answer(self, worker_id: str) -> bool:
        """Whether more that waits could be offered to it, if it were known that it has accepted its offers."""
        worker = self.by_id.get(worker_id)
        return worker is None or (
            worker.bounded_by_answers
            and any(
                worker.vacant(gate.requirement.executor) > 0
                for gate in self.waiting_for(worker, None)
            )
        )

    def matching(self, requirement: Requirement) -> Iterable[Worker]:
        return (worker for worker in self._ordered if worker.fits(requirement))


def bound_by_total(worker: Worker, executor: str) -> bool:
    """Whether tasks of any kind are in the way there, and not only those of this one."""
    kind = worker.room(executor)[1]
    return kind == "total" or (
        kind in ("full", "pressed") and executor not in worker.row.full and worker.row.total >= 0
    )
