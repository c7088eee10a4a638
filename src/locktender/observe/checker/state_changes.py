"""Rules on states: legal changes only, one end per task and generation, nothing lost, one active run per key."""

from __future__ import annotations

from locktender.base.events import Event
from locktender.base.states import NEW, RUN_CHANGES, TASK_CHANGES, Owner, TaskState
from locktender.observe.checker.history import Violation
from locktender.observe.checker.rule import Rule, Watch
from locktender.observe.checker.state import (
    ACTIVE,
    CANCELLED,
    COMPLETED,
    EXECUTING,
    FAILED,
    OPEN,
    RUN_ENDS,
    SKIPPED,
    STANDING,
    WAITING,
    CheckedRun,
    CheckedTask,
)
from locktender.observe.checker.world import HistoryState

_OWNERS = {"leader": Owner.LEADER, "worker": Owner.WORKER, "client": Owner.SUBMITTER}
_RUN_CHANGES = {(str(a), str(b)): owner for (a, b), owner in RUN_CHANGES.items()}
_TASK_CHANGES = {(str(a), str(b)): owner for (a, b), owner in TASK_CHANGES.items()}


class LegalEdge(Rule):
    """Every change of a run or a task is legal, made by its owner, and starts where the last one ended."""

    id = "legal_edge"

    def watch(self, on: Watch) -> None:
        on.runs(self.run)
        on.tasks(self.task)

    def run(self, event: Event, run: CheckedRun) -> None:
        self._change(event, f"run {run.id}", run.state, _RUN_CHANGES)
        if event.before == NEW:
            digest = event.data.get("graph")
            # Without its graph most rules cannot check a run: report that.
            if self.world.plan(digest or "") is None and (
                digest or event.data.get("kind") != "hold"
            ):
                self.report(
                    event,
                    f"run {run.id} names graph {digest!r}, which is missing or cannot be read.",
                )

    def task(self, event: Event, task: CheckedTask) -> None:
        run = task.run
        if run.state == NEW:
            self.report(event, f"task {task.id} belongs to run {run.id}, which was never queued.")
        deputy = Owner.LEADER if self._hands_back_for_the_lost(event, task) else None
        self._change(event, f"task {task.id}", task.state, _TASK_CHANGES, deputy)

    def _hands_back_for_the_lost(self, event: Event, task: CheckedTask) -> bool:
        """Tasks in a worker's drain list are handed back for it, once it is gone and not before."""
        if (event.before, event.after) != (TaskState.RUNNING, TaskState.HANDED_BACK):
            return False
        worker = self.world.workers.get(task.worker)
        if worker is None:
            return event.seq <= self.world.history.thinned
        return worker.leaving or worker.gone

    def _change(
        self,
        event: Event,
        who: str,
        believed: str,
        legal: dict[tuple[str, str], Owner],
        deputy: Owner | None = None,
    ) -> None:
        before, after = event.before, event.after
        if before != believed:
            self.report(event, f"{who} goes {before} → {after}, but it is {believed}.")
        owner = legal.get((before, after))
        if owner is None:
            self.report(event, f"{who} goes {before} → {after}, which is not a legal change.")
            return
        actor = event.actor
        if "by" in event.data and actor.startswith("leader:"):
            actor = str(event.data["by"])
        made_by = _OWNERS.get(actor.partition(":")[0])
        if made_by is not owner and (deputy is None or made_by is not deputy):
            self.report(
                event, f"{who} goes {before} → {after} by {actor!r}; that change is the {owner}'s."
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

    def task(self, event: Event, task: CheckedTask) -> None:
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

    def start(self, event: Event, task: CheckedTask) -> None:
        plan = task.plan
        if task.run.state == "held":
            self.report(event, f"task {task.id} ({task.name}) starts although its run is held.")
        if task.run.state == "cancelling" and plan is not None and plan.node.run_if != "always":
            self.report(
                event, f"task {task.id} ({task.name}) starts although its run is being cancelled."
            )

    def end(self, event: Event, run: CheckedRun) -> None:
        if run.state == "held":
            # What waits in a held run was not decided on: only what runs must end before it.
            if run.in_flight:
                self.report(
                    event,
                    f"run {run.id} was held and ends {event.after} with {run.in_flight} tasks in flight.",
                )
            return
        if run.open:
            open_tasks = [t for t in run.tasks.values() if STANDING.get(t.state, OPEN) == OPEN]
            first = open_tasks[0]
            self.report(
                event,
                f"run {run.id} ends {event.after} with {run.open} tasks that have not ended, "
                f"first task {first.id} ({first.name}), {first.state}.",
            )
        if run.generation:
            self._check_decided_again(event, run)
        if run.state == "cancelling" and event.after != "cancelled":
            self.report(event, f"run {run.id} was cancelling and ends {event.after}.")

    def _check_decided_again(self, event: Event, run: CheckedRun) -> None:
        left = [
            task
            for task in run.tasks.values()
            if STANDING.get(task.state, OPEN) not in (OPEN, COMPLETED)
            and task.ended_in != run.generation
            and not _is_collected(task)
        ]
        if left and run.state != "queued":
            self.report(
                event,
                f"run {run.id} ends {event.after} in generation {run.generation}; task {left[0].id} "
                f"({left[0].name}) is still {left[0].state} from an earlier one, as {len(left)} in all.",
            )

    def succeed(self, event: Event, run: CheckedRun) -> None:
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

    def _check_all_nodes_came(self, event: Event, run: CheckedRun) -> None:
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
            elif (here := run.nodes.get(plan.index)) is not None and here.total <= here.last:
                # A map that is expanded in slices has its last item from the first slice on.
                self.report(
                    event,
                    f"run {run.id} succeeds with {here.total} items of {plan.node.name!r} "
                    f"of {here.last + 1}.",
                )

    def fail(self, event: Event, run: CheckedRun) -> None:
        if not run.failed and not event.data.get("error"):
            done = sum(tally.counts[COMPLETED] for tally in run.nodes.values())
            self.report(
                event,
                f"run {run.id} fails although no task of it failed ({done} completed) "
                "and no error is given.",
            )

    def queue(self, event: Event, run: CheckedRun) -> None:
        if run.state not in RUN_ENDS:
            return
        generation = event.data.get("generation", run.generation + 1)
        if generation != run.generation + 1:
            self.report(
                event,
                f"run {run.id} is retried as generation {generation} after {run.generation}.",
            )


class NoLoss(Rule):
    """When the system is idle, every queued run has ended and so has every requested task."""

    id = "no_loss"

    def watch(self, on: Watch) -> None:
        on.ended(self.finish)

    def finish(self) -> None:
        if not self.world.complete:
            return
        seq = self.world.last_seq
        for number in sorted(self.world.asleep):
            self.report_at(seq, f"run {number} is still waiting at the end.", run=number)
        for _, run in sorted(self.world.runs.items()):
            if run.state in ACTIVE or run.state == WAITING:
                self.report_at(seq, f"run {run.id} is still {run.state} at the end.", run=run.id)
            for task in run.tasks.values() if run.open and not run.was_held else ():
                if STANDING.get(task.state, OPEN) == OPEN:
                    self.report_at(
                        seq,
                        f"task {task.id} ({task.name}) is still {task.state} at the end.",
                        run=run.id,
                        task=task.id,
                    )


class Keys(Rule):
    """At most one run of a key executes; another may be queued only to replace it, and starts after it."""

    id = "keys"
    across = True

    def watch(self, on: Watch) -> None:
        on.runs(self.queue, "queued", WAITING)
        on.closed(self.close)

    def queue(self, event: Event, run: CheckedRun) -> None:
        key = event.data.get("key", run.key)
        if key is None:
            return
        others = self.world.active_keys.get(key, set()) - {run.id}
        if others and event.data.get("waits_for") not in others:
            self.report(
                event,
                f"run {run.id} is queued with key {key!r}, which run {min(others)} has, "
                "and does not wait for it.",
            )

    def close(self) -> None:
        for event, run in self.world.starts:
            if run.key is None:
                continue
            executing = self.world.executing_keys.get(run.key, set())
            if len(executing) > 1:
                self.report(
                    event, f"runs {sorted(executing)} of key {run.key!r} execute at the same time."
                )
            before = None if run.waits_for is None else self.world.runs.get(run.waits_for)
            if before is not None and before.state in ACTIVE:
                self.report(
                    event,
                    f"run {run.id} starts while run {before.id}, which it replaces, is {before.state}.",
                )


def _is_collected(task: CheckedTask) -> bool:
    """A failed item whose error is a value that others may have taken: a retry keeps it as it keeps results."""
    plan = task.plan
    return (
        STANDING.get(task.state) == FAILED
        and plan is not None
        and plan.collects
        and plan.node.run_if == "success"
    )


class TraceRule(Rule):
    """A run submitted by name goes on with the graph that a worker traced: once, after its tracing task has
    completed, and it does not succeed without."""

    id = "trace"

    def watch(self, on: Watch) -> None:
        on.traces(self.trace)
        on.runs(self.succeed, "succeeded")

    def trace(self, event: Event, run: CheckedRun) -> None:
        if run.state not in EXECUTING:
            self.report(event, f"run {run.id} is {run.state} and gets a traced graph.")
        if run.plan is None or not run.plan.graph.unfolds:
            self.report(event, f"run {run.id} gets a traced graph, but it has its graph already.")
        task = run.places.get((0, -1))
        if task is None or task.state != TaskState.COMPLETED:
            self.report(event, f"run {run.id} gets a graph before its tracing task has completed.")
        if self.world.plan(event.after) is None:
            self.report(
                event,
                f"run {run.id} names graph {event.after!r}, which is missing or cannot be read.",
            )

    def succeed(self, event: Event, run: CheckedRun) -> None:
        if run.plan is not None and run.plan.graph.unfolds:
            self.report(event, f"run {run.id} succeeded, and its flow was never traced.")


class TickRule(Rule):
    """A tick of a schedule becomes one run at most: each run is of a later tick than the one before."""

    id = "one_run_per_tick"

    def __init__(self, world: HistoryState, found: list[Violation]) -> None:
        super().__init__(world, found)
        self._last: dict[str, tuple[int, int]] = {}

    def watch(self, on: Watch) -> None:
        on.runs(self.queue, "queued")

    def queue(self, event: Event, run: CheckedRun) -> None:
        schedule, tick = event.data.get("schedule"), event.data.get("tick")
        if event.before != NEW or schedule is None or tick is None:
            return
        last, other = self._last.get(schedule, (-1, 0))
        if tick <= last:
            self.report(
                event,
                f"run {run.id} is of tick {tick} of schedule {schedule!r}; run {other} was of tick {last}.",
            )
        self._last[schedule] = tick, run.id
