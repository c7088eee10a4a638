"""Attempts, abandons and the pauses between them."""

from __future__ import annotations

from locktender.base.events import Event
from locktender.observe.checker.deadlines import error_type
from locktender.observe.checker.rule import Rule, Watch
from locktender.observe.checker.subjects import FAILED, STANDING, Task


class Attempts(Rule):
    """A task fails at most `retries` + 1 times and is abandoned at most `max_abandons` times per
    generation, what is not retryable is not retried, and back-off is waited out."""

    id = "attempts"

    def watch(self, on: Watch) -> None:
        on.tasks(self.request, "requested")
        on.tasks(self.schedule, "scheduled")
        on.tasks(self.fail, "failed", "timed_out")
        on.tasks(self.abandon, "abandoned")

    def request(self, event: Event, task: Task) -> None:
        plan = task.plan
        if plan is None or task.generation != task.run.generation:
            return
        node = plan.node
        if task.state == "abandoned" and task.abandons >= node.max_abandons:
            self.report(
                event,
                f"task {task.id} ({task.name}) was abandoned {task.abandons} times of "
                f"{node.max_abandons} and is requested again.",
            )
        elif STANDING.get(task.state) == FAILED:
            if task.tries > node.retry.retries:
                self.report(
                    event,
                    f"task {task.id} ({task.name}) failed {task.tries} times with "
                    f"{node.retry.retries} retries and is requested again.",
                )
            elif not task.retryable:
                self.report(
                    event,
                    f"task {task.id} ({task.name}) failed for good and is requested again.",
                )

    def schedule(self, event: Event, task: Task) -> None:
        if event.at < task.not_before:
            self.report(
                event,
                f"task {task.id} ({task.name}) is scheduled {task.not_before - event.at} µs "
                "before its back-off ends.",
            )

    def fail(self, event: Event, task: Task) -> None:
        plan = task.plan
        if plan is None:
            return
        if task.state == "running" and task.tries > plan.node.retry.retries:
            self.report(
                event,
                f"task {task.id} ({task.name}) fails the {task.tries + 1}th time with "
                f"{plan.node.retry.retries} retries.",
            )
        elif (
            task.state == "abandoned"
            and task.abandons < plan.node.max_abandons
            and error_type(event) == "worker_lost"
        ):
            self.report(
                event,
                f"task {task.id} ({task.name}) is given up as worker_lost after "
                f"{task.abandons} abandons of {plan.node.max_abandons}.",
            )

    def abandon(self, event: Event, task: Task) -> None:
        if task.plan is not None and task.abandons >= task.plan.node.max_abandons:
            self.report(
                event,
                f"task {task.id} ({task.name}) is abandoned the {task.abandons + 1}th time of "
                f"{task.plan.node.max_abandons}.",
            )
