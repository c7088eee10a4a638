"""How many new workers the waiting tasks need: tasks are assigned to workers that have not joined yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from locktender.kernel.demand import Want
from locktender.kernel.gate_names import counted
from locktender.kernel.gates.protocol import UNBOUNDED
from locktender.kernel.placement import Requirement
from locktender.provision.protocol import Capacity

Needs = tuple[tuple[str, str], ...]
STEPS_NAMED = 3


class Ask(NamedTuple):
    """One request to a provisioner."""

    n: int
    needs: Needs
    reason: str
    skills: frozenset[Requirement]
    """What the new workers are expected to run."""
    capacity: Capacity


def new_workers(
    wants: Sequence[Want],
    capacities: Mapping[Needs, Capacity],
    coming: Iterable[Capacity],
    room: int,
) -> list[Ask]:
    """The requests, one per set of labels, for at most `room` workers.

    coming        the workers that were requested and have not joined
    capacities    the capacity of a new worker; it fits each of the wants
    """
    workers = [_FutureWorker(capacity) for capacity in coming]
    counts: dict[Needs, int] = {}
    for want in wants:
        left = want.tasks - want.room
        for worker in workers:
            left -= worker.assign(want.requirement, left)
        while left > 0 and room > 0:
            worker = _FutureWorker(capacities[want.needs])
            workers.append(worker)
            left -= worker.assign(want.requirement, left)
            room -= 1
            counts[want.needs] = counts.get(want.needs, 0) + 1
    return [_ask(n, needs, wants, capacities[needs]) for needs, n in counts.items()]


def fits(capacity: Capacity, skill: Requirement) -> bool:
    """Whether such a worker can run such a task."""
    return (
        capacity.permits.get(skill.executor, 0) != 0
        and capacity.total != 0
        and all(capacity.labels.get(label) == value for label, value in skill.needs)
        and (capacity.steps is None or capacity.steps.get(skill.step) == skill.signature)
    )


def skill_text(skill: Requirement) -> str:
    labels = "".join(f", {label}={value}" for label, value in skill.needs)
    return f"step {skill.step} ({skill.executor}{labels})"


@dataclass(slots=True)
class _FutureWorker:
    capacity: Capacity
    used: dict[str, int] = field(default_factory=dict[str, int])

    def assign(self, skill: Requirement, tasks: int) -> int:
        """Assigns up to `tasks` tasks; returns how many."""
        if tasks <= 0 or not fits(self.capacity, skill):
            return 0
        used = self.used.get(skill.executor, 0)
        permits = self.capacity.permits.get(skill.executor, 0)
        free = UNBOUNDED if permits < 0 else permits - used
        if self.capacity.total >= 0:
            free = min(free, self.capacity.total - sum(self.used.values()))
        assigned = max(0, min(tasks, free))
        self.used[skill.executor] = used + assigned
        return assigned


def _ask(n: int, needs: Needs, wants: Sequence[Want], capacity: Capacity) -> Ask:
    served = [want for want in wants if want.needs == needs]
    tasks = sum(want.tasks - want.room for want in served)
    steps = sorted({want.step for want in served})
    more = len(steps) - STEPS_NAMED
    named = ", ".join(steps[:STEPS_NAMED]) + (f" and {more} more" if more > 0 else "")
    lack = "that lacks" if tasks == 1 else "that lack"
    reason = f"for {counted(tasks, 'task')} of {named} {lack} only a worker"
    return Ask(n, needs, reason, frozenset(want.requirement for want in served), capacity)
