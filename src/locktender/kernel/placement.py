"""Workers and placement: the last gate. A task takes a permit only when every other gate has agreed.

`spread` offers to the worker with the most free permits; `pack` fills workers
in a stable order, so that the last ones drain, go idle and can end themselves.
Affinity is a preference, never a queue.

One exception to *the most free permits first*: the leader's own worker, which is
quicker to hand work to than any other, waits a moment for those that have work of
the same kind in hand while it is well ahead of them (`tally.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from locktender.base.limits import Placement
from locktender.base.model import WorkerRow
from locktender.kernel.gates import UNBOUNDED, Gate
from locktender.kernel.tally import Tally

A_SIP = 4
"""With fewer offers at a time than these, a worker's share is what its answers allow, and nobody waits for it."""
A_ROUND = 50
"""What an equal worker is behind beyond so many, or one task for each permit, it need not catch up."""
HOLD = "hold"
"""The kind of permit of a process that only holds slots for code of its own."""
MOST_LIKINGS = 10_000
"""Texts of `affinity` whose worker is remembered."""
PATIENCE_US = 1_000_000
"""How long an answer is waited for: a poll, if the worker did not hear of the offer."""


class Requirement(NamedTuple):
    """What a task asks of a worker."""

    executor: str
    step: str
    signature: str
    needs: tuple[tuple[str, str], ...]


