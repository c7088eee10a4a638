"""Sequential flows: one task after another, in trace order."""

from __future__ import annotations

from locktender.base.events import Event
from locktender.observe.checker.plan import GraphPlan, NodePlan
from locktender.observe.checker.rule import Rule, Watch
from locktender.observe.checker.settled import settled
from locktender.observe.checker.subjects import FAILED, OPEN, STANDING, Run, Task


class Sequential(Rule):
    """In a sequential flow a step is requested only when the one before it has ended for good, and
    after a failure only if it says so; items of one map start in their order, one after the other."""

    id = "sequential"

    def watch(self, on: Watch) -> None:
        on.tasks(self.request, "requested")
        on.tasks(self.start, "scheduled")

    def request(self, event: Event, task: Task) -> None:
        run, plan, graph = task.run, task.plan, task.run.plan
        if plan is None or graph is None or not graph.graph.sequential or plan.index == 0:
            return
        tally = run.nodes.get(plan.index)
        others = run.open - (0 if tally is None else tally.counts[OPEN])
        before = graph.nodes[plan.index - 1]
        # That the step before had to wait for the one before it was checked when it was requested.
        if others or not settled(run, graph, before.index):
            self.report(
                event,
                f"task {task.id} ({task.name}) is requested before {before.node.name!r} has ended "
                f"({others} other tasks of the run are open).",
            )
        last = run.nodes.get(before.index)
        if last is not None and last.counts[FAILED]:
            last.acted_on = run.generation
        if run.failed and plan.node.run_if == "success":
            self._check_no_failure_before(event, task, plan, graph)

    def _check_no_failure_before(
        self, event: Event, task: Task, plan: NodePlan, graph: GraphPlan
    ) -> None:
        failed = _failed_before(task.run, plan, graph)
        if failed:
            self.report(
                event,
                f"task {task.id} ({task.name}) is requested although {failed!r} failed before it.",
            )

    def start(self, event: Event, task: Task) -> None:
        graph = task.run.plan
        if graph is None or not graph.graph.sequential or task.index <= 0:
            return
        last = task.run.places.get((task.node, task.index - 1))
        if last is None:
            return
        standing = STANDING.get(last.state, OPEN)
        if standing == FAILED:
            last.acted_on = task.run.generation
        if standing == OPEN:
            self.report(
                event, f"task {task.id} ({task.name}) starts while {last.name} is {last.state}."
            )


def _failed_before(run: Run, plan: NodePlan, graph: GraphPlan) -> str | None:
    for earlier in graph.nodes[: plan.index]:
        tally = run.nodes.get(earlier.index)
        if tally is not None and tally.counts[FAILED] and not earlier.collects:
            return earlier.node.name
    return None
