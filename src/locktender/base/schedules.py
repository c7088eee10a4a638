"""Schedules as they are stored: what was set, how far the leader has come, what became of each tick."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec

from locktender.base.ticks import AtInstant, CronExpression, EveryInterval, Timing

Overlap = Literal["skip", "queue", "replace", "allow"]
CatchUp = Literal["none", "last", "all"]
TickOutcome = Literal["ran", "missed"]


class ScheduleSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """When runs of a flow are made, and what happens while one is still active."""

    flow: str
    args: msgspec.Raw = msgspec.Raw(b"{}")
    """JSON object: the flow's parameters by name."""
    cron: str | None = None
    every_us: int | None = None
    at: int | None = None
    """One of these three."""
    tz: str = "UTC"
    jitter_us: int = 0
    overlap: Overlap = "skip"
    catch_up: CatchUp = "none"
    max_active: int | None = None
    """Active runs of it; beyond it `overlap` decides. None: 1, and no bound where `overlap` is allow."""
    paused: bool = False
    tags: dict[str, str] = {}
    """Of its runs, beside those of the flow. They also say whose it is."""

    def timing(self, anchor: int) -> Timing:
        """Its ticks. `anchor`: when it was set, for intervals."""
        if self.cron is not None:
            return CronExpression(self.cron, self.tz)
        if self.every_us is not None:
            return EveryInterval(self.every_us, anchor)
        return AtInstant(self.at or 0)

    @property
    def when(self) -> tuple[object, ...]:
        return self.cron, self.every_us, self.at, self.tz


class ScheduledRun(NamedTuple):
    """A run that a tick made, while it may be active."""

    seq: int
    id: str
    tick: int


class ScheduleState(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far the leader has come. Only its commits change it, and setting the schedule anew."""

    anchor: int = 0
    """When it was set."""
    last: int = 0
    """Every tick up to here has been decided on. It never goes back: a clock set back repeats nothing."""
    queued: int | None = None
    """A tick that waits for the run before it (`overlap="queue"`)."""
    runs: tuple[ScheduledRun, ...] = ()
    gone: int = 0
    """Ticks in a row that were missed because no worker knows the flow."""
    stopped: str = ""
    """Why the engine paused it."""


class ScheduleRow(msgspec.Struct, frozen=True):
    name: str
    declared: ScheduleSpec | None
    """By `@flow(schedule=…)`."""
    live: ScheduleSpec | None
    """By an operator: it wins."""
    state: ScheduleState
    next_at: int | None
    """When the leader looks at it next; None: never, as it is."""
    version: int
    unreadable: str = ""

    @property
    def spec(self) -> ScheduleSpec | None:
        return self.declared if self.live is None else self.live

    @property
    def paused(self) -> bool:
        return self.spec is None or self.spec.paused or bool(self.state.stopped)


class TickRow(NamedTuple):
    """What became of a tick."""

    tick: int
    outcome: TickOutcome
    run: str | None
    """The run's id."""
    reason: str
    at: int
    """When it was decided."""


class ScheduleChange(NamedTuple):
    """An entry of a schedule's history: who changed what, when."""

    at: int
    who: str
    what: str
    """`set`, `declared`, `paused`, `resumed`, `reset`, `deleted`, `stopped`."""
    before: bytes | None
    after: bytes | None
    reason: str = ""


read_spec: Callable[[bytes], ScheduleSpec] = msgspec.json.Decoder(ScheduleSpec).decode
read_state: Callable[[bytes], ScheduleState] = msgspec.json.Decoder(ScheduleState).decode
