"""Rule: the reasons recorded for waiting are true.

The leader decides on the events it had read. A worker may commit an end
between that read and the leader's commit. So a reported number may lie between
usage without this commit's grants and usage without the releases since the
leader's last commit; with nothing in flight these are the same number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from locktender.base.events import Event
from locktender.observe.checker.rule import Rule, Watch
from locktender.observe.checker.state import CheckedTask, Released

_UNBOUNDED = 1 << 62


class TrueReason(Rule):
    """A task said to wait at a gate is requested, and that gate was shut: used + need > limit, as reported."""

    id = "true_reason"
    across = True

    def watch(self, on: Watch) -> None:
        on.waits(self.wait)
        on.closed(self.close)

    def wait(self, event: Event, task: CheckedTask) -> None:
        if task.state != "requested":
            self.report(event, f"task {task.id} is said to wait, but it is {task.state}.")

    def close(self) -> None:
        for event, task in self.world.waits:
            self._judge(event, task)

    def _judge(self, event: Event, task: CheckedTask) -> None:
        gate = str(event.data.get("gate", ""))
        kind, _, name = gate.partition(":")
        if kind in {"pool", "reserved", "paused", "rate"} and name:
            self._judge_pool(event, task, kind, name)
        elif kind == "window" and name:
            self._judge_window(event, task, name)
        elif kind == "run" and (name == "parallel" or name.startswith("parallel:")):
            self._judge_parallel(event, task, name.partition(":")[2])
        elif gate != "worker":
            self.report(event, f"task {task.id} is said to wait at {gate!r}, which is no gate.")

    def _judge_pool(self, event: Event, task: CheckedTask, kind: str, pool: str) -> None:
        rule = self.world.in_force.limits.pool(pool)
        wanted = task.plan.pools_of(task.run.tags) if task.plan is not None else None
        if wanted is not None and pool not in wanted:
            self.report(event, f"task {task.id} is said to wait for {pool!r}; it needs {wanted}.")
            return
        if kind == "paused":
            if rule is None or not rule.paused:
                self.report(
                    event, f"task {task.id}: pool {pool!r} is said to be paused and is not."
                )
            return
        if kind == "rate":
            if rule is None or rule.rate is None:
                self.report(
                    event, f"task {task.id}: pool {pool!r} is said to have a rate and has none."
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
            self.report(event, f"task {task.id} ({task.name}) is said to wait at window {name!r}.")
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
                event, f"task {task.id} is said to wait for its run's parallelism; it is unlimited."
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
        gate, said_used, said_limit = data["gate"], data.get("used"), data.get("limit")
        said_need: int = data.get("need", 1)
        who = f"task {task.id} ({task.name}) at {gate}"
        if said_used is None or said_limit is None:
            self.report(event, f"{who}: the reason does not say used and limit.")
            return
        if said_limit != limit:
            self.report(event, f"{who}: the limit is said to be {said_limit} and is {limit}.")
        low, high = span
        if not low <= said_used <= high:
            between = str(low) if low == high else f"between {low} and {high}"
            self.report(event, f"{who}: {said_used} are said to be in use; it is {between}.")
        if need is not None and said_need != need:
            self.report(event, f"{who}: it is said to need {said_need} and needs {need}.")
        if shut and (said_limit < 0 or said_used + said_need <= said_limit):
            self.report(
                event,
                f"{who}: {said_used} used + {said_need} needed fit {said_limit}: the gate is open.",
            )
