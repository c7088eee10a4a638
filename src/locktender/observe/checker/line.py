"""Who waits for a pool, in the order of the queue.

Waiters of one run and one step share their needs, their window and their run's
parallelism: they are kept as one group, and a pool's line holds only each
group's head. So a long map behind its window costs one look, not one per item.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from locktender.base.graph import Executor
from locktender.observe.checker.plan import NodePlan
from locktender.observe.checker.subjects import Run, Task

Rank = tuple[int, int, int]
"""Where a task stands: priority, age, id; smaller is earlier."""
Head = tuple[Rank, tuple[int, int]]
Kind = tuple[tuple[tuple[str, int], ...], Executor, tuple[tuple[str, str], ...]]


def rank(priority: int, requested_at: int, task: int, age_boost_us: int) -> Rank:
    if age_boost_us:
        return 0, requested_at - priority * age_boost_us, task
    return -priority, requested_at, task


class Group:
    """Waiters of one step of one run."""

    __slots__ = ("kind", "members", "needs", "plan", "run", "tasks")

    def __init__(self, run: Run, plan: NodePlan, needs: dict[str, int]) -> None:
        self.run: Run = run
        self.plan: NodePlan = plan
        self.needs: dict[str, int] = needs
        self.kind: Kind = tuple(needs.items()), plan.node.executor, tuple(plan.node.needs.items())
        """Groups of one kind are blocked by the same things outside their runs."""
        self.members: list[Rank] = []
        self.tasks: dict[int, tuple[Task, Rank]] = {}

    def before(self, other: Rank) -> Iterator[Task]:
        for member in self.members[: bisect_left(self.members, other)]:
            yield self.tasks[member[2]][0]


class Lines:
    """The lines of all pools."""

    def __init__(self) -> None:
        self.age_boost_us: int = 0
        self._groups: dict[tuple[int, int], Group] = {}
        self._heads: dict[str, list[Head]] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def add(self, task: Task, plan: NodePlan, needs: dict[str, int]) -> None:
        place = task.run.id, task.node
        group = self._groups.get(place)
        if group is None:
            group = self._groups[place] = Group(task.run, plan, needs)
        key = rank(task.run.priority, task.requested_at, task.id, self.age_boost_us)
        head = group.members[0] if group.members else None
        insort(group.members, key)
        group.tasks[task.id] = task, key
        self._move_head(place, group, head)

    def remove(self, task: Task) -> None:
        place = task.run.id, task.node
        group = self._groups.get(place)
        found = None if group is None else group.tasks.pop(task.id, None)
        if group is None or found is None:
            return
        head = group.members[0]
        del group.members[bisect_left(group.members, found[1])]
        self._move_head(place, group, head)
        if not group.members:
            del self._groups[place]

    def _move_head(self, place: tuple[int, int], group: Group, old: Rank | None) -> None:
        new = group.members[0] if group.members else None
        if new == old:
            return
        for pool in group.needs:
            heads = self._heads.setdefault(pool, [])
            if old is not None:
                del heads[bisect_left(heads, (old, place))]
            if new is not None:
                insort(heads, (new, place))
            if not heads:
                del self._heads[pool]

    def groups_before(self, pools: dict[str, int], other: Rank) -> list[Group]:
        """Groups that wait for one of `pools` and have a member that stands before `other`."""
        found: dict[tuple[int, int], Group] = {}
        for pool in pools:
            for head, place in self._heads.get(pool, ()):
                if head >= other:
                    break
                found[place] = self._groups[place]
        return list(found.values())

    def reorder(self, age_boost_us: int) -> None:
        """The order itself was changed: everybody stands anew."""
        waiting = [
            (task, group.plan, group.needs)
            for group in self._groups.values()
            for task, _ in group.tasks.values()
        ]
        self._groups, self._heads, self.age_boost_us = {}, {}, age_boost_us
        for task, plan, needs in waiting:
            self.add(task, plan, needs)
