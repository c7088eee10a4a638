"""Every attempt has a token of its own, and every write of it carries that token."""

from __future__ import annotations

from locktender.base.events import Event
from locktender.base.ids import term_of
from locktender.base.states import NEW
from locktender.observe.checker.rule import Rule, Watch
from locktender.observe.checker.subjects import HOLDING_TASKS, Task


class Fencing(Rule):
    """Tokens grow from attempt to attempt and carry the term of the leader that scheduled them;
    what is written about an attempt carries its token and comes from the worker it was offered to."""

    id = "fencing"

    def watch(self, on: Watch) -> None:
        on.tasks(self.change)

    def change(self, event: Event, task: Task) -> None:
        if event.after == "scheduled":
            self._offer(event, task)
        elif event.before in HOLDING_TASKS and task.state != NEW:
            self._write(event, task)

    def _offer(self, event: Event, task: Task) -> None:
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

    def _write(self, event: Event, task: Task) -> None:
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
