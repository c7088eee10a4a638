"""The rule on bypass: tasks are not overtaken too often.

Tasks of one run and one step need the same: they are kept as one group,
and a pool's queue holds only the first task of each group. So a long map behind its
window costs one check, not one per item. Only tasks that need more than one
slot are followed: the others get the next slot that is freed.
In case of doubt a start is not counted: the order within a cycle is rebuilt
from the order of the queue, a task requested in the same commit does not count
yet, releases the leader may not have seen count as still held, and a start
that leaves the task enough slots of the shared pools takes nothing from it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Final

from locktender.base.events import Event
from locktender.base.graph import Executor
from locktender.base.limits import PoolRule
from locktender.base.names import UNLIMITED
from locktender.observe.checker.history import NodePlan, Violation
from locktender.observe.checker.rule import Rule, Watch
from locktender.observe.checker.state import FAILED, RUN_ENDS, CheckedRun, CheckedTask
from locktender.observe.checker.world import HistoryState

Rank = tuple[int, int, int]
"""Where a task stands: priority, age, id; smaller is earlier."""
Head = tuple[Rank, tuple[int, int]]
UNREAD_CYCLES: Final = 5
"""Of a new term, or since its run got a place again: a task of a cached step may not stand in line yet."""
LOOKED_UP_AT_ONCE: Final = 1_000
Kind = tuple[tuple[tuple[str, int], ...], Executor, tuple[tuple[str, str], ...]]


def rank(priority: int, since: int, task: int, age_boost_us: int) -> Rank:
    if age_boost_us:
        return 0, since - priority * age_boost_us, task
    return -priority, since, task


class WaitingGroup:
    """Waiters of one step of one run."""

    __slots__ = ("kind", "members", "needs", "plan", "run", "tasks")

    def __init__(self, run: CheckedRun, plan: NodePlan, needs: dict[str, int]) -> None:
        self.run: CheckedRun = run
        self.plan: NodePlan = plan
        self.needs: dict[str, int] = needs
        self.kind: Kind = tuple(needs.items()), plan.node.executor, tuple(plan.node.needs.items())
        """Groups of one kind are blocked by the same things outside their runs."""
        self.members: list[Rank] = []
        self.tasks: dict[int, tuple[CheckedTask, Rank]] = {}

    def before(self, other: Rank) -> Iterator[CheckedTask]:
        for member in self.members[: bisect_left(self.members, other)]:
            yield self.tasks[member[2]][0]


class WaitingLines:
    """The lines of all pools."""

    def __init__(self) -> None:
        self.age_boost_us: int = 0
        self.count: int = 0
        self._groups: dict[tuple[int, int], WaitingGroup] = {}
        self._heads: dict[str, list[Head]] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def add(self, task: CheckedTask, plan: NodePlan, needs: dict[str, int]) -> None:
        place = task.run.id, task.node
        group = self._groups.get(place)
        if group is None:
            group = self._groups[place] = WaitingGroup(task.run, plan, needs)
        key = rank(task.run.priority, task.in_line_since, task.id, self.age_boost_us)
        head = group.members[0] if group.members else None
        insort(group.members, key)
        group.tasks[task.id] = task, key
        self.count += 1
        self._move_head(place, group, head)

    def remove(self, task: CheckedTask) -> None:
        place = task.run.id, task.node
        group = self._groups.get(place)
        found = None if group is None else group.tasks.pop(task.id, None)
        if group is None or found is None:
            return
        self.count -= 1
        head = group.members[0]
        del group.members[bisect_left(group.members, found[1])]
        self._move_head(place, group, head)
        if not group.members:
            del self._groups[place]

    def _move_head(self, place: tuple[int, int], group: WaitingGroup, old: Rank | None) -> None:
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

    def groups_before(self, pools: dict[str, int], other: Rank) -> list[WaitingGroup]:
        """Groups that wait for one of `pools` and have a member that stands before `other`."""
        found: dict[tuple[int, int], WaitingGroup] = {}
        for pool in pools:
            for head, place in self._heads.get(pool, ()):
                if head >= other:
                    break
                found[place] = self._groups[place]
        return list(found.values())

    def reorder(self, age_boost_us: int) -> None:
        """The order itself was changed: every place is computed again."""
        waiting = [
            (task, group.plan, group.needs)
            for group in self._groups.values()
            for task, _ in group.tasks.values()
        ]
        self._groups, self._heads, self.age_boost_us, self.count = {}, {}, age_boost_us, 0
        for task, plan, needs in waiting:
            self.add(task, plan, needs)


class Bypass(Rule):
    """No waiter is bypassed more than `max_bypass` times in one term: by a later task that takes
    slots of a pool they share while pools alone block the waiter."""

    id = "bypass"
    across = True

    def __init__(self, world: HistoryState, found: list[Violation]) -> None:
        super().__init__(world, found)
        self._lines = WaitingLines()
        self._new: dict[int, CheckedTask] = {}
        self._counts: dict[int, int] = {}
        self._moved_us = 0
        self._order: tuple[int, object] = (0, None)
        self._placed_in: dict[int, int] = {}
        """Runs that got a place again in this term, and in which cycle."""

    def watch(self, on: Watch) -> None:
        on.tasks(self.request, "requested")
        on.tasks(self.leave, "scheduled", "completed", "failed", "cancelled", "skipped", "pending")
        on.runs(self.end, *RUN_ENDS)
        on.places(self.stop)
        on.pauses(self.stop)
        on.leaders(self.elected)
        on.closed(self.close)

    def stop(self, event: Event, run: CheckedRun) -> None:
        """Without a place, or paused, its tasks stand in no line; later they stand there anew."""
        if event.after in ("given_back", "paused"):
            for task in run.tasks:
                self._counts.pop(task, None)
        elif event.after == "held":
            self._placed_in[run.id] = self.world.commit.cycle

    def request(self, _event: Event, task: CheckedTask) -> None:
        if task.plan is not None and task.plan.slots > 1:
            self._new[task.id] = task

    def leave(self, _event: Event, task: CheckedTask) -> None:
        if task.state == "requested" and task.plan is not None and task.plan.slots > 1:
            self._new.pop(task.id, None)
            self._counts.pop(task.id, None)
            self._lines.remove(task)

    def end(self, _event: Event, run: CheckedRun) -> None:
        """What waits in a run that was held ends with it, without an event of its own."""
        self._placed_in.pop(run.id, None)
        for task in run.tasks.values() if run.open else ():
            self.leave(_event, task)

    def elected(self, _event: Event) -> None:
        """Bypass counts start anew with a leader's term."""
        self._counts.clear()
        self._placed_in.clear()

    def close(self) -> None:
        limits = self.world.in_force.limits
        order = limits.age_boost_us, limits.fair
        if self._order != order:
            # All stand in line anew.
            self._order = order
            self._counts.clear()
        if (
            self._lines.age_boost_us != limits.age_boost_us
            or self._moved_us != self.world.clock_moved_us
        ):
            self._moved_us = self.world.clock_moved_us
            self._lines.reorder(limits.age_boost_us)
        if self._lines and self.world.grants and limits.max_bypass >= 0:
            self._judge()
        for task in self._new.values():
            needs = task.plan.pools_of(task.run.tags) if task.plan is not None else None
            if task.state == "requested" and task.plan is not None and needs:
                self._lines.add(task, task.plan, needs)
        self._new.clear()

    def _judge(self) -> None:
        boost, fair = self._lines.age_boost_us, self.world.in_force.limits.fair
        starts: list[tuple[Rank, Event, CheckedTask]] = []
        used = dict[str, int]()
        for event, task in self.world.grants:
            # The earliest request: an offer that was withdrawn keeps its place in the order.
            key = rank(task.run.priority, task.in_line_since, task.id, boost)
            starts.append((key, event, task))
            for pool, slots in task.pools.items():
                used[pool] = used.get(pool, self.world.used.get(pool, 0)) - slots
        unseen: dict[int, int] = {}
        for gone in self.world.released:
            unseen[gone.run] = unseen.get(gone.run, 0) + 1
        starts.sort(key=lambda start: start[0])
        for key, event, task in starts:
            known: dict[object, bool] = {}
            for group in self._lines.groups_before(task.pools, key):
                # Many runs of one flow wait in one way: the pools are looked at once for all.
                kind = group.kind, group.run.tags.get(fair.key) if fair is not None else None
                if kind not in known:
                    known[kind] = self._bypassed(group, task, used)
                if known[kind] and self._has_room(group, unseen) and not self._unread(group):
                    self._count(group, key, event)
            for pool, slots in task.pools.items():
                used[pool] += slots

    def _bypassed(self, group: WaitingGroup, task: CheckedTask, used: dict[str, int]) -> bool:
        """Pools alone block the group's waiters, and the start takes what they need."""
        limits = self.world.in_force.limits
        plan, other = group.plan.node, task.plan
        if other is None or plan.executor != task.executor or plan.needs != other.node.needs:
            return False
        fair = limits.fair
        if fair is not None and group.run.tags.get(fair.key) != task.run.tags.get(fair.key):
            return False
        blocked = harmed = False
        for pool, need in group.needs.items():
            rule = limits.pool(pool)
            if rule is None or (rule.limit == UNLIMITED and not _special(rule)):
                continue
            if _special(rule) or need > rule.limit:
                return False
            now = used.get(pool)
            if now is None:
                now = self.world.used.get(pool, 0)
            blocked = blocked or now + need > rule.limit
            taken = task.pools.get(pool, 0)
            harmed = harmed or (taken > 0 and now + taken + need > rule.limit)
        return blocked and harmed

    def _has_room(self, group: WaitingGroup, unseen: dict[int, int]) -> bool:
        """The run, its parallelism and the window would let a waiter of the group go."""
        run, node = group.run, group.plan.node
        if run.state != "running" or not run.placed or self.world.pause_of(run):
            return False
        if run.plan is None or run.plan.graph.sequential or node.in_order:
            return False
        graph, hidden = run.plan.graph, unseen.get(run.id, 0)
        tally = run.nodes.get(group.plan.index)
        if graph.fail == "fast" and run.failed:
            return False
        if graph.max_parallel is not None and run.in_flight + hidden >= graph.max_parallel:
            return False
        by = graph.max_parallel_by.get(node.executor)
        if by is not None and run.by_executor.get(node.executor, 0) + hidden >= by:
            return False
        if tally is None:
            return True
        if node.on_error == "fail" and group.plan.mapped and tally.counts[FAILED]:
            return False
        return node.window is None or tally.in_flight + hidden < node.window

    def _unread(self, group: WaitingGroup) -> bool:
        """Results kept for these tasks may not have been looked up yet: until then they stand in no line."""
        if group.plan.node.cache is None:
            return False
        turns = UNREAD_CYCLES + self._lines.count // LOOKED_UP_AT_ONCE
        return self.world.commit.cycle <= self._placed_in.get(group.run.id, 0) + turns

    def _count(self, group: WaitingGroup, key: Rank, event: Event) -> None:
        most = self.world.in_force.limits.max_bypass
        ready = self.world.commit.at - self.world.history.slack_us
        for waiter in list(group.before(key)):
            if waiter.not_before > ready:
                continue
            count = self._counts[waiter.id] = self._counts.get(waiter.id, 0) + 1
            if count > most:
                # Reported once: it is not followed any further.
                self._lines.remove(waiter)
                self.report_at(
                    event.seq,
                    f"task {waiter.id} ({waiter.name}) waits for {group.needs} and is bypassed "
                    f"{count} times, last by task {event.task}; {most} are allowed.",
                    run=waiter.run.id,
                    task=waiter.id,
                )


def _special(rule: PoolRule) -> bool:
    """A pause bypasses nobody, and whether a rate had room at the instant the history cannot tell."""
    return rule.paused or rule.rate is not None
