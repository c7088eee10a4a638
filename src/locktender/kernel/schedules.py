"""Which ticks of a schedule become runs now, which are missed and why: a pure rule that any leader repeats.

A tick is decided on once: `ScheduleState.last` passes over it in the commit that makes its run. So there is at
most one run per tick, under every leader. `last` never goes back: a clock that is set back repeats nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from locktender.base.clock import SECOND
from locktender.base.durations import spoken
from locktender.base.schedules import ScheduledRun, ScheduleSpec, ScheduleState
from locktender.base.ticks import jitter_of

LATE_US: Final = 60 * SECOND
"""A tick that is decided on later than this was missed: `catch_up` says what becomes of it."""
MAX_TICKS: Final = 1_000
"""Decided on at a time; the rest follows with the next look."""
MAX_GONE: Final = 5
"""Ticks in a row at which no worker knows the flow; then the schedule is paused."""


@dataclass(slots=True)
class TickDecision:
    fires: list[int] = field(default_factory=list[int])
    """Ticks that become runs, in order."""
    missed: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """Ticks that do not, and why."""
    state: ScheduleState = field(default_factory=ScheduleState)
    next_at: int | None = None


def decide(
    name: str,
    spec: ScheduleSpec,
    state: ScheduleState,
    active: Sequence[ScheduledRun],
    now: int,
) -> TickDecision:
    """What is due of a schedule that is not paused. `active`: its runs that have not ended."""
    timing = spec.timing(state.anchor)
    made = TickDecision()
    due, last, following = _due(name, spec, timing.ticks(state.last), state.last, now)
    whole = following is None or following > now
    _Overlaps(spec, state.queued, active, made).decide_ticks(
        _caught_up(name, spec, due, now, made, whole=whole)
    )
    made.missed.sort()
    queued = made.state.queued
    made.state = msgspec.structs.replace(state, last=last, queued=queued, runs=tuple(active))
    made.next_at = now if queued is not None or not whole else following
    return made


def _due(
    name: str,
    spec: ScheduleSpec,
    ticks: Iterator[int],
    last: int,
    now: int,
) -> tuple[list[int], int, int | None]:
    """The ticks behind `last` that are due, the last of them, and the instant at which the next is due."""
    due: list[int] = []
    for tick in ticks:
        at = tick + jitter_of(name, tick, spec.jitter_us)
        if at > now or len(due) >= MAX_TICKS:
            return due, last, at
        due.append(tick)
        last = tick
    return due, last, None


def _caught_up(
    name: str, spec: ScheduleSpec, due: list[int], now: int, made: TickDecision, *, whole: bool
) -> list[int]:
    """The ticks that may become runs; those that came too late are missed as `catch_up` says."""
    late = [tick for tick in due if tick + jitter_of(name, tick, spec.jitter_us) < now - LATE_US]
    if not late or spec.catch_up == "all":
        return due
    # Of several late ones the last; none where one follows that is not late, or is still to be read.
    keeps = spec.catch_up == "last" and len(late) == len(due) and whole
    kept = late[-1:] if keeps else []
    for tick in late[: len(late) - len(kept)]:
        text = f"it was decided on {spoken(now - tick)} late, and catch_up is {spec.catch_up}"
        made.missed.append((tick, text))
    return [*kept, *due[len(late) :]]


class _Overlaps:
    """Ticks one by one, against the runs that are active."""

    def __init__(
        self,
        spec: ScheduleSpec,
        queued: int | None,
        active: Sequence[ScheduledRun],
        made: TickDecision,
    ) -> None:
        self._spec = spec
        self._queued = queued
        self._made = made
        self._active = [run.id for run in active]
        most = spec.max_active
        self._most = most if most is not None or spec.overlap == "allow" else 1

    def decide_ticks(self, ticks: Sequence[int]) -> None:
        if self._queued is not None and not self._full:
            queued, self._queued = self._queued, None
            self._fire(queued)
        for tick in ticks:
            self._one(tick)
        self._made.state = ScheduleState(queued=self._queued)

    @property
    def _full(self) -> bool:
        return self._most is not None and len(self._active) >= self._most

    def _fire(self, tick: int) -> None:
        self._made.fires.append(tick)
        self._active.append("")

    def _one(self, tick: int) -> None:
        if not self._full or self._spec.overlap == "replace":
            if self._full:
                self._active.pop(0)
            self._fire(tick)
        elif self._spec.overlap == "queue" and self._queued is None:
            self._queued = tick
        else:
            self._made.missed.append((tick, self._why()))

    def _why(self) -> str:
        if self._spec.overlap == "queue":
            return "another tick waits already for the run before it"
        if len(self._active) == 1:
            run = f"run {self._active[0]}" if self._active[0] else "the run of the tick before it"
            return f"{run} still ran"
        return f"{len(self._active)} runs of it were active (max_active {self._most})"


def stopped_when_gone(state: ScheduleState, flow: str, ticks: int) -> ScheduleState:
    """After ticks at which no worker knew the flow."""
    gone = state.gone + ticks
    text = f"{gone} ticks in a row were missed: no worker has announced flow {flow}"
    return msgspec.structs.replace(state, gone=gone, stopped=text if gone >= MAX_GONE else "")
