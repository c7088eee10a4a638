"""Demand: the tasks that pass every gate but the worker's, and what they need from a worker.

Provisioners get only these: a task behind another gate would not run on a new worker either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from locktender.base.graph import starts_in_order
from locktender.kernel.admission import AdmissionQueue
from locktender.kernel.entries import TaskEntry
from locktender.kernel.gates.protocol import Gate, Key, Lane
from locktender.kernel.gates.worker import Requirement
from locktender.kernel.placement import Worker, WorkerSet


class WaitingTasks(NamedTuple):
    """How many tasks with one requirement lack only a worker, and since when the first of them does."""

    tasks: int
    since: int


class Want(msgspec.Struct, frozen=True):
    """Tasks that ask the same of a worker."""

    executor: str
    needs: tuple[tuple[str, str], ...]
    """Labels, sorted."""
    step: str
    signature: str
    tasks: int
    since: int = 0
    """Since when the one that has waited longest has lacked only a worker."""
    workers: int = 0
    """Matching ones that take work at all: those that drain do not count."""
    room: int = 0
    """What these will take by themselves in a moment: free permits not on offer yet, or not answered for."""

    @property
    def requirement(self) -> Requirement:
        return Requirement(self.executor, self.step, self.signature, self.needs)


class Demand(msgspec.Struct, frozen=True):
    """The demand for workers at one instant."""

    total: int = 0
    wants: tuple[Want, ...] = ()
    """Those that have waited longest first."""
    workers: int = 0
    """All that are present, whatever they can do."""


def lacking(queue: AdmissionQueue[TaskEntry]) -> Iterator[tuple[Lane[TaskEntry], int]]:
    """Lanes that wait for a worker, and how many of each pass every other gate, all at once."""
    extra: dict[Gate, int] = {}
    waiting = [lane for lane in queue.lanes.values() if lane.parked_at is lane.worker_gate]
    ordered: list[tuple[Key, Lane[TaskEntry]]] = []
    for lane in waiting:
        head = lane.head()
        if head is not None:
            ordered.append((queue.key(lane, head), lane))
    ordered.sort(key=lambda each: each[0])
    for _, lane in ordered:
        room = len(lane)
        for gate in lane.gates:
            room = min(room, gate.room - extra.get(gate, 0))
        for pool, slots in lane.slots:
            room = min(room, (pool.room - extra.get(pool, 0)) // slots)
        if room <= 0:
            continue
        for gate in lane.gates:
            extra[gate] = extra.get(gate, 0) + room
        for pool, slots in lane.slots:
            extra[pool] = extra.get(pool, 0) + room * slots
        yield lane, room


def first_of(lane: Lane[TaskEntry], count: int) -> Sequence[TaskEntry]:
    """The first of a lane, in order where that is not all of them."""
    return list(lane.live.values()) if count >= len(lane) else list(islice(lane.in_order(), count))


def clock_of(task: TaskEntry) -> int:
    """Since when a waiting task has lacked only a worker, where its rows say so; 0: they do not.

    With no gate but the worker's that is since it was requested: nothing has to be stored for it.
    """
    lane = task.lane
    if task.eligible_at or lane is None or lane.gates or lane.needs:
        return task.eligible_at
    # An item of a sequential map stood aside until the one before it had ended.
    if starts_in_order(task.run.graph, task.spec):
        return 0
    return max(task.requested_at, task.not_before)


def demand_of(worker_set: WorkerSet, waiting: Mapping[Requirement, WaitingTasks]) -> Demand:
    wants: list[Want] = []
    for requirement, (tasks, since) in waiting.items():
        matching = [
            worker for worker in worker_set.matching(requirement) if not worker.row.draining
        ]
        room = sum(_room(worker, requirement.executor) for worker in matching)
        wants.append(
            Want(
                requirement.executor,
                requirement.needs,
                requirement.step,
                requirement.signature,
                tasks,
                since,
                len(matching),
                min(room, tasks),
            )
        )
    wants.sort(key=lambda want: (want.since, want.requirement))
    return Demand(sum(want.tasks for want in wants), tuple(wants), len(worker_set.by_id))


def _room(worker: Worker, executor: str) -> int:
    """Unlike `Worker.room` without what is on offer: the worker will answer, and then take as many again.

    One that left an offer unanswered may never: no task should wait for it.
    """
    row = worker.row
    if worker.unanswered or executor in row.full:
        return 0
    vacant = worker.vacant(executor)
    return max(0, min(vacant, row.claim - worker.given) if row.claim >= 0 else vacant)
