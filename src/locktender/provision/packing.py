"""Tasks dealt out to workers that are not there yet: how many more it takes, and for what."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from locktender.kernel.demand import Want
from locktender.kernel.gate_names import counted
from locktender.kernel.gates.protocol import UNBOUNDED
from locktender.kernel.placement import Requirement
from locktender.provision.protocol import Capacity

Needs = tuple[tuple[str, str], ...]


class Ask(NamedTuple):
    """What is asked of a provisioner; stored with each name that is asked for."""

    n: int
    needs: Needs
    reason: str
    skills: frozenset[Requirement]
    """What the new workers are to serve."""
    capacity: Capacity


@dataclass(slots=True)
class Bag:
    """Permits of one worker that is on its way, while tasks are dealt out to it."""

    capacity: Capacity
    used: dict[str, int] = field(default_factory=dict[str, int])

    def take(self, skill: Requirement, tasks: int) -> int:
        if tasks <= 0 or not fits(self.capacity, skill):
            return 0
        permits = self.capacity.permits.get(skill.executor, 0)
        room = UNBOUNDED if permits < 0 else permits - self.used.get(skill.executor, 0)
        if self.capacity.total >= 0:
            room = min(room, self.capacity.total - sum(self.used.values()))
        taken = max(0, min(tasks, room))
        self.used[skill.executor] = self.used.get(skill.executor, 0) + taken
        return taken


def fits(capacity: Capacity, skill: Requirement) -> bool:
    """Whether such a worker could run such a task at all."""
    return (
        capacity.permits.get(skill.executor, 0) != 0
        and capacity.total != 0
        and all(capacity.labels.get(label) == value for label, value in skill.needs)
        and (capacity.steps is None or capacity.steps.get(skill.step) == skill.signature)
    )


@dataclass(slots=True)
class Draft:
    """A request being put together."""

    capacity: Capacity
    n: int = 0
    wants: dict[Requirement, Want] = field(default_factory=dict[Requirement, Want])

    def serve(self, want: Want) -> None:
        """One more worker, for `want`."""
        self.n += 1
        self.wants[want.skill] = want

    def ask(self, needs: Needs) -> Ask:
        tasks = sum(want.tasks - want.room for want in self.wants.values())
        steps = sorted({want.step for want in self.wants.values()})
        named = ", ".join(steps[:3]) + (f" and {len(steps) - 3} more" if len(steps) > 3 else "")
        lack = "that lacks" if tasks == 1 else "that lack"
        reason = f"for {counted(tasks, 'task')} of {named} {lack} only a worker"
        return Ask(self.n, needs, reason, frozenset(self.wants), self.capacity)


def spoken_skill(skill: Requirement) -> str:
    labels = "".join(f", {label}={value}" for label, value in skill.needs)
    return f"step {skill.step} ({skill.executor}{labels})"
