"""Schedules in both stores: what a change makes of a row, and what became of the ticks of a move."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from locktender.base.errors import InvalidInput, NotFound
from locktender.base.schedules import (
    ScheduledRun,
    ScheduleRow,
    ScheduleSpec,
    ScheduleState,
    TickRow,
    read_spec,
    read_state,
)
from locktender.base.ticks import jitter_of
from locktender.store.protocol.naming import SetSchedule, TickMove
from locktender.store.protocol.submitting import Submitted

KEPT_TICKS = 100
"""Of each schedule: the last so many are remembered."""
KEPT_CHANGES = 100
"""Of each schedule: the last so many entries of who changed it."""
ALL_KEPT_CHANGES = 100_000
"""Of all schedules, also those that were deleted."""


def schedule_row(row: Sequence[Any]) -> ScheduleRow:
    """From (name, version, next_at, declared, live, state). What cannot be read is said, and it is not due."""
    name, version, next_at, declared, live, state = row
    try:
        return ScheduleRow(
            name,
            None if declared is None else read_spec(declared),
            None if live is None else read_spec(live),
            read_state(state),
            next_at,
            version,
        )
    except (msgspec.MsgspecError, UnicodeError, TypeError) as error:
        return ScheduleRow(
            name, None, None, ScheduleState(), None, version, f"it cannot be read: {error}"
        )


def ticks_by_schedule(rows: Iterable[Sequence[Any]]) -> dict[str, list[TickRow]]:
    found: dict[str, list[TickRow]] = {}
    for name, *tick in rows:
        found.setdefault(name, []).append(TickRow(*tick))
    return found


def changed(row: ScheduleRow | None, change: SetSchedule, now: int) -> ScheduleRow | None:
    """The row behind a change; None if it was deleted."""
    declared = None if row is None else row.declared
    live = None if row is None else row.live
    before = None if row is None else row.spec
    tags: dict[str, str] = {} if before is None else before.tags
    if row is not None and not change.only.items() <= tags.items():
        raise NotFound(f"there is no schedule {change.name!r}.", field="schedule", got=change.name)
    state = ScheduleState(anchor=now, last=now) if row is None else row.state
    match change.what:
        case "set":
            live = change.spec
        case "declared":
            declared = change.spec
        case "paused" | "resumed" if before is not None:
            live = msgspec.structs.replace(before, paused=change.what == "paused")
        case "reset":
            live = None
        case _:
            return None
    spec = declared if live is None else live
    if spec is None:
        return None
    if before is None or before.when != spec.when:
        # A tick that was decided on stays so, also where the clock was set back since.
        state = ScheduleState(anchor=now, last=max(now, state.last), runs=state.runs)
    elif before.paused or state.stopped:
        # What passed while it was paused is not caught up with.
        state = msgspec.structs.replace(state, last=max(now, state.last))
    if change.what != "declared":
        state = msgspec.structs.replace(state, gone=0, stopped="")
    made = ScheduleRow(
        change.name, declared, live, state, None, 1 if row is None else row.version + 1
    )
    return msgspec.structs.replace(made, next_at=_next_at(made, spec, now))


def _next_at(row: ScheduleRow, spec: ScheduleSpec, now: int) -> int | None:
    if row.paused:
        return None
    if row.state.queued is not None:
        return now
    try:
        tick = spec.timing(row.state.anchor).next_after(row.state.last)
    except InvalidInput:  # declared by code with another database of time zones
        return None
    return None if tick is None else tick + jitter_of(row.name, tick, spec.jitter_us)


def settled(
    move: TickMove, answers: Sequence[Submitted], now: int
) -> tuple[ScheduleState, list[TickRow]]:
    """The schedule's state and ticks, by how its runs were answered."""
    rows = [TickRow(tick, "missed", None, reason, now) for tick, reason in move.missed]
    active = list(move.state.runs)
    for (tick, _), answer in zip(move.runs, answers, strict=True):
        if answer.outcome == "created":
            rows.append(TickRow(tick, "ran", answer.id, "", now))
            active.append(ScheduledRun(answer.seq, answer.id, tick))
        else:
            rows.append(TickRow(tick, "missed", None, _refused(answer), now))
    return msgspec.structs.replace(move.state, runs=tuple(active)), sorted(rows)


def _refused(answer: Submitted) -> str:
    if answer.outcome == "rejected":
        return (
            f"refused at the ceiling {answer.ceiling}: {answer.active:,} of {answer.limit:,} runs"
            " were active"
        )
    return f"its key belongs to run {answer.id}"
