"""The rule of events: each is delivered once, in order, to a task that waits for it."""

from __future__ import annotations

from collections.abc import Iterator

from locktender.base.clock import SECOND
from locktender.base.events import NO_RUN, Event
from locktender.base.graph import AwaitedEvent
from locktender.observe.checker.history import Violation
from locktender.observe.checker.rule import Rule, Watch
from locktender.observe.checker.state import WAITING, CheckedRun, CheckedTask
from locktender.observe.checker.world import HistoryState


class MailRule(Rule):
    """An event is delivered to a run once, to a task that waits for it, in the order in which events of its name
    were sent to the run. The answer of one wait goes to no other. The commit that delivers it completes the task.
    Without an event no wait is over before its timeout, nor does a run that waits for one wake up."""

    id = "events"

    def __init__(self, world: HistoryState, found: list[Violation]) -> None:
        super().__init__(world, found)
        self.topics: dict[int, str] = {}
        """Events of topics, by number."""
        self.delivered: list[tuple[Event, CheckedTask]] = []
        """In the commit that is being read."""

    def watch(self, on: Watch) -> None:
        on.mails(self.mail)
        on.tasks(self.complete, "completed")
        on.tasks(self.request, "requested")
        on.runs(self.wake, "queued")
        on.closed(self.close)

    def mail(self, event: Event) -> None:
        n, name = int(event.data.get("n") or 0), str(event.data.get("name"))
        if event.run == NO_RUN:
            self.topics[n] = name
            return
        run = self.world.run(event.run)
        if event.after == "sent":
            if n in run.mail or n in run.taken:
                self.report(event, f"event {n} ({name}) is sent to run {run.id} twice.")
            run.mail[n] = name, event.task
            return
        self._judge(event, run, n, name)
        run.mail.pop(n, None)
        run.taken |= {n}

    def _judge(self, event: Event, run: CheckedRun, n: int, name: str) -> None:
        what = f"event {n} ({name}) is {event.after}"
        if n in run.taken:
            self.report(event, f"{what} to run {run.id} a second time.")
        sent, to = run.mail.get(n, (self.topics.get(n), 0))
        if n not in run.taken and sent != name and not self.world.history.thinned:
            self.report(event, f"{what} to run {run.id}, and was not sent to it.")
        if event.after == "delivered" and to not in {0, event.task}:
            self.report(event, f"{what} to task {event.task}, and is the answer of task {to}.")
        mine = [each for each, of in run.mail.items() if of[0] == name and of[1] in {0, event.task}]
        first = min(mine, default=n)
        if n in run.mail and first < n:
            self.report(
                event, f"{what} to run {run.id} before event {first}, which was sent first."
            )
        if event.after != "delivered":
            return
        task = run.tasks.get(event.task)
        if task is None or task.state != "requested" or (awaited := awaits(task)) is None:
            self.report(event, f"{what} to task {event.task}, which does not wait for an event.")
            return
        if awaited.name != name:
            self.report(event, f"{what} to task {task.id}, which waits for {awaited.name}.")
        if task.mailed:
            self.report(event, f"{what} to task {task.id}, which got one before.")
        task.mailed = True
        self.delivered.append((event, task))

    def request(self, _event: Event, task: CheckedTask) -> None:
        task.mailed = False

    def complete(self, event: Event, task: CheckedTask) -> None:
        awaited = awaits(task)
        if awaited is None or task.mailed or task.state != "requested":
            return
        if event.at < task.not_before:
            early = (task.not_before - event.at) / SECOND
            self.report(event, f"wait {task.id} ({task.name}) is over {early:.3f} s early.")
        elif not awaited.default:
            self.report(event, f"wait {task.id} ({task.name}) completes, and no event came.")

    def wake(self, event: Event, run: CheckedRun) -> None:
        if run.state != WAITING or event.at >= run.wake_at:
            return
        waited = {each.name for each in _open_waits(run)}
        unread = {name for n, name in self.topics.items() if n not in run.taken}
        sent = {name for name, _ in run.mail.values()}
        if waited and not waited & (sent | unread):
            self.report(event, f"run {run.id} is woken before its time, and no event came for it.")

    def close(self) -> None:
        for event, task in self.delivered:
            if task.state != "completed":
                self.report(
                    event, f"task {task.id} ({task.name}) is {task.state} after its event came."
                )
        self.delivered.clear()


def awaits(task: CheckedTask) -> AwaitedEvent | None:
    """The event that a task waits for, if it is such a wait."""
    return None if task.plan is None else task.plan.node.event


def _open_waits(run: CheckedRun) -> Iterator[AwaitedEvent]:
    for task in run.tasks.values():
        if task.state == "requested" and (awaited := awaits(task)) is not None:
            yield awaited
