"""Rules on fencing: one token per attempt, one leader at a time, and the leader's commits in order."""

from __future__ import annotations

from locktender.base.events import Event
from locktender.base.ids import term_of
from locktender.base.states import NEW
from locktender.observe.checker.report import Violation
from locktender.observe.checker.rule import Rule, Watch
from locktender.observe.checker.state import HOLDING_TASKS, CheckedTask
from locktender.observe.checker.world import HistoryState


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
        # The coordinator may withdraw or abandon without naming the token: it owns the row then.
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
