"""Rules on order within a run: tasks start after their inputs, finished steps do not run again, sequence."""

from __future__ import annotations

from locktender.base.events import Event
from locktender.base.states import NEW, RunState
from locktender.observe.checker.history import GraphPlan, NodePlan
from locktender.observe.checker.rule import Rule, Watch
from locktender.observe.checker.state import (
    CANCELLED,
    COMPLETED,
    EXECUTING,
    FAILED,
    OPEN,
    RUN_ENDS,
    SKIPPED,
    STANDING,
    CheckedRun,
    CheckedTask,
    UseCount,
)


def settled(run: CheckedRun, graph: GraphPlan, node: int) -> bool:
    """No task of `node` is open, and none is to come.

    A map over an empty list leaves no trace: a map without items counts as
    settled once everything it waits for is.
    """
    plan = graph.nodes[node]
    tally = run.nodes.get(node)
    total = 0 if tally is None else tally.total
    if tally is not None and tally.counts[OPEN]:
        return False
    if not plan.mapped:
        return total > 0
    if tally is not None and tally.unexpanded and not total:
        return True
    if plan.each_of is not None:
        source = run.nodes.get(plan.each_of)
        items = 0 if source is None else source.total
        return settled(run, graph, plan.each_of) and total >= items
    return total > 0 or all(settled(run, graph, need) for need in plan.needs)


def all_completed(run: CheckedRun, plan: NodePlan) -> bool:
    tally = run.nodes.get(plan.index)
    if tally is None:
        return plan.mapped
    return tally.counts[COMPLETED] == tally.total and not (tally.unexpanded and not tally.total)


def _is_skipped(tally: UseCount) -> bool:
    """It ran in no try that counts: rows that were not decided about are of a try in which the run was held."""
    return tally.counts[SKIPPED] + tally.pending == tally.total and not tally.unneeded


def _undone(run: CheckedRun, graph: GraphPlan) -> frozenset[int]:
    """Nodes whose work a clean-up has undone, in one task at least: what it took, all that follows, and itself.

    A clean-up that completed no task has undone nothing; it runs again, and so do the tasks that follow from it.
    """
    undone: set[int] = set()
    for plan in graph.nodes:
        tally = run.nodes.get(plan.index)
        if plan.node.run_if == "success" or (tally is not None and _is_skipped(tally)):
            continue
        undone.add(plan.index)
        if tally is not None and tally.counts[COMPLETED]:
            undone |= plan.data
            if plan.each_of is not None:
                undone.add(plan.each_of)
    for plan in graph.nodes:
        if not undone.isdisjoint(plan.needs):
            undone.add(plan.index)
    return frozenset(undone)


_SAME_ATTEMPT = frozenset({"scheduled", "running", "abandoned", "handed_back"})


class Dependencies(Rule):
    """A task is requested in an executing run, once per (node, index), when everything it needs has
    ended in the right way; a completed task is never requested again, unless its run was retried
    from its step on or after a clean-up undid its work, and a failure that a successor took for final
    is not retried."""

    id = "dependencies"

    def watch(self, on: Watch) -> None:
        on.tasks(self.create, "requested", "skipped")
        on.tasks(self.request, "requested")
        on.tasks(self.skip, "skipped")
        on.tasks(self.reset, "pending")
        on.runs(self.begin, "running")
        on.runs(self.end, *RUN_ENDS)

    def begin(self, _: Event, run: CheckedRun) -> None:
        # A run that was woken goes on with the same try.
        if run.undone is None and run.plan is not None:
            run.undone = _undone(run, run.plan) | run.again

    def end(self, event: Event, run: CheckedRun) -> None:
        if event.before not in EXECUTING or not run.undone:
            return
        for task in run.tasks.values():
            kept = task.state == "completed" and task.ended_in != run.generation
            if kept and task.node in run.undone:
                self.report(
                    event,
                    f"task {task.id} ({task.name}) keeps its result of an earlier try, although what it"
                    " follows from ran again.",
                )

    def reset(self, event: Event, task: CheckedTask) -> None:
        if task.ended_in == task.run.generation:
            self.report(
                event, f"task {task.id} ({task.name}) is pending without a retry of its run."
            )
        if task.state == "completed" and task.node not in (task.run.undone or ()):
            self.report(
                event,
                f"task {task.id} ({task.name}) completed and is to run again, although no clean-up undid it"
                " and the retry began behind it.",
            )

    def create(self, event: Event, task: CheckedTask) -> None:
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

    def request(self, event: Event, task: CheckedTask) -> None:
        run, plan = task.run, task.plan
        # Offers to a worker that is lost are void, those of a held run too.
        void_offer = run.state == RunState.HELD and event.before == "scheduled"
        if run.state not in EXECUTING and not void_offer:
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

    def skip(self, event: Event, task: CheckedTask) -> None:
        """An item that is an error is passed on, and only such an item."""
        plan, graph = task.plan, task.run.plan
        if not event.data.get("passed") or plan is None or graph is None:
            return
        fault = "" if plan.passes_errors else f"{plan.node.name} takes errors"
        if plan.each_of is not None and not fault:
            source = graph.nodes[plan.each_of]
            item = task.run.places.get((source.index, task.index))
            if item is None or not _is_error(item, source):
                state = "not there" if item is None else item.state
                fault = f"{source.node.name}[{task.index}] is {state}"
            else:
                item.acted_on = task.run.generation
        if fault:
            self.report(event, f"task {task.id} ({task.name}) passes on an error, but {fault}.")

    def _check_not_acted_on(self, event: Event, task: CheckedTask) -> None:
        run = task.run
        tally = run.nodes.get(task.node)
        if run.generation in {task.acted_on, -1 if tally is None else tally.acted_on}:
            self.report(
                event,
                f"task {task.id} ({task.name}) is tried again, "
                "but a successor has already taken its failure for final.",
            )

    def _check_needs(
        self, event: Event, task: CheckedTask, plan: NodePlan, graph: GraphPlan
    ) -> None:
        run, run_if = task.run, plan.node.run_if
        faults: list[str] = []
        completed = True
        if plan.each_of is not None and not task.unexpanded:
            fault, completed = _item_fault(task, plan, graph.nodes[plan.each_of])
            if fault:
                faults.append(fault)
        # After a failure means: when it is known whether there was one.
        whole = plan.needs if run_if == "failure" else plan.data | plan.after
        for need in sorted(whole):
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
        if run_if != "success":
            faults += _open_before(run, graph, plan)
        if run_if == "failure" and completed and plan.needs and not faults:
            faults.append("nothing it watches went wrong")
        if faults:
            self.report(
                event, f"task {task.id} ({task.name}) is requested, but {'; '.join(faults)}."
            )


