"""Rule: never more active runs than `max_active` allows, and no rejection without cause.

A limit holds from the commit of the client that sets it (*asked*), not only
from the leader's next cycle. If neither the limit in force nor the last one
asked for explains a rejection, the rule waits for a few commits of the leader:
a limit that comes into force then and explains it had been asked for already.
"""

from __future__ import annotations

from collections import deque
from typing import ClassVar, Final, NamedTuple

from locktender.base.clock import SECOND
from locktender.base.events import Event
from locktender.base.limits import Limits
from locktender.base.names import UNLIMITED
from locktender.base.states import NEW
from locktender.observe.checker.history import Rejection, Violation
from locktender.observe.checker.rule import Rule, Watch
from locktender.observe.checker.state import WAITING, CheckedRun
from locktender.observe.checker.world import HistoryState

MAX_ACTIVE = "max_active"
MAX_STARTS = 1_000
"""The most that a throttle may allow in its time."""
MAX_WAITING = "max_waiting"


class Doubt(NamedTuple):
    names: tuple[str, ...]
    """Ceilings that could explain it."""
    at_least: int
    """Such a limit explains it; 0: only one that is equal to `equal`."""
    equal: int
    seq: int
    run: int
    message: str
    until: int = 0

    def explained(self, limit: int) -> bool:
        if self.at_least:
            return limit == UNLIMITED or limit >= self.at_least
        return limit == self.equal


class CeilingDoubts(Rule):
    """Keeps what only a limit that is not yet in force can explain."""

    cycles_allowed: ClassVar[int] = 3
    """Commits of the leader after which a limit that was asked for is certainly recorded."""

    def __init__(self, world: HistoryState, found: list[Violation]) -> None:
        super().__init__(world, found)
        self._doubts: list[Doubt] = []
        self._asked: dict[str, int] = {}
        """Ceiling → what it was last asked to be."""
        self._closed = 0

    def watch(self, on: Watch) -> None:
        on.asked(self.ask)
        on.limits(self.limit)
        on.closed(self.close)
        on.ended(self.finish)

    def ask(self, event: Event) -> None:
        kind, rule = event.data.get("kind"), event.data.get("rule")
        if kind == "active":
            self._asked[MAX_ACTIVE] = Limits().max_active if rule is None else rule["limit"]
        elif kind == "engine" and event.data.get("name") == MAX_WAITING:
            self._asked[MAX_WAITING] = Limits().max_waiting if rule is None else rule["value"]
        elif kind == "tag":
            limit = UNLIMITED if rule is None else rule.get("max_active", UNLIMITED)
            self._asked[event.data.get("name", "")] = limit

    def doubt(self, doubt: Doubt) -> None:
        """Keeps the doubt unless a limit in force, or one a client asked for by then, explains it."""
        names, seq = doubt.names, doubt.seq
        candidates = [self._limit(name) for name in names]
        candidates += [self._asked.get(name) for name in names]
        asked = [c for c in self.world.history.max_active if c.name in names and c.since <= seq]
        latest = max((ceiling.since for ceiling in asked), default=0)
        candidates += [ceiling.limit for ceiling in asked if ceiling.since == latest]
        if not any(limit is not None and doubt.explained(limit) for limit in candidates):
            self._doubts.append(doubt._replace(until=self._closed + self.cycles_allowed))

    def _limit(self, name: str) -> int | None:
        if name == MAX_ACTIVE:
            return self.world.in_force.limits.max_active
        if name == MAX_WAITING:
            return self.world.in_force.limits.max_waiting
        rule = self.world.in_force.tags.get(name)
        return None if rule is None else rule.max_active

    def limit(self, event: Event) -> None:
        if not self._doubts:
            return
        name = MAX_ACTIVE if event.data.get("kind") == "active" else event.data.get("name", "")
        limit = self._limit(name)
        value = UNLIMITED if limit is None else limit
        self._doubts = [d for d in self._doubts if name not in d.names or not d.explained(value)]

    def close(self) -> None:
        self._closed += 1
        if self._doubts and self._doubts[0].until < self._closed:
            for doubt in [d for d in self._doubts if d.until < self._closed]:
                self.report_at(doubt.seq, doubt.message, run=doubt.run)
                self._doubts.remove(doubt)

    def finish(self) -> None:
        for doubt in self._doubts:
            self.report_at(doubt.seq, doubt.message, run=doubt.run)


