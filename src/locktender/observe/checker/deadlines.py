"""What fails for want of time must have had its time."""

from __future__ import annotations

from locktender.base.events import Event
from locktender.observe.checker.rule import Rule, Watch
from locktender.observe.checker.subjects import Run, Task

_FIELDS = {"queue_timeout": "queue_timeout_us", "capacity": "dispatch_deadline_us"}


class Deadlines(Rule):
    """A task fails with `queue_timeout` or `capacity`, and a run ends timed_out, not before its time.

    The clock of a task is taken from its first request in the generation, the
    shortest of the durations the history knows counts, and where it knows none
    (a default of the configuration) nothing is said.
    """

    id = "deadlines"

    def watch(self, on: Watch) -> None:
        on.tasks(self.fail, "failed")
        on.runs(self.time_out, "timed_out")

    def fail(self, event: Event, task: Task) -> None:
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

    def time_out(self, event: Event, run: Run) -> None:
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
