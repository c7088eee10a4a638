"""A task becomes ready when what it needs is there, and a finished step is not run again."""

from __future__ import annotations

from locktender.base.events import Event
from locktender.base.states import NEW
from locktender.observe.checker.plan import GraphPlan, NodePlan
from locktender.observe.checker.rule import Rule, Watch
from locktender.observe.checker.settled import all_completed, settled
from locktender.observe.checker.subjects import (
    CANCELLED,
    COMPLETED,
    EXECUTING,
    FAILED,
    OPEN,
    SKIPPED,
    STANDING,
    Run,
    Task,
)

_SAME_ATTEMPT = frozenset({"scheduled", "running", "abandoned", "handed_back"})


class Dependencies(Rule):
    """A task is requested in an executing run, once per (node, index), when everything it needs has
    ended in the right way; a completed task is never requested again, and a failure that a
    successor took for final is not retried."""

    id = "dependencies"

    def watch(self, on: Watch) -> None:
        on.tasks(self.create, "requested", "skipped")
        on.tasks(self.request, "requested")

    def create(self, event: Event, task: Task) -> None:
        if task.state != NEW:
            return
        twin = task.run.places.get((task.node, task.index))
        if twin is not None:
            self.report(
                event,
                f"task {task.id} is a second one for {task.name}; task {twin.id} is the first.",
            )
        if task.plan is None and task.run.plan is not None:
            self.report(event, f"task {task.id} is of node {task.node}, which its graph has not.")

    def request(self, event: Event, task: Task) -> None:
        run, plan = task.run, task.plan
        if run.state not in EXECUTING:
            self.report(
                event, f"task {task.id} is requested while its run {run.id} is {run.state}."
            )
        if task.state == "completed":
            self.report(event, f"task {task.id} ({task.name}) completed and is requested again.")
        if plan is None or run.plan is None or event.before in _SAME_ATTEMPT:
            return
        if STANDING.get(task.state) == FAILED and task.ended_in == run.generation:
            self._check_not_acted_on(event, task)
        else:
            self._check_needs(event, task, plan, run.plan)

    def _check_not_acted_on(self, event: Event, task: Task) -> None:
        run = task.run
        tally = run.nodes.get(task.node)
        if run.generation in {task.acted_on, -1 if tally is None else tally.acted_on}:
            self.report(
                event,
                f"task {task.id} ({task.name}) is tried again, "
                "but a successor has already taken its failure for final.",
            )

    def _check_needs(self, event: Event, task: Task, plan: NodePlan, graph: GraphPlan) -> None:
        run, run_if = task.run, plan.node.run_if
        faults: list[str] = []
        completed = True
        if plan.each_of is not None and not task.unexpanded:
            fault, whole = _item_fault(task, graph.nodes[plan.each_of], run_if)
            completed = whole
            if fault:
                faults.append(fault)
        for need in sorted(plan.data | plan.after):
            source = graph.nodes[need]
            if not settled(run, graph, need):
                faults.append(f"{source.node.name} has not ended")
                continue
            tally = run.nodes.get(need)
            if tally is not None and tally.counts[FAILED]:
                tally.acted_on = run.generation
            if run_if == "success":
                faults += _unfit(run, source, ordered_only=need in plan.after)
            completed = completed and all_completed(run, source)
        if run_if == "failure" and completed and plan.needs and not faults:
            faults.append("nothing it watches went wrong")
        if faults:
            self.report(
                event, f"task {task.id} ({task.name}) is requested, but {'; '.join(faults)}."
            )


def _item_fault(task: Task, source: NodePlan, run_if: str) -> tuple[str, bool]:
    """What is wrong with the one item this item needs, and whether that one completed."""
    run, label = task.run, f"{source.node.name}[{task.index}]"
    item = run.places.get((source.index, task.index))
    if item is None:
        return f"{label} was never requested", False
    standing = STANDING.get(item.state, OPEN)
    if standing == OPEN:
        return f"{label} is {item.state}", False
    if standing == FAILED:
        item.acted_on = run.generation
    fit = standing == COMPLETED or (standing == FAILED and source.collects)
    if run_if == "success" and not fit:
        return f"{label} is {item.state}", False
    return "", standing == COMPLETED


def _unfit(run: Run, source: NodePlan, *, ordered_only: bool) -> list[str]:
    """Why a settled node is not what a successor with run_if="success" needs."""
    tally, label = run.nodes.get(source.index), source.node.name
    if tally is None:
        return []
    counts, faults = tally.counts, list[str]()
    if counts[FAILED] and not source.collects:
        faults.append(f"{counts[FAILED]} of {label} failed")
    if counts[CANCELLED]:
        faults.append(f"{counts[CANCELLED]} of {label} were cancelled")
    # Order alone is served by a step that had nothing to do; a value is not.
    if not ordered_only and (counts[SKIPPED] or (tally.unexpanded and not tally.total)):
        faults.append(f"{label} was skipped")
    return faults