def _open_before(run: CheckedRun, graph: GraphPlan, plan: NodePlan) -> list[str]:
    """Nodes that come before what a clean-up waits for and have not ended.

    Nothing else can be requested while one of those is open, because it needs all of them to succeed.
    """
    if run.open - run.pending <= 1:
        return []
    found: list[str] = []
    passed = set(plan.data | plan.after)
    left = list(passed)
    while left:
        for need in graph.nodes[left.pop()].needs - passed:
            passed.add(need)
            left.append(need)
            tally = run.nodes.get(need)
            if tally is not None and tally.counts[OPEN] > tally.pending:
                found.append(f"{graph.nodes[need].node.name} before that has not ended")
    return found


def _is_error(item: CheckedTask, source: NodePlan) -> bool:
    """Whether what an item gives is an error: collected, or passed on."""
    return item.passed or (item.standing == FAILED and source.collects)


def _item_fault(task: CheckedTask, plan: NodePlan, source: NodePlan) -> tuple[str, bool]:
    """What is wrong with the one item this item needs, and whether that one completed."""
    run_if = plan.node.run_if
    run, label = task.run, f"{source.node.name}[{task.index}]"
    item = run.places.get((source.index, task.index))
    if item is None:
        return f"{label} was never requested", False
    standing = max(item.standing, OPEN)
    if standing == OPEN:
        return f"{label} is {item.state}", False
    if standing == FAILED:
        item.acted_on = run.generation
    if plan.passes_errors and _is_error(item, source):
        return f"{label} gave an error, which is to be passed on", False
    fit = standing == COMPLETED or (standing == FAILED and source.collects)
    if run_if == "success" and not fit:
        return f"{label} is {item.state}", False
    return "", standing == COMPLETED


def _unfit(run: CheckedRun, source: NodePlan, *, ordered_only: bool) -> list[str]:
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


class Sequential(Rule):
    """In a sequential flow a step is requested only when the one before it has ended for good, and
    after a failure only if it says so; items of one map start in their order, one after the other."""

    id = "sequential"

    def watch(self, on: Watch) -> None:
        on.tasks(self.request, "requested")
        on.tasks(self.start, "scheduled")

    def request(self, event: Event, task: CheckedTask) -> None:
        run, plan, graph = task.run, task.plan, task.run.plan
        if plan is None or graph is None or not graph.graph.sequential or plan.index == 0:
            return
        tally = run.nodes.get(plan.index)
        others = run.open - run.pending
        if tally is not None:
            others -= tally.counts[OPEN] - tally.pending
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
        self, event: Event, task: CheckedTask, plan: NodePlan, graph: GraphPlan
    ) -> None:
        failed = _failed_before(task.run, plan, graph)
        if failed:
            self.report(
                event,
                f"task {task.id} ({task.name}) is requested although {failed!r} failed before it.",
            )

    def start(self, event: Event, task: CheckedTask) -> None:
        graph, plan = task.run.plan, task.plan
        if graph is None or plan is None or task.index <= 0:
            return
        if not (graph.graph.sequential or plan.node.in_order):
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


def _failed_before(run: CheckedRun, plan: NodePlan, graph: GraphPlan) -> str | None:
    for earlier in graph.nodes[: plan.index]:
        tally = run.nodes.get(earlier.index)
        if tally is not None and tally.counts[FAILED] and not earlier.collects:
            return earlier.node.name
    return None