class ActiveCeiling(CeilingDoubts):
    """Queued and executing runs never exceed `max_active`, in total and per tag."""

    id = "ceilings"
    facts = True

    def watch(self, on: Watch) -> None:
        super().watch(on)
        on.runs(self.queue, "queued")

    def queue(self, event: Event, run: CheckedRun) -> None:
        if event.data.get("kind", run.kind) == "hold" or run.state == WAITING:
            return  # a woken run counts, and is never refused
        world = self.world
        active = world.active - world.active_holds + 1
        limit = world.in_force.limits.max_active
        if UNLIMITED != limit < active:
            self._doubt(event, MAX_ACTIVE, active, limit)
        tags: dict[str, str] = event.data.get("tags") or run.tags
        for rule, slot in world.in_force.tag_rules(tags):
            active = world.active_tags.get(slot, 0) + 1
            if UNLIMITED != rule.max_active < active:
                self._doubt(event, rule.name, active, rule.max_active)

    def _doubt(self, event: Event, name: str, active: int, limit: int) -> None:
        message = (
            f"run {event.run} is admitted as active run {active} under {name!r}, "
            f"whose ceiling is {limit}."
        )
        self.doubt(Doubt((name,), active, 0, event.seq, event.run, message))


class HonestRejections(CeilingDoubts):
    """A submission is rejected only when the ceiling it names was reached, at the limit it names."""

    id = "honest_rejections"
    across = True

    def __init__(self, world: HistoryState, found: list[Violation]) -> None:
        super().__init__(world, found)
        self._waiting = sorted(world.history.rejections, key=lambda each: each.as_of, reverse=True)

    def watch(self, on: Watch) -> None:
        if self._waiting:
            super().watch(on)
            on.opened(self.open)

    def open(self) -> None:
        while self._waiting and self._waiting[-1].as_of < self.world.commit.seq:
            self._judge(self._waiting.pop())

    def finish(self) -> None:
        while self._waiting:
            self._judge(self._waiting.pop())
        super().finish()

    def _judge(self, rejection: Rejection) -> None:
        ceiling, limit, asked = rejection.ceiling, rejection.limit, rejection.asked
        if ceiling == MAX_ACTIVE:
            names, active = (MAX_ACTIVE,), self.world.active
        elif ceiling == MAX_WAITING:
            names, active = (MAX_WAITING,), self.world.waiting
        else:
            key, _, value = ceiling.partition("=")
            plain = value.removeprefix("*")
            names = (ceiling, f"{key}=*") if value else (key,)
            active = self.world.active_tags.get((key, plain or None), 0)
        if limit == UNLIMITED or active + asked <= limit:
            self.report_at(
                rejection.as_of,
                f"a submission of {asked} was rejected at {ceiling!r} with {rejection.active} "
                f"active runs of {limit}; there were {active}.",
            )
        message = (
            f"a submission was rejected at {ceiling!r} with a limit of {limit}, "
            "which was neither in force nor asked for."
        )
        self.doubt(Doubt(names, 0, limit, rejection.as_of, 0, message))


MIN_THROTTLES: Final = 1_000
"""Of so many throttles the old ones are forgotten."""


class ThrottledStarts(Rule):
    """Under a throttle, no more runs are let go in any span of its time than it allows."""

    id = "throttles"
    across = True

    def __init__(self, world: HistoryState, found: list[Violation]) -> None:
        super().__init__(world, found)
        self._starts: dict[str, deque[int]] = {}
        self._until: dict[str, int] = {}
        """When the last start of each throttle leaves its span: from then on nothing of it is needed."""
        self._look_over = MIN_THROTTLES

    def watch(self, on: Watch) -> None:
        on.runs(self.submit, "queued", "waiting")

    def submit(self, event: Event, run: CheckedRun) -> None:
        throttle = event.data.get("throttle")
        if throttle is None or event.before != NEW:
            return
        name, count, per_us = throttle["name"], throttle["count"], throttle["per_us"]
        at = event.data.get("wake_at") or event.at
        starts = self._starts.setdefault(name, deque(maxlen=MAX_STARTS))
        if len(starts) >= count and at - starts[-count] < per_us:
            self.report(
                event,
                f"run {run.id} is let go {(at - starts[-count]) / SECOND:.3f} s after the start {count} places"
                f" before it under throttle {name!r}, which allows {count} in {per_us / SECOND:g} s.",
            )
        starts.append(at)
        self._until[name] = at + per_us
        if len(self._starts) > self._look_over:
            self._forget(event.at)

    def _forget(self, now: int) -> None:
        for name in [name for name, until in self._until.items() if until <= now]:
            del self._starts[name], self._until[name]
        self._look_over = max(MIN_THROTTLES, 2 * len(self._starts))
