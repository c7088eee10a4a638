"""Rules on attempts: number, back-off, jitter, timeouts, one token per attempt, one leader at a time."""

from __future__ import annotations

from locktender.base.events import Event
from locktender.base.ids import term_of
from locktender.base.states import NEW
from locktender.observe.checker.history import Violation
from locktender.observe.checker.rule import Rule, Watch
from locktender.observe.checker.state import (
    FAILED,
    HOLDING_TASKS,
    STANDING,
    CheckedRun,
    CheckedTask,
)
from locktender.observe.checker.world import HistoryState

_FIELDS = {"queue_timeout": "queue_timeout_us", "capacity": "dispatch_deadline_us"}


class DeadlineRule(Rule):
    """A task fails with `queue_timeout` or `capacity`, and a run ends timed_out, not before its time.

    The clock of a task is taken from its first request in the generation, the
    shortest of the durations the history knows counts, and where it knows none
    (a default of the configuration) nothing is checked.
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
    facts = True

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


class Fencing(Rule):
    """Tokens grow from attempt to attempt and carry the term of the leader that scheduled them;
    what is written about an attempt carries its token and comes from the worker it was offered to."""

    id = "fencing"

    def watch(self, on: Watch) -> None:
        on.tasks(self.change)

    def change(self, event: Event, task: CheckedTask) -> None:
        if event.after == "scheduled":
            self._offer(event, task)
        elif event.before in HOLDING_TASKS and task.state != NEW:
            self._write(event, task)

    def _offer(self, event: Event, task: CheckedTask) -> None:
        token = event.token
        if token <= task.token:
            self.report(
                event,
                f"task {task.id} is scheduled with token {token}; its last one was {task.token}, "
                "and a later attempt must have a larger one.",
            )
        if term_of(token) != event.term:
            self.report(
                event,
                f"task {task.id} is scheduled in term {event.term} with token {token}, "
                f"which is of term {term_of(token)}.",
            )

    def _write(self, event: Event, task: CheckedTask) -> None:
        actor = event.actor
        if "by" in event.data and actor.startswith("leader:"):
            actor = str(event.data["by"])
        by_worker = actor.startswith("worker:")
        # The leader may withdraw or abandon without naming the token: it owns the row then.
        if event.token != task.token and (by_worker or event.token):
            self.report(
                event,
                f"task {task.id} goes {event.before} → {event.after} with token {event.token}; "
                f"the attempt's is {task.token}: a stale write.",
            )
        if by_worker and task.worker and actor[7:] != task.worker and task.executor != "hold":
            self.report(
                event,
                f"task {task.id} goes {event.before} → {event.after} by {actor!r}; "
                f"it was offered to {task.worker!r}.",
            )


class SingleLeader(Rule):
    """Terms only grow, a term has one owner, its commits are numbered upwards without a repeat,
    and only a leader brings limits into force."""

    id = "leadership"
    facts = True

    def __init__(self, world: HistoryState, found: list[Violation]) -> None:
        super().__init__(world, found)
        self._term = 0
        self._owner = ""
        self._last = (0, 0)
        self._seq = 0

    def watch(self, on: Watch) -> None:
        on.leaders(self.elected)
        on.limits(self.limit)
        on.opened(self.opened)
        on.closed(self.closed)

    def elected(self, event: Event) -> None:
        if event.term <= self._term:
            self.report(
                event, f"term {event.term} begins after term {self._term} ({self._owner!r})."
            )
            return
        if not event.after:
            self.report(event, f"term {event.term} has no owner.")
        self._term, self._owner = event.term, event.after

    def limit(self, event: Event) -> None:
        if not event.actor.startswith("leader:") or event.after != "in_force":
            self.report(event, f"{event.actor!r} brings a limit to {event.after!r}.")

    def opened(self) -> None:
        commit = self.world.commit
        if commit.seq < self._seq:
            self.report_at(
                commit.seq, f"seq {commit.seq} comes after {self._seq}: not in commit order."
            )
        self._seq = commit.seq
        if commit.leader and commit.cycle:
            this = commit.term, commit.cycle
            if this <= self._last:
                self.report_at(
                    commit.seq,
                    f"{commit.actor} commits cycle {this[1]} of term {this[0]} after "
                    f"cycle {self._last[1]} of term {self._last[0]}.",
                )
            self._last = max(self._last, this)

    def closed(self) -> None:
        commit = self.world.commit
        if not commit.leader:
            return
        if commit.term != self._term:
            why = "is over" if commit.term < self._term else "never began"
            self.report_at(
                commit.seq, f"{commit.actor} commits in term {commit.term}, which {why}."
            )
        elif commit.actor != f"leader:{self._owner}":
            self.report_at(
                commit.seq,
                f"{commit.actor} commits in term {commit.term}, which is {self._owner!r}'s.",
            )
