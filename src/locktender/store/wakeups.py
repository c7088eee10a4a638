"""Wakes waiting runs: what both stores decide about the runs whose time has come.

A waiting run is rows only. When its time has come the leader queues it, in the lane that the limits in force then
ask for, with its first age and priority: from there on it is like any queued run, and passes the same gates. It
counts as active again, and no ceiling refuses it. A run whose time cannot be read is held.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from locktender.base.events import Change
from locktender.base.limits import Limits
from locktender.base.model import Failure
from locktender.base.states import RunState
from locktender.kernel.lanes import rank
from locktender.store.decode import Row, decode_tags, encode, read_keeps, wrong
from locktender.store.lanes import lane_name
from locktender.store.worker_changes import held

UNREADABLE = "the time it waits for cannot be read: {!r:.80}"


class DueRun(NamedTuple):
    """A row of `waiting`, with what is needed of its run; `state` is None where there is no such run."""

    run: int
    wake_at: Any
    state: str | None
    kind: str
    tags: str
    priority: int
    key: str | None
    waits_for: int | None
    queued_at: int
    started_at: int
    generation: int
    verdict: str | None
    id: str
    flow: str
    keeps: str | None


class WakePlan(msgspec.Struct):
    rows: list[int] = msgspec.field(default_factory=list[int])
    """Of the table `waiting`: they go."""
    due: list[DueRun] = msgspec.field(default_factory=list[DueRun])
    """Waiting runs that are queued."""
    signatures: list[str] = msgspec.field(default_factory=list[str])
    """The lane of each of those, by name."""
    tags: list[dict[str, str]] = msgspec.field(default_factory=list[dict[str, str]])
    """Of all runs that wait no more: they count as active again."""
    held: list[tuple[bytes, int]] = msgspec.field(default_factory=list[tuple[bytes, int]])
    """(error, run)"""
    held_ids: list[str] = msgspec.field(default_factory=list[str])
    events: list[tuple[int, list[Change]]] = msgspec.field(
        default_factory=list[tuple[int, list[Change]]]
    )


def judge_due(limits: Limits, rows: Iterable[Row]) -> WakePlan:
    """Rows of `waiting_due`."""
    plan = WakePlan()
    for row in rows:
        due = DueRun(*row)
        plan.rows.append(due.run)
        if due.state != RunState.WAITING:
            continue
        tags = decode_tags(due.tags)
        if due.kind != "hold":
            plan.tags.append(tags)
        if wrong(due.wake_at):
            failure = Failure("held", UNREADABLE.format(due.wake_at), retryable=False)
            plan.held.append((encode(failure), due.run))
            plan.held_ids.append(due.id)
            change = held((due.state, due.started_at, due.verdict), failure)
            plan.events.append((due.run, [change]))
            continue
        plan.due.append(due)
        plan.signatures.append(
            lane_name(
                limits,
                kind=due.kind,
                tags=tags,
                key=due.key,
                waits_for=due.waits_for,
                flow=due.flow,
                run=due.run,
                keeps=read_keeps(due.keeps, limits),
            )
        )
    return plan


def woken_event(due: DueRun, lane: int, place: tuple[int, int]) -> Change:
    data: dict[str, Any] = {
        "priority": due.priority,
        "generation": due.generation,
        "lane": lane,
        "rank": place,
    }
    if due.waits_for is not None:
        data["waits_for"] = due.waits_for
    return Change("run", 0, RunState.WAITING, RunState.QUEUED, 0, data)


def place_of(limits: Limits, due: DueRun) -> tuple[int, int]:
    """Its first age and priority."""
    return rank(limits, due.priority, due.queued_at)
