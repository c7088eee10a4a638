"""What workers announce and clients without their code ask for: flows by name, and schedules of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from locktender.base.announced import AnnouncedFlow
from locktender.base.model import NewRun
from locktender.base.schedules import (
    ScheduleChange,
    ScheduleRow,
    ScheduleSpec,
    ScheduleState,
    TickRow,
)
from locktender.store.protocol.base import StoreBase


class SetSchedule(msgspec.Struct, frozen=True):
    """A change of a schedule by an operator or by code."""

    name: str
    what: Literal["set", "declared", "paused", "resumed", "reset", "deleted"]
    who: str
    spec: ScheduleSpec | None = None
    reason: str = ""
    only: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    """Raises `NotFound` where there is one without all of these tags: it is another tenant's."""


class TickMove(msgspec.Struct, frozen=True):
    """What the leader decided on one schedule."""

    name: str
    version: int
    """As it was read: nothing is written if it has changed since."""
    state: ScheduleState
    next_at: int | None
    runs: list[tuple[int, NewRun]] = msgspec.field(default_factory=list[tuple[int, NewRun]])
    """Tick and the run it becomes."""
    graphs: dict[str, bytes] = msgspec.field(default_factory=dict[str, bytes])
    missed: list[tuple[int, str]] = msgspec.field(default_factory=list[tuple[int, str]])


class Naming(StoreBase, Protocol):
    async def announce(self, flows: Sequence[AnnouncedFlow]) -> None:
        """Stores what workers say of their flows. It stays when they are gone; the last word counts."""
        ...

    async def flows(self, names: Sequence[str] | None = None) -> list[AnnouncedFlow]:
        """The announced flows of these names, or all of them, by name. What cannot be read is left out."""
        ...

    async def forget_flow(self, name: str) -> bool:
        """Removes what was announced of a flow; whether there was anything."""
        ...

    async def set_schedule(self, change: SetSchedule) -> ScheduleRow | None:
        """The schedule as it is now; None if it was deleted."""
        ...

    async def schedules(self, names: Sequence[str] | None = None) -> list[ScheduleRow]: ...
    async def schedules_due(self, limit: int) -> list[ScheduleRow]: ...
    async def tick(self, term: int, moves: Sequence[TickMove], *, patient: bool = False) -> bool:
        """One commit of the leader: runs of ticks are submitted, and their schedules move on.

        A schedule that has another version by now is left alone, so a repetition changes nothing. False:
        submitters were in the way and nothing was done. `patient`: wait for them a little.
        """
        ...

    async def put_off(self, term: int, schedules: Sequence[str], until: int) -> None:
        """The leader looks at these again then: they cannot be read or decided on, and must not be in the way."""
        ...

    async def ticks(self, schedules: Sequence[str], limit: int) -> dict[str, list[TickRow]]:
        """What became of the last `limit` ticks of each of these that has had any, the latest first."""
        ...

    async def schedule_history(self, schedule: str, limit: int) -> list[ScheduleChange]:
        """Who changed it, the latest first."""
        ...
