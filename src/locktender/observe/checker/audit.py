"""Feeds a history to the rules and returns the violations, and the peak of each limit.

The history is read in pages. Between two pages the state of runs that have ended
is dropped, so that the check needs memory for what is open at one time, and for
one bit per run.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, assert_never

import msgspec

from locktender.base.events import Event
from locktender.base.ids import run_of
from locktender.observe.checker.admission import ActiveCeiling, HonestRejections, ThrottledStarts
from locktender.observe.checker.attempts import (
    Attempts,
    DeadlineRule,
    Fencing,
    MaxStarts,
    SingleLeader,
)
from locktender.observe.checker.bypass import Bypass
from locktender.observe.checker.cache import CacheHits
from locktender.observe.checker.dependencies import Dependencies, Sequential
from locktender.observe.checker.history import History, Peak, Violation
from locktender.observe.checker.limits import (
    AllOrNone,
    CeilingRule,
    Conservation,
    Permits,
    PoolCeiling,
    Rates,
    RunCeiling,
    RunParallelism,
    Window,
)
from locktender.observe.checker.mail import MailRule
from locktender.observe.checker.places import PausedStarts, PlaceRule, Waits
from locktender.observe.checker.rule import Rule, Watch
from locktender.observe.checker.saved import SavedState, StateUnreadable, decode, encode
from locktender.observe.checker.state import CheckedTask, HistoryCommit, commit_of
from locktender.observe.checker.state_changes import (
    Keys,
    LegalEdge,
    NoLoss,
    Terminal,
    TickRule,
    TraceRule,
)
from locktender.observe.checker.waiting import TrueReason
from locktender.observe.checker.world import HistoryState

EVENTS_PER_PAGE: Final = 10_000


@dataclass(frozen=True, slots=True)
class Replayed:
    world: HistoryState
    rules: list[Rule]
    violations: list[Violation]
    """By seq; within one, in the order of the rules."""

    def peaks(self) -> list[Peak]:
        """The peak of every limit: the run gate and tags, pools, parallelism, windows."""
        return [
            peak for rule in self.rules if isinstance(rule, CeilingRule) for peak in rule.peaks()
        ]


class Recall:
    """One forgotten run on its way back: its own events, and the changes of the clock, in a state apart.

    Rules that note something on the run itself see the events too; what they report was reported before.
    """

    def __init__(self, world: HistoryState, number: int) -> None:
        self._world = world
        self._number = number
        self._alone = HistoryState(world.history)
        self._alone.commit = HistoryCommit(actor="leader:")
        self._moves: deque[Event] = deque(world.clock_events)
        self._watch = Watch()
        for rule in NOTING:
            rule(self._alone, []).watch(self._watch)

    def feed(self, events: Iterable[Event]) -> None:
        alone, moves = self._alone, self._moves
        for event in events:
            while moves and moves[0].seq <= event.seq:
                alone.apply_clock(moves.popleft())
            if event.subject in {"run", "trace", "place", "pause", "task", "mail"}:
                _feed(alone, self._watch, event)
            alone.close()

    def finish(self) -> None:
        for move in self._moves:
            self._alone.apply_clock(move)
        self._world.restore(self._alone.run(self._number))


class Replay:
    """A history on its way through the rules, page by page.

    Before a page is fed, each run of it that is `forgotten` is restored (`Recall`).
    """

    def __init__(self, history: History, rules: Sequence[type[Rule]]) -> None:
        self.world: HistoryState = HistoryState(history)
        self._found: list[Violation] = []
        self._rules = [rule(self.world, self._found) for rule in rules]
        self._watch = Watch()
        for rule in self._rules:
            rule.watch(self._watch)
        self._commit: HistoryCommit | None = None

    def forgotten(self, runs: Iterable[int]) -> list[int]:
        """Those that must be restored before an event of them is fed."""
        return [run for run in dict.fromkeys(runs) if self.world.forgotten(run)]

    def feed(self, events: Iterable[Event]) -> None:
        world, watch = self.world, self._watch
        for event in events:
            commit = self._commit
            if commit is None or not commit.has(event):
                if commit is not None and commit.leader:
                    _close(world, watch)
                self._commit = world.commit = commit_of(event)
                for opened in watch.open_handlers:
                    opened()
            world.events += 1
            world.last_seq = event.seq
            _feed(world, watch, event)

    def close_commit(self) -> None:
        """All of the last commit was fed: it is judged now, not with the first event of the next."""
        if self._commit is not None and self._commit.leader:
            _close(self.world, self._watch)
        self._commit = None

    @property
    def rules(self) -> Sequence[Rule]:
        return self._rules

    @property
    def violations(self) -> Sequence[Violation]:
        """Found so far."""
        return self._found

    def save(self) -> bytes:
        """The state between two rows of events, for `resume`."""
        return encode(
            {
                "world": self.world.kept(),
                "rules": [(type(rule).__name__, rule.kept()) for rule in self._rules],
                "found": self._found,
                "commit": self._commit,
            }
        )

    def resume(self, saved: SavedState) -> None:
        """Goes on where another one was saved. `StateUnreadable`: it is of no use any more."""
        parts = decode(saved, self.world.plan)
        if [name for name, _ in parts["rules"]] != [type(rule).__name__ for rule in self._rules]:
            raise StateUnreadable("the rules of the audit have changed")
        self.world.keep(parts["world"])
        for rule, (_, kept) in zip(self._rules, parts["rules"], strict=True):
            rule.keep(kept)
        self._found.extend(parts["found"])
        self._commit = parts["commit"]

    def finish(self, *, complete: bool) -> Replayed:
        self.world.complete = complete
        if self._commit is not None:
            _close(self.world, self._watch)
        for ended in self._watch.end_handlers:
            ended()
        self._found.sort(key=lambda violation: violation.seq)
        return Replayed(self.world, self._rules, self._found)


def replay(history: History, rules: Sequence[type[Rule]], page: int = EVENTS_PER_PAGE) -> Replayed:
    """All of a history that is in memory."""
    events, replaying = history.events, Replay(history, rules)
    for start in range(0, len(events), page):
        several = events[start : start + page]
        if forgotten := replaying.forgotten(event.run for event in several):
            again = {run: Recall(replaying.world, run) for run in forgotten}
            for event in islice(events, start):
                if event.run in again:
                    again[event.run].feed([event])
            for recalled in again.values():
                recalled.finish()
        replaying.feed(several)
        replaying.world.forget()
    return replaying.finish(complete=history.complete)


def _feed(world: HistoryState, watch: Watch, event: Event) -> None:
    match event.subject:
        case "task":
            task = world.task(event)
            for see_task in watch.task_topic.of(event.after):
                see_task(event, task)
            world.apply_task(event, task)
        case "run":
            run = world.run(event.run)
            for see_run in watch.run_topic.of(event.after):
                see_run(event, run)
            world.apply_run(event, run)
        case "trace":
            run = world.run(event.run)
            for see_trace in watch.trace_handlers:
                see_trace(event, run)
            world.apply_trace(event, run)
        case "place":
            run = world.run(event.run)
            for see_place in watch.place_handlers:
                see_place(event, run)
            world.apply_place(event, run)
        case "pause":
            run = world.run(event.run)
            for see_pause in watch.pause_handlers:
                see_pause(event, run)
            run.lifted = event.after == "lifted"
        case "wait":
            if (found := _waiter(world, event)) is not None:
                for see_wait in watch.wait_handlers:
                    see_wait(*found)
                world.waits.append(found)
        case "mail":
            for see_mail in watch.mail_handlers:
                see_mail(event)
        case "cache":
            for see_cache in watch.cache_handlers:
                see_cache(event)
        case "limit" if event.after == "asked":
            # A client set it. For submitters it counts from here, for all else from the leader's commit.
            for see_asked in watch.asked_handlers:
                see_asked(event)
        case "limit":
            world.apply_limit(event)
            for see_limit in watch.limit_handlers:
                see_limit(event)
        case "worker":
            world.apply_worker(event)
        case "clock":
            world.apply_clock(event)
        case "audit" | "request" | "term" | "cost":
            # About the history, not a part of what happened: `History.checked` says what follows from it.
            # A refused request changed nothing, and so did a term that failed.
            return
        case "leader":
            for see_leader in watch.leader_handlers:
                see_leader(event)
            world.start_term()
        case _:
            assert_never(event.subject)


def _waiter(world: HistoryState, event: Event) -> tuple[Event, CheckedTask] | None:
    """The first task of the lane that waits, and the event as one of its own.

    Lanes of several runs say it under no run. None: it is about queued runs, or its run was pruned.
    """
    if not event.run:
        number = event.data.get("task", 0)
        run = world.runs.get(run_of(number))
        if run is None or number not in run.tasks:
            return None
        event = msgspec.structs.replace(event, run=run.id, task=number)
    return event, world.task(event)


def _close(world: HistoryState, watch: Watch) -> None:
    for closed in watch.close_handlers:
        closed()
    world.close()


_CEILINGS: Final[tuple[type[CeilingRule], ...]] = (
    RunCeiling,
    PoolCeiling,
    RunParallelism,
    Window,
)

GATE_RULES: Final[dict[str, type[Rule]]] = {
    "runs": RunCeiling,
    "tag": RunCeiling,
    "run": RunParallelism,
    "window": Window,
    "pool": PoolCeiling,
    "rate": Rates,
    "worker": Permits,
    "pause": PausedStarts,
}
"""The rule that checks a gate's bound, by the gate's kind."""

NOTING: Final[tuple[type[Rule], ...]] = (Dependencies, Sequential, MailRule)
"""Rules that note on runs and tasks what follows from an event: which failures were taken for final."""

RULES: Final[tuple[type[Rule], ...]] = (
    LegalEdge,
    *_CEILINGS,
    Permits,
    PlaceRule,
    PausedStarts,
    Waits,
    MailRule,
    CacheHits,
    ActiveCeiling,
    ThrottledStarts,
    Rates,
    AllOrNone,
    Conservation,
    Fencing,
    SingleLeader,
    Terminal,
    TraceRule,
    TickRule,
    Dependencies,
    Sequential,
    Keys,
    Attempts,
    DeadlineRule,
    HonestRejections,
    NoLoss,
    Bypass,
    TrueReason,
    MaxStarts,
)
"""Every promise. Several classes may serve one id."""


def check(history: History) -> list[Violation]:
    """What of the engine's promises this history breaks, by seq. Empty: all of them held."""
    return replay(history, RULES).violations


def peaks(history: History) -> list[Peak]:
    """The peak of every limit: the run gate and tags, pools, parallelism, windows."""
    return replay(history, _CEILINGS).peaks()


def promises() -> dict[str, list[str]]:
    """What each rule's id stands for, in words."""
    found: dict[str, list[str]] = {}
    for rule in RULES:
        found.setdefault(rule.id, []).append(inspect.cleandoc(rule.__doc__ or ""))
    return found
