"""How to write a rule: it names the events it needs, reads the state and reports violations.

A pruned history lacks whole runs that ended before `History.checked`; up to
there everything was checked before the pruning. The rest then shows less in
use than there was. Limits and promises within one run are still checked on all
that is left. A rule that compares runs (*there was no room*, *too soon after
that grant*) could be wrong on the pruned part: it sets `across = True`, still
reads every event, and reports only violations after that seq.

Of the events of no run a pruned history has those that still count: up to
`History.thinned` it is not known which limits, workers and leaders there were.
A rule that needs them sets `facts = True` and is silent up to there.

To add one: subclass `Rule`, give it an id and a docstring that says what it
promises, register its handlers in `watch`, and list it in `audit.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

from locktender.base.events import Event
from locktender.observe.checker.history import Violation
from locktender.observe.checker.state import CheckedRun, CheckedTask
from locktender.observe.checker.world import HistoryState

TaskHandler = Callable[[Event, CheckedTask], None]
RunHandler = Callable[[Event, CheckedRun], None]
EventHandler = Callable[[Event], None]
Handler = Callable[[], None]
H = TypeVar("H")


class Topic(Generic[H]):
    """Handlers by the state an event leads to, in the order of the rules."""

    def __init__(self) -> None:
        self._all: list[tuple[H, frozenset[str]]] = []
        self._found: dict[str, tuple[H, ...]] = {}

    def add(self, handler: H, after: tuple[str, ...]) -> None:
        self._all.append((handler, frozenset(after)))

    def of(self, after: str) -> tuple[H, ...]:
        found = self._found.get(after)
        if found is None:
            found = tuple(handler for handler, states in self._all if not states or after in states)
            self._found[after] = found
        return found


class Watch:
    """What the rules asked to see. Without states named, a handler sees every change of its subject."""

    def __init__(self) -> None:
        self.task_topic: Topic[TaskHandler] = Topic[TaskHandler]()
        self.run_topic: Topic[RunHandler] = Topic[RunHandler]()
        self.place_handlers: list[RunHandler] = []
        self.pause_handlers: list[RunHandler] = []
        self.trace_handlers: list[RunHandler] = []
        self.wait_handlers: list[TaskHandler] = []
        self.mail_handlers: list[EventHandler] = []
        self.cache_handlers: list[EventHandler] = []
        self.limit_handlers: list[EventHandler] = []
        self.asked_handlers: list[EventHandler] = []
        self.leader_handlers: list[EventHandler] = []
        self.open_handlers: list[Handler] = []
        self.close_handlers: list[Handler] = []
        self.end_handlers: list[Handler] = []

    def tasks(self, handler: TaskHandler, *after: str) -> None:
        self.task_topic.add(handler, after)

    def runs(self, handler: RunHandler, *after: str) -> None:
        self.run_topic.add(handler, after)

    def places(self, handler: RunHandler) -> None:
        self.place_handlers.append(handler)

    def pauses(self, handler: RunHandler) -> None:
        self.pause_handlers.append(handler)

    def traces(self, handler: RunHandler) -> None:
        self.trace_handlers.append(handler)

    def waits(self, handler: TaskHandler) -> None:
        self.wait_handlers.append(handler)

    def mails(self, handler: EventHandler) -> None:
        self.mail_handlers.append(handler)

    def caches(self, handler: EventHandler) -> None:
        """Results that are kept or cleared; one that is used stands in the end of a task."""
        self.cache_handlers.append(handler)

    def limits(self, handler: EventHandler) -> None:
        """Called when the limit is in force already."""
        self.limit_handlers.append(handler)

    def asked(self, handler: EventHandler) -> None:
        """Called when a client has set a limit, whether or not the leader knows yet."""
        self.asked_handlers.append(handler)

    def leaders(self, handler: EventHandler) -> None:
        self.leader_handlers.append(handler)

    def opened(self, handler: Handler) -> None:
        """Before the first event of any commit."""
        self.open_handlers.append(handler)

    def closed(self, handler: Handler) -> None:
        """After the last event of a leader's commit."""
        self.close_handlers.append(handler)

    def ended(self, handler: Handler) -> None:
        self.end_handlers.append(handler)


class Rule:
    """One promise. Its docstring is shown as the meaning of the rule's id."""

    id: ClassVar[str]
    across: ClassVar[bool] = False
    """Its verdict on a run may hang on others that were pruned."""
    facts: ClassVar[bool] = False
    """Its verdict hangs on limits, workers or leaders."""

    def __init__(self, world: HistoryState, found: list[Violation]) -> None:
        self.world = world
        self._found = found

    def watch(self, on: Watch) -> None:
        raise NotImplementedError

    def kept(self) -> dict[str, Any]:
        """What it has to know of the events so far."""
        return {
            name: value for name, value in vars(self).items() if name not in {"world", "_found"}
        }

    def keep(self, kept: dict[str, Any]) -> None:
        vars(self).update(kept)

    def report(self, event: Event, message: str) -> None:
        self.report_at(event.seq, message, run=event.run, task=event.task)

    def report_at(self, seq: int, message: str, *, run: int = 0, task: int = 0) -> None:
        history = self.world.history
        if (self.across and seq <= history.checked) or (self.facts and seq <= history.thinned):
            return
        self._found.append(Violation(self.id, seq, run, task, message))
