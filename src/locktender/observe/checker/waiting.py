"""The rule on reasons: what is recorded of a wait is true.

The leader decides on the events it had read. A worker may commit an end
between that read and the leader's commit. So a reported number may lie between
usage without this commit's grants and usage without the releases since the
leader's last commit; with nothing in flight these are the same number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from locktender.base.events import Event
from locktender.observe.checker.rule import Rule, Watch
from locktender.observe.checker.state import CheckedTask, Released

_UNBOUNDED = 1 << 62


TASK_GATES: Final[dict[str, Callable[[str], bool]]] = {
    **dict.fromkeys(("pool", "reserved", "paused", "rate", "window"), bool),
    "run": lambda name: name.split(":")[0] == "parallel",
    "worker": lambda name: not name,
}
"""Kinds of gates that a task may be recorded at → whether this is a name of one."""


class TrueReason(Rule):
    """A task recorded as waiting is requested, and the gate was shut: used + need > limit, as recorded."""

    id = "true_reason"
    across = True

    def watch(self, on: Watch) -> None:
        on.waits(self.wait)
        on.closed(self.close)

    def wait(self, event: Event, task: CheckedTask) -> None:
        if task.state != "requested":
            self.report(event, f"task {task.id} is recorded as waiting, but it is {task.state}.")

    def close(self) -> None:
        for event, task in self.world.waits:
            self._judge(event, task)

    def _judge(self, event: Event, task: CheckedTask) -> None:
        gate = str(event.data.get("gate", ""))
        kind, _, name = gate.partition(":")
        known = TASK_GATES.get(kind)
        if known is None or not known(name):
            self.report(
                event, f"task {task.id} is recorded as waiting at {gate!r}, which is not a gate."
            )
        elif kind == "window":
            self._judge_window(event, task, name)
        elif kind == "run":
            self._judge_parallel(event, task, name.partition(":")[2])
        elif kind != "worker":
            self._judge_pool(event, task, kind, name)

    def _judge_pool(self, event: Event, task: CheckedTask, kind: str, pool: str) -> None:
        rule = self.world.in_force.limits.pool(pool)
        wanted = task.plan.pools_of(task.run.tags) if task.plan is not None else None
        if wanted is not None and pool not in wanted:
            self.report(
                event, f"task {task.id} is recorded as waiting for {pool!r}; it needs {wanted}."
            )
            return
        if kind == "paused":
            if rule is None or not rule.paused:
                self.report(
                    event, f"task {task.id}: pool {pool!r} is recorded as paused and is not."
                )
            return
        if kind == "rate":
            if rule is None or rule.rate is None:
                self.report(
                    event, f"task {task.id}: pool {pool!r} is recorded with a rate and has none."
                )
            return
        used = self.world.used.get(pool, 0)
        granted = sum(held.pools.get(pool, 0) for _, held in self.world.grants)
        released = sum(each.pools.get(pool, 0) for each in self.world.released)
        if rule is not None and rule.lease_us is not None:
            # The slots of a lost worker stay taken until the pool's own lease has passed as well.
            released = _UNBOUNDED
        limit = -1 if rule is None else rule.limit
        need = None if wanted is None else wanted[pool]
        self._numbers(
            event, task, limit, (used - granted, used + released), need, kind != "reserved"
        )

    def _judge_window(self, event: Event, task: CheckedTask, name: str) -> None:
        plan = task.plan
        if plan is None:
            return
        if plan.node.name != name or plan.node.window is None:
            self.report(
                event, f"task {task.id} ({task.name}) is recorded as waiting at window {name!r}."
            )
            return
        tally = task.run.nodes.get(task.node)
        used = 0 if tally is None else tally.in_flight
        span = self._span(
            used,
            lambda held: held.run is task.run and held.node == task.node,
            lambda gone: gone.run == task.run.id and gone.node == task.node,
        )
        self._numbers(event, task, plan.node.window, span, 1)

    def _judge_parallel(self, event: Event, task: CheckedTask, executor: str) -> None:
        run = task.run
        if run.plan is None:
            return
        graph = run.plan.graph
        if executor:
            limit, used = graph.max_parallel_by.get(executor), run.by_executor.get(executor, 0)
        else:
            limit, used = 1 if graph.sequential else graph.max_parallel, run.in_flight
        if limit is None:
            self.report(
                event,
                f"task {task.id} is recorded as waiting for its run's parallelism; it is unlimited.",
            )
            return
        span = self._span(
            used,
            lambda held: held.run is run and executor in {"", held.executor},
            lambda gone: gone.run == run.id and executor in {"", gone.executor},
        )
        self._numbers(event, task, limit, span, 1)

    def _span(
        self, used: int, grant: Callable[[CheckedTask], bool], release: Callable[[Released], bool]
    ) -> tuple[int, int]:
        granted = sum(grant(held) for _, held in self.world.grants)
        released = sum(release(gone) for gone in self.world.released)
        return used - granted, used + released

    def _numbers(
        self,
        event: Event,
        task: CheckedTask,
        limit: int,
        span: tuple[int, int],
        need: int | None,
        shut: bool = True,
    ) -> None:
        data: dict[str, Any] = event.data
        gate, recorded_used, recorded_limit = data["gate"], data.get("used"), data.get("limit")
        recorded_need: int = data.get("need", 1)
        who = f"task {task.id} ({task.name}) at {gate}"
        if recorded_used is None or recorded_limit is None:
            self.report(event, f"{who}: the reason lacks used and limit.")
            return
        if recorded_limit != limit:
            self.report(
                event, f"{who}: the recorded limit is {recorded_limit}, the real one {limit}."
            )
        low, high = span
        if not low <= recorded_used <= high:
            between = str(low) if low == high else f"between {low} and {high}"
            self.report(
                event, f"{who}: recorded use is {recorded_used}; the real one is {between}."
            )
        if need is not None and recorded_need != need:
            self.report(event, f"{who}: recorded need is {recorded_need}; the real one is {need}.")
        if shut and (recorded_limit < 0 or recorded_used + recorded_need <= recorded_limit):
            self.report(
                event,
                f"{who}: {recorded_used} used + {recorded_need} needed fit {recorded_limit}: the gate is open.",
            )