class Worker:
    """A worker as the coordinator sees it. What is in flight is counted from tasks, not believed."""

    __slots__ = (
        "_fits",
        "assigned",
        "by",
        "given",
        "local",
        "offered",
        "row",
        "silent",
        "used",
        "used_by",
    )

    def __init__(self, row: WorkerRow, *, local: bool = False) -> None:
        self.row: WorkerRow = row
        self.by: dict[str, object] = {"by": f"worker:{row.id}"}
        """What its changes carry when the leader writes them: one dictionary for all."""
        self.local: bool = local
        self.used: int = 0
        self.used_by: dict[str, int] = {}
        self.offered: int = 0
        """Offers it has not answered yet: `claim` bounds these."""
        self.given: int = 0
        """Of the leader's own worker, which is offered nothing: what it was given in all. `claim` bounds it."""
        self.silent: bool = False
        """An offer to it ran out unanswered, and it has answered none since."""
        self.assigned: int = 0
        self._fits: dict[Requirement, bool] = {}

    @property
    def id(self) -> str:
        return self.row.id

    def describe(self, row: WorkerRow) -> None:
        known = self.row
        if (row.labels, row.steps, row.permits) != (known.labels, known.steps, known.permits):
            self._fits.clear()
        self.row = row

    def fits(self, skill: Requirement) -> bool:
        known = self._fits.get(skill)
        if known is None:
            row = self.row
            known = self._fits[skill] = (
                row.permits.get(skill.executor, 0) != 0
                and all(row.labels.get(label) == value for label, value in skill.needs)
                and (row.steps is None or row.steps.get(skill.step) == skill.signature)
            )
        return known

    def free(self, executor: str) -> int:
        """How many more tasks of this kind it may be offered now."""
        row = self.row
        if row.draining or executor in row.full:
            return 0
        free = self.vacant(executor)
        if row.share < 100:
            free = min(free, self._pressed(executor))
        return min(free, row.claim - self.offered - self.given) if row.claim >= 0 else free

    def _pressed(self, executor: str) -> int:
        """Under pressure it uses a part of its permits, and at least one: else it might stop for good.

        Where there is no bound there is no part of it: there only the claim is smaller.
        """
        row = self.row
        permits, room = row.permits.get(executor, 0), UNBOUNDED
        if permits >= 0:
            room = max(1, permits * row.share // 100) - self.used_by.get(executor, 0)
        if row.total >= 0:
            room = min(room, max(1, row.total * row.share // 100) - self.used)
        return room

    def pressed_out(self, executor: str) -> bool:
        """It has permits left, and uses none of them under the pressure it feels."""
        return self.row.share < 100 and self._pressed(executor) <= 0

    def size(self, executor: str) -> int:
        """Permits in all."""
        permits, total = self.row.permits.get(executor, 0), self.row.total
        size = UNBOUNDED if permits < 0 else permits
        return max(1, size if total < 0 else min(size, total))

    def usable(self, executor: str) -> int:
        """Permits in all, under the pressure it feels."""
        return max(1, self.size(executor) * self.row.share // 100)

    def vacant(self, executor: str) -> int:
        """Permits not in use, whatever it claims at the moment: how busy it is."""
        row = self.row
        permits = row.permits.get(executor, 0)
        vacant = UNBOUNDED - self.used if permits < 0 else permits - self.used_by.get(executor, 0)
        return min(vacant, row.total - self.used) if row.total >= 0 else vacant

    def sips(self, executor: str) -> bool:
        """It has permits for more than the few tasks it takes at a time: answers bound it, not bodies."""
        row = self.row
        return executor not in row.full and 0 < row.claim < min(A_SIP, self.size(executor))


class WorkerGate(Gate):
    """Where lanes wait for a worker with one skill."""

    __slots__ = ("floor", "skill", "tally")

    def __init__(self, skill: Requirement, floor: WorkerSet) -> None:
        super().__init__("worker", skill.step, -1)
        self.skill: Requirement = skill
        self.floor: WorkerSet = floor
        self.tally: Tally = Tally()

    @property
    def room(self) -> int:
        return 1 if self.floor.pick(self.skill) is not None else 0


class WorkerSet:
    """All workers, in a stable order."""

    def __init__(self, placement: Placement = "spread") -> None:
        self.placement: Placement = placement
        self.workers: dict[str, Worker] = {}
        self.stations: dict[Requirement, WorkerGate] = {}
        self.now: int = 0
        """Of the cycle that decides."""
        self.held_until: int | None = None
        """When whoever waits for an answer that does not come is to be looked at again."""
        self.unequal: bool = False
        """The leader's own worker is one of several: shares are counted."""
        self._ended: dict[WorkerGate, None] = {}
        """Stations of which the last task in flight has ended since the last decision."""
        self._ordered: list[Worker] = []
        self._liked: dict[str, str] = {}
        """Text of `affinity` → the worker that last had a task with it; who was asked for last stands last."""

    def station(self, skill: Requirement) -> WorkerGate:
        station = self.stations.get(skill)
        if station is None:
            station = self.stations[skill] = WorkerGate(skill, self)
        return station

    def put(self, row: WorkerRow, *, local: bool = False) -> Worker:
        worker = self.workers.get(row.id)
        if worker is None:
            worker = Worker(row, local=local)
            # It starts at the present: light load must not all go to whoever came last.
            worker.assigned = min((each.assigned for each in self._ordered), default=0)
            self.workers[row.id] = worker
            self._ordered = sorted(
                self.workers.values(), key=lambda each: (each.row.since, each.id)
            )
            self._compare()
        else:
            worker.describe(row)
        return worker

    def drop(self, worker_id: str) -> Worker | None:
        worker = self.workers.pop(worker_id, None)
        self._ordered = [each for each in self._ordered if each.id != worker_id]
        for station in self.stations.values():
            station.tally.forget(worker_id)
        self._compare()
        return worker

    def _compare(self) -> None:
        self.unequal = len(self._ordered) > 1 and any(each.local for each in self._ordered)
        if not self.unequal:
            # What is in flight now ends while nobody counts.
            for station in self.stations.values():
                station.tally.clear()

    def liked(self, affinity: str) -> str | None:
        """The worker that last had a task with this text, of whatever run."""
        return self._liked.get(affinity)

    def likes(self, affinity: str, worker: str) -> None:
        """A task with this text goes to `worker`: what it has warm is there from now on."""
        self._liked.pop(affinity, None)
        self._liked[affinity] = worker
        if len(self._liked) > MOST_LIKINGS:
            del self._liked[next(iter(self._liked))]

    def pick(self, skill: Requirement, prefer: str | None = None) -> Worker | None:
        executor = skill.executor
        if prefer is not None:
            liked = self.workers.get(prefer)
            if (
                liked is not None
                and not liked.silent
                and liked.fits(skill)
                and liked.free(executor) > 0
            ):
                return liked
        best = self._best(skill)
        if (
            best is not None
            and best.local
            and self.unequal
            and self.placement == "spread"
            and self._awaits(best, skill)
        ):
            # Nor does a silent one get it: the wait is shorter than that one's would be.
            other = self._best(skill, but=best)
            return None if other is None or other.silent else other
        return best

    def _best(self, skill: Requirement, but: Worker | None = None) -> Worker | None:
        executor = skill.executor
        best: Worker | None = None
        silent: Worker | None = None
        most_vacant = 0
        for worker in self._ordered:
            if worker is but or not worker.fits(skill):
                continue
            if worker.free(executor) <= 0:
                continue
            if worker.silent:
                # It lives but left an offer unanswered: only where nobody else can take the task.
                silent = silent or worker
                continue
            if self.placement == "pack":
                return worker
            vacant = worker.vacant(executor)
            # Ties go to whoever has had the least, so that light load is spread too.
            if vacant > most_vacant or (
                best is not None and vacant == most_vacant and worker.assigned < best.assigned
            ):
                best, most_vacant = worker, vacant
        return best or silent

    def _awaits(self, own: Worker, skill: Requirement) -> bool:
        """Whether the leader's own worker is to wait: it is ahead of an equal one that is about to be heard of."""
        tally, executor = self.station(skill).tally, skill.executor
        size = own.usable(executor)
        for other in self._ordered:
            if other is own:
                continue
            until = tally.awaited_until(other.id, own.id, PATIENCE_US)
            # One with fewer permits rightly gets fewer; against one without bound, as if it had as many.
            others = min(size, other.usable(executor))
            if until is None or not tally.ahead(own.id, other.id, size, others):
                continue
            if not other.fits(skill):
                continue
            others = max(1, others - tally.stuck(other.id, own.id, self.now))
            tally.forgive(own.id, other.id, size, others, min(others, A_ROUND))
            if not tally.ahead(own.id, other.id, size, others):
                continue
            if (
                other.silent
                or other.row.draining
                or other.sips(executor)
                # Later than patience allows only where a clock was set back.
                or not self.now < until <= self.now + PATIENCE_US
                or tally.slower(other.id, own.id)
            ):
                tally.excuse(own.id, other.id, size, others)
                continue
            held = self.held_until
            self.held_until = until if held is None else min(held, until)
            return True
        return False

    def take(self, worker: Worker, executor: str, *, offered: bool) -> None:
        worker.used += 1
        worker.used_by[executor] = worker.used_by.get(executor, 0) + 1
        worker.assigned += 1
        if offered:
            worker.offered += 1
        elif worker.local:
            worker.given += 1

    def give_back(self, worker_id: str, executor: str, *, offered: bool) -> list[WorkerGate]:
        """A permit is free again: the stations where somebody may now be served."""
        worker = self.workers.get(worker_id)
        if worker is None:
            return []
        worker.used -= 1
        worker.used_by[executor] -= 1
        if offered:
            worker.offered -= 1
        return self.waiting_for(worker, executor)

    def answered(self, worker_id: str) -> list[WorkerGate]:
        """An offer was accepted: it no longer counts against the worker's claim."""
        worker = self.workers.get(worker_id)
        if worker is None:
            return []
        worker.offered -= 1
        worker.given += worker.local
        worker.silent = False
        return self.waiting_for(worker, None)

    def left(self, station: WorkerGate, worker: str, task: int) -> None:
        """A task given at `station` is no longer in flight."""
        station.tally.left(worker, task)
        if station.tally.in_flight == 0:
            self._ended[station] = None

    def decided(self) -> None:
        """Whatever could be given was: where there was nothing, a piece of work is done."""
        for station in self._ended:
            if station.tally.in_flight == 0 and not station.parked:
                station.tally.begin_anew()
        self._ended.clear()

    def patience_ends(self) -> list[WorkerGate]:
        """Stations where somebody waits although an answer, awaited until now, has not come."""
        if self.held_until is None or self.now < self.held_until:
            return []
        self.held_until = None
        return [station for station in self.stations.values() if station.parked]

    def waiting_for(self, worker: Worker, executor: str | None) -> list[WorkerGate]:
        return [
            station
            for station in self.stations.values()
            if station.parked
            and (executor is None or worker.row.total >= 0 or station.skill.executor == executor)
            and worker.fits(station.skill)
        ]

    def matching(self, skill: Requirement) -> Iterable[Worker]:
        return (worker for worker in self._ordered if worker.fits(skill))
