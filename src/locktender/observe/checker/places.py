"""Rules: who takes up a place at the run gate and in the tags' limits, who waits, and what is paused."""

from __future__ import annotations

from typing import Final

from locktender.base.clock import SECOND
from locktender.base.events import Event
from locktender.base.names import UNLIMITED
from locktender.observe.checker.admission import MAX_WAITING, CeilingDoubts, Doubt
from locktender.observe.checker.mail import awaits
from locktender.observe.checker.rule import Rule, Watch
from locktender.observe.checker.state import EXECUTING, OPEN, WAITING, CheckedRun, CheckedTask

MAX_UNPLACED: Final = 10_000
"""So many runs without a place a leader keeps in memory: further ones keep theirs."""
MAX_OPEN_TASKS: Final = 200_000
"""Of all runs: beyond it a leader lets no run give its place back."""
LEARNS_WITHIN_US: Final = 60 * SECOND
"""By then a leader knows which workers came and left."""


class PlaceRule(Rule):
    """A run takes a place only if some worker that lives could start some of it, and nothing of a run starts
    while its place is given back.

    Of a worker the history knows executors and labels. Which steps it has, and whether it drains, is not
    there: where only that is amiss, the rule is silent. So it is soon after a worker came or left, which a
    leader learns later than the history, and while no worker lives: no other run could use the place then.
    """

    id = "places"
    facts = True

    def watch(self, on: Watch) -> None:
        on.places(self.change)
        on.tasks(self.grant, "scheduled")
        on.closed(self.close)

    def change(self, event: Event, run: CheckedRun) -> None:
        if run.state not in EXECUTING:
            self.report(event, f"run {run.id} is {run.state} and has no place to give or take.")
        elif (event.after == "held") == run.placed:
            self.report(event, f"run {run.id} has its place {event.after} twice in a row.")
        elif event.after != "held" and run.in_flight:
            self.report(
                event, f"run {run.id} gives its place back with {run.in_flight} tasks in flight."
            )

    def grant(self, event: Event, task: CheckedTask) -> None:
        if not task.run.placed:
            self.report(event, f"task {task.id} starts while run {task.run.id} has no place.")

    def close(self) -> None:
        world = self.world
        if world.unplaced >= MAX_UNPLACED or all(each.gone for each in world.workers.values()):
            return
        for event, run in (*world.starts, *world.returns):
            if event.at < world.workers_changed_at + LEARNS_WITHIN_US:
                continue
            if run.placed and run.kind != "hold" and run.open and not run.in_flight:
                waiting = [task for task in run.tasks.values() if task.state == "requested"]
                if waiting and not any(self._fits(task) for task in waiting):
                    if sum(len(each.tasks) for each in world.runs.values()) > MAX_OPEN_TASKS:
                        return
                    self.report(
                        event,
                        f"run {run.id} takes a place although no worker could start any of it.",
                    )

    def _fits(self, task: CheckedTask) -> bool:
        if task.plan is None:
            return True
        node = task.plan.node
        return any(
            not worker.gone
            and worker.permits.get(node.executor, 0) != 0
            and all(worker.labels.get(label) == value for label, value in node.needs.items())
            for worker in self.world.workers.values()
        )


class PausedStarts(Rule):
    """While a run or its flow is paused, neither the run nor anything of it starts, and it takes no place again.

    A run that is to end, because it was cancelled or its deadline has passed, is paused no more.
    """

    id = "pauses"

    def watch(self, on: Watch) -> None:
        on.runs(self.start, "running")
        on.places(self.place)
        on.tasks(self.grant, "scheduled")

    def start(self, event: Event, run: CheckedRun) -> None:
        # One that goes on without a place is to end: its clean-up is not held up.
        ends = event.data.get("placed") is False
        if run.state == "queued" and not ends and self.world.pause_of(run):
            self.report(event, f"run {run.id} starts while {self.world.pause_of(run)} is paused.")

    def place(self, event: Event, run: CheckedRun) -> None:
        if event.after == "held" and self.world.pause_of(run):
            self.report(
                event, f"run {run.id} takes a place while {self.world.pause_of(run)} is paused."
            )

    def grant(self, event: Event, task: CheckedTask) -> None:
        if paused := self.world.pause_of(task.run):
            self.report(event, f"task {task.id} starts while {paused} is paused.")


class Waits(CeilingDoubts):
    """A waiting run holds nothing, nothing of it happens before it has been woken and has passed its gates,
    it is woken when its time has come and not before, and never more than `max_waiting` wait. A sleep is over
    when its time has come and not before, holds nothing, and nothing else is completed without an attempt
    but a task whose result was cached."""

    id = "waits"

    def watch(self, on: Watch) -> None:
        super().watch(on)
        on.runs(self.wait, WAITING)
        on.runs(self.wake, "queued")
        on.tasks(self.task)
        on.tasks(self.complete, "completed")
        on.tasks(self.start, "scheduled")

    def complete(self, event: Event, task: CheckedTask) -> None:
        if task.state != "requested":
            return
        if not task.sleeps:
            if "cached" not in event.data:
                self.report(event, f"task {task.id} ({task.name}) is completed without an attempt.")
        elif event.at < task.not_before and awaits(task) is None:
            early = (task.not_before - event.at) / SECOND
            self.report(event, f"sleep {task.id} ({task.name}) is over {early:.3f} s early.")

    def start(self, event: Event, task: CheckedTask) -> None:
        if task.sleeps:
            self.report(event, f"task {task.id} ({task.name}) starts, and is a sleep.")

    def wait(self, event: Event, run: CheckedRun) -> None:
        if run.in_flight:
            self.report(event, f"run {run.id} waits with {run.in_flight} tasks in flight.")
        if not event.data.get("wake_at"):
            self.report(event, f"run {run.id} waits for no time.")
        busy = next((each for each in run.tasks.values() if _is_busy(each)), None)
        if busy is not None:
            self.report(
                event, f"run {run.id} waits, and its task {busy.id} ({busy.name}) is {busy.state}."
            )
        if event.actor != "client":
            return  # only who submits is refused
        waiting, limit = self.world.waiting + 1, self.world.in_force.limits.max_waiting
        if UNLIMITED != limit < waiting:
            message = f"run {run.id} is admitted as waiting run {waiting} of {limit}."
            self.doubt(Doubt((MAX_WAITING,), waiting, 0, event.seq, run.id, message))

    def wake(self, event: Event, run: CheckedRun) -> None:
        if (
            run.state == WAITING
            and event.at < run.wake_at
            and not any(each.state == "requested" and awaits(each) for each in run.tasks.values())
        ):
            early = (run.wake_at - event.at) / SECOND
            self.report(event, f"run {run.id} is woken {early:.3f} s before its time.")

    def task(self, event: Event, task: CheckedTask) -> None:
        if task.run.state == WAITING:
            self.report(
                event,
                f"task {task.id} goes {event.before} → {event.after} while its run {task.run.id} waits.",
            )


def _is_busy(task: CheckedTask) -> bool:
    """Whether its run must not wait. The row of an earlier try that was not decided about yet does nothing."""
    return task.standing == OPEN and task.state != "pending" and not task.sleeps
