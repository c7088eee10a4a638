"""Feeds a history to the rules and returns the violations, and the peak of each limit."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from locktender.base.events import Event
from locktender.observe.checker.admission import ActiveCeiling, HonestRejections
from locktender.observe.checker.attempts import (
    Attempts,
    DeadlineRule,
    Fencing,
    MaxStarts,
    SingleLeader,
)
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
from locktender.observe.checker.places import PlaceRule
from locktender.observe.checker.rule import Rule, Watch
from locktender.observe.checker.state import HistoryCommit, commit_of
from locktender.observe.checker.state_changes import Keys, LegalEdge, NoLoss, Terminal
from locktender.observe.checker.waiting import Bypass, TrueReason
from locktender.observe.checker.world import HistoryState


@dataclass(frozen=True, slots=True)
class Replayed:
    world: HistoryState
    rules: list[Rule]
    violations: list[Violation]
    """By seq; within one, in the order of the rules."""


def replay(history: History, rules: Sequence[type[Rule]]) -> Replayed:
    world = HistoryState(history)
    found: list[Violation] = []
    made = [rule(world, found) for rule in rules]
    watch = Watch()
    for rule in made:
        rule.watch(watch)
    commit: HistoryCommit | None = None
    for event in history.events:
        if commit is None or not commit.has(event):
            if commit is not None and commit.leader:
                _close(world, watch)
            commit = world.commit = commit_of(event)
            for opened in watch.open_handlers:
                opened()
        _feed(world, watch, event)
    if commit is not None:
        _close(world, watch)
    for ended in watch.end_handlers:
        ended()
    found.sort(key=lambda violation: violation.seq)
    return Replayed(world, made, found)


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
        case "place":
            run = world.run(event.run)
            for see_place in watch.place_handlers:
                see_place(event, run)
            world.apply_place(event, run)
        case "wait":
            task = world.task(event)
            for see_wait in watch.wait_handlers:
                see_wait(event, task)
            world.waits.append((event, task))
        case "limit" if event.after == "asked":
            # Somebody set it. For submitters it counts from here, for all else from the leader's commit.
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
        case "audit" | "request" | "term":
            # About the history, not a part of what happened: `History.checked` says what follows from it.
            # A refused request changed nothing, and so did a term that failed.
            return
        case "leader":
            for see_leader in watch.leader_handlers:
                see_leader(event)
            world.start_term()
        case _:
            assert_never(event.subject)


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
}
"""The rule that checks a gate's bound, by the gate's kind."""

RULES: Final[tuple[type[Rule], ...]] = (
    LegalEdge,
    *_CEILINGS,
    Permits,
    PlaceRule,
    ActiveCeiling,
    Rates,
    AllOrNone,
    Conservation,
    Fencing,
    SingleLeader,
    Terminal,
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
    done = replay(history, _CEILINGS)
    return [peak for rule in done.rules if isinstance(rule, CeilingRule) for peak in rule.peaks()]


def promises() -> dict[str, list[str]]:
    """What each rule's id stands for, in words."""
    found: dict[str, list[str]] = {}
    for rule in RULES:
        found.setdefault(rule.id, []).append(inspect.cleandoc(rule.__doc__ or ""))
    return found
