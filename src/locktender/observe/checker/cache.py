"""The rule of cached results: a task takes one that was kept for it, instead of an attempt and not beside one."""

from __future__ import annotations

from typing import Any

from locktender.base.clock import SECOND
from locktender.base.events import Event
from locktender.observe.checker.history import Violation
from locktender.observe.checker.rule import Rule, Watch
from locktender.observe.checker.state import CheckedTask
from locktender.observe.checker.world import HistoryState

FORGET_OVER = 1_000
"""Beyond so many kept results those whose time has passed are forgotten, each time their number has doubled."""


class CacheHits(Rule):
    """A task that is completed from the cache names a result that was kept for its step, not replaced or cleared
    since, and whose time had not passed. It was never offered to a worker, and its run was not retried. Only
    results of completed tasks are kept, of steps that say so."""

    id = "cache"

    def __init__(self, world: HistoryState, found: list[Violation]) -> None:
        super().__init__(world, found)
        self.kept_results: dict[str, tuple[int, int, str, str]] = {}
        """By key: the task that made it, until when it is kept, its step and flow."""
        self.forget_over: int = FORGET_OVER

    def watch(self, on: Watch) -> None:
        on.caches(self.cache)
        on.tasks(self.complete, "completed")

    def cache(self, event: Event) -> None:
        if event.after == "cleared":
            step, flow = event.data.get("step"), event.data.get("flow")
            self.kept_results = {
                key: each
                for key, each in self.kept_results.items()
                if step not in (None, each[2]) or flow not in (None, each[3])
            }
            return
        self._store(event)

    def _store(self, event: Event) -> None:
        key, step = str(event.data.get("key")), str(event.data.get("step"))
        until, flow = int(event.data.get("expires_at") or 0), str(event.data.get("flow"))
        task = self.world.run(event.run).tasks.get(event.task)
        if task is not None and task.state != "completed":
            self.report(event, f"the result of task {task.id} is kept, and it is {task.state}.")
        if task is not None and task.plan is not None and task.plan.node.cache is None:
            self.report(event, f"the result of task {task.id} is kept; its step is not cached.")
        self.kept_results[key] = event.task, until, step, flow
        if len(self.kept_results) > self.forget_over:
            self.kept_results = {
                name: each for name, each in self.kept_results.items() if each[1] > event.at
            }
            self.forget_over = max(FORGET_OVER, 2 * len(self.kept_results))

    def complete(self, event: Event, task: CheckedTask) -> None:
        cached: dict[str, Any] | None = event.data.get("cached")
        if cached is None:
            return
        what = f"task {task.id} ({task.name}) is completed from the cache"
        if task.state != "requested" or task.token:
            self.report(event, f"{what} after it was offered to a worker.")
        if task.run.generation:
            self.report(event, f"{what}, and its run {task.run.id} was retried.")
        if task.plan is not None and task.plan.node.cache is None:
            self.report(event, f"{what}, and its step is not cached.")
        self._judge(event, task, cached, what)

    def _judge(self, event: Event, task: CheckedTask, cached: dict[str, Any], what: str) -> None:
        maker, until = cached.get("task"), int(cached.get("expires_at") or 0)
        if event.at >= until:
            late = (event.at - until) / SECOND
            self.report(event, f"{what} {late:.3f} s after that result's time has passed.")
        kept = self.kept_results.get(str(cached.get("key")))
        if (kept is None or kept[0] != maker) and self.world.history.checked:
            return  # the run that made it may have been pruned
        if kept is None:
            self.report(event, f"{what}, where no such result is kept.")
            return
        if kept[0] != maker:
            self.report(event, f"{what} by the result of task {maker}, not {kept[0]}.")
        if kept[1] != until:
            self.report(event, f"{what} by a result that is kept until another time.")
        if task.plan is not None and task.plan.node.step != kept[2]:
            self.report(event, f"{what} by a result of step {kept[2]}.")
