"""Rules on attempts: their number, the back-off between them, the jitter of retries, and timeouts."""

from __future__ import annotations

from locktender.base.events import Event
from locktender.observe.checker.report import Violation
from locktender.observe.checker.rule import Rule, Watch
from locktender.observe.checker.state import FAILED, STANDING, CheckedRun, CheckedTask
from locktender.observe.checker.world import HistoryState

_FIELDS = {"queue_timeout": "queue_timeout_us", "capacity": "dispatch_deadline_us"}


class DeadlineRule(Rule):
    """A task fails with `queue_timeout` or `capacity`, and a run ends timed_out, not before its time.

    The clock of a task is taken from its first request in the generation, the
    shortest of the durations the history knows counts, and where it knows none
    (a default of the configuration) nothing is said.
    """

    id = "deadlines"

    def watch(self, on: Watch) -> None:
        on.tasks(self.fail, "failed")
        on.runs(self.time_out, "timed_out")

    def fail(self, event: Event, task: CheckedTask) -> None:
        kind = error_type(event)
        field = _FIELDS.get(kind)
        if field is None or task.plan is None or task.run.plan is None:
            return
        if task.state != "requested":
            self.report(event, f"task {task.id} fails with {kind} while it is {task.state}.")
        run = task.run
        known: list[int | None] = [
            getattr(task.plan.node, field),
            getattr(task.run.plan.graph, field),
            run.data.get(field),
        ]
        durations = [duration for duration in known if duration is not None]
        waited = event.at + self.world.history.slack_us - task.first_requested_at
        if durations and waited < min(durations):
            self.report(
                event,
                f"task {task.id} ({task.name}) fails with {kind} after {waited} µs "
                f"of {min(durations)}.",
            )

    def time_out(self, event: Event, run: CheckedRun) -> None:
        deadline = run.data.get("deadline_at")
        if deadline is None and run.data.get("deadline_us") is not None:
            deadline = run.queued_at + run.data["deadline_us"]
        if deadline is not None and event.at + self.world.history.slack_us < deadline:
            self.report(
                event, f"run {run.id} times out {deadline - event.at} µs before its deadline."
            )


def error_type(event: Event) -> str:
    error: dict[str, object] = event.data.get("error") or {}
    return str(error.get("type", "")).partition(":")[0]


class Attempts(Rule):
    """A task fails at most `retries` + 1 times and is abandoned at most `max_abandons` times per
    generation, what is not retryable is not retried, and back-off is waited out."""

    id = "attempts"

    def watch(self, on: Watch) -> None:
        on.tasks(self.request, "requested")
        on.tasks(self.schedule, "scheduled")
        on.tasks(self.fail, "failed", "timed_out")
        on.tasks(self.abandon, "abandoned")

    def request(self, event: Event, task: CheckedTask) -> None:
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

    def schedule(self, event: Event, task: CheckedTask) -> None:
        if event.at < task.not_before:
            self.report(
                event,
                f"task {task.id} ({task.name}) is scheduled {task.not_before - event.at} µs "
                "before its back-off ends.",
            )

    def fail(self, event: Event, task: CheckedTask) -> None:
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

    def abandon(self, event: Event, task: CheckedTask) -> None:
        if task.plan is not None and task.abandons >= task.plan.node.max_abandons:
            self.report(
                event,
                f"task {task.id} ({task.name}) is abandoned the {task.abandons + 1}th time of "
                f"{task.plan.node.max_abandons}.",
            )


class MaxStarts(Rule):
    """One cycle starts at most `max_starts_per_cycle` tasks."""

    id = "max_starts"

    def __init__(self, world: HistoryState, found: list[Violation]) -> None:
        super().__init__(world, found)
        self._cycle = (0, 0)
        self._starts = 0

    def watch(self, on: Watch) -> None:
        on.closed(self.close)

    def close(self) -> None:
        commit = self.world.commit
        if (commit.term, commit.cycle) != self._cycle:
            self._cycle, self._starts = (commit.term, commit.cycle), 0
        grants = self.world.grants
        self._starts += len(grants)
        limit = self.world.in_force.limits.max_starts_per_cycle
        if grants and 0 <= limit < self._starts:
            self.report(
                grants[-1][0],
                f"cycle {commit.cycle} of term {commit.term} starts {self._starts} tasks; "
                f"{limit} are allowed.",
            )
