"""Limits within one run: its parallelism, its windows, one task at a time."""

from __future__ import annotations

from locktender.base.events import Event
from locktender.observe.checker.ceilings import CeilingRule
from locktender.observe.checker.subjects import Run, Task


class RunParallelism(CeilingRule):
    """A run's tasks in flight stay within its parallelism, in all and per executor; a sequential run has one."""

    def close(self) -> None:
        latest: dict[tuple[int, str], tuple[Event, Run]] = {}
        for event, task in self.world.grants:
            latest[(task.run.id, task.executor)] = event, task.run
        for (_, executor), (event, run) in latest.items():
            if run.plan is None:
                continue
            graph = run.plan.graph
            if graph.sequential:
                self._measure(run, f"sequential:{run.flow}", 1, run.in_flight, event)
            if graph.max_parallel is not None:
                name = f"parallel:{run.flow}"
                self._measure(run, name, graph.max_parallel, run.in_flight, event)
            if executor in graph.max_parallel_by:
                name, limit = f"parallel:{run.flow}:{executor}", graph.max_parallel_by[executor]
                self._measure(run, name, limit, run.by_executor.get(executor, 0), event)

    def _measure(self, run: Run, name: str, limit: int, used: int, event: Event) -> None:
        self.measure(name, limit, used, event, f"{name} of run {run.id}")


class Window(CeilingRule):
    """Items of a mapped step in flight never exceed its window."""

    def close(self) -> None:
        latest: dict[tuple[int, int], tuple[Event, Task]] = {}
        for event, task in self.world.grants:
            if task.plan is not None and task.plan.node.window is not None:
                latest[(task.run.id, task.node)] = event, task
        for event, task in latest.values():
            if task.plan is None or task.plan.node.window is None or not task.run.nodes:
                continue
            name = f"window:{task.run.flow}/{task.plan.node.name}"
            used = task.run.nodes[task.node].in_flight
            what = f"{name} of run {task.run.id}"
            self.measure(name, task.plan.node.window, used, event, what)
