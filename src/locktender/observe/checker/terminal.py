"""Ends: one per task and generation, none too early, none contradicted by what happened."""

from __future__ import annotations

from locktender.base.events import Event
from locktender.observe.checker.rule import Rule, Watch
from locktender.observe.checker.subjects import (
    CANCELLED,
    COMPLETED,
    FAILED,
    OPEN,
    RUN_ENDS,
    SKIPPED,
    STANDING,
    Run,
    Task,
)


class Terminal(Rule):
    """A task ends once per generation, a run ends when all its tasks have, nothing of it happens
    after that until it is retried, nothing but clean-up starts once it is cancelling, and its
    verdict agrees with how its tasks ended."""

    id = "terminal"

    def watch(self, on: Watch) -> None:
        on.tasks(self.task)
        on.tasks(self.start, "scheduled")
        on.waits(self.task)
        on.runs(self.end, *RUN_ENDS)
        on.runs(self.succeed, "succeeded")
        on.runs(self.fail, "failed")
        on.runs(self.queue, "queued")

    def task(self, event: Event, task: Task) -> None:
        run = task.run
        if run.state in RUN_ENDS:
            what = "waits" if event.subject == "wait" else f"goes {event.before} → {event.after}"
            self.report(event, f"task {task.id} {what} after its run {run.id} ended {run.state}.")
        elif event.subject == "task" and task.ended_in == run.generation:
            standing = STANDING.get(task.state, OPEN)
            # Failed is an end only if no attempt follows: whether one may is judged by `attempts`.
            again = standing == FAILED and event.after == "requested"
            if standing != OPEN and not again:
                self.report(
                    event,
                    f"task {task.id} goes {event.before} → {event.after}; "
                    f"it had ended {task.state} in generation {run.generation}.",
                )

    def start(self, event: Event, task: Task) -> None:
        plan = task.plan
        if task.run.state == "cancelling" and plan is not None and plan.node.run_if != "always":
            self.report(
                event, f"task {task.id} ({task.name}) starts although its run is being cancelled."
            )

    def end(self, event: Event, run: Run) -> None:
        if run.open:
            open_tasks = [t for t in run.tasks.values() if STANDING.get(t.state, OPEN) == OPEN]
            first = open_tasks[0]
            self.report(
                event,
                f"run {run.id} ends {event.after} with {run.open} tasks that have not ended, "
                f"first task {first.id} ({first.name}), {first.state}.",
            )
        if run.state == "cancelling" and event.after != "cancelled":
            self.report(event, f"run {run.id} was cancelling and ends {event.after}.")

    def succeed(self, event: Event, run: Run) -> None:
        for node, tally in sorted(run.nodes.items()):
            plan = run.plan.nodes[node] if run.plan and 0 <= node < len(run.plan.nodes) else None
            if plan is None:
                continue
            counts, label = tally.counts, plan.node.name
            if counts[FAILED] and not plan.collects:
                self.report(
                    event,
                    f"run {run.id} succeeds although {counts[FAILED]} tasks of {label!r} failed.",
                )
            if counts[CANCELLED]:
                self.report(
                    event,
                    f"run {run.id} succeeds although {counts[CANCELLED]} tasks of {label!r} "
                    "were cancelled.",
                )
            skipped = counts[SKIPPED] or (tally.unexpanded and not tally.total)
            if skipped and run.plan is not None and not run.plan.conditional:
                self.report(
                    event,
                    f"run {run.id} succeeds although {label!r} was skipped, "
                    "and its graph has no condition.",
                )
        self._check_all_nodes_came(event, run)

    def _check_all_nodes_came(self, event: Event, run: Run) -> None:
        if run.plan is None:
            return
        for plan in run.plan.nodes:
            # A map over an empty list has no tasks; any other node must have left a trace.
            if not plan.mapped and plan.index not in run.nodes:
                self.report(
                    event, f"run {run.id} succeeds; its step {plan.node.name!r} never came."
                )
            elif plan.each_of is not None:
                here, there = run.nodes.get(plan.index), run.nodes.get(plan.each_of)
                items = 0 if here is None else here.total
                expected = 0 if there is None else there.total
                if items < expected and not (here is not None and here.unexpanded):
                    self.report(
                        event,
                        f"run {run.id} succeeds with {items} items of {plan.node.name!r} "
                        f"of {expected}.",
                    )

    def fail(self, event: Event, run: Run) -> None:
        if not run.failed and not event.data.get("error"):
            done = sum(tally.counts[COMPLETED] for tally in run.nodes.values())
            self.report(
                event,
                f"run {run.id} fails although no task of it failed ({done} completed) "
                "and no error is given.",
            )

    def queue(self, event: Event, run: Run) -> None:
        if run.state not in RUN_ENDS:
            return
        generation = event.data.get("generation", run.generation + 1)
        if generation != run.generation + 1:
            self.report(
                event,
                f"run {run.id} is retried as generation {generation} after {run.generation}.",
            )
