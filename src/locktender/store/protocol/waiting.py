"""What is done with runs that wait for their time.

A waiting run is rows: its own, and one in the table `waiting` with the instant at which it is to be woken. It
stands in no lane of the queue, counts under `max_waiting` and not under `max_active`, and no leader reads it when
it takes over. The store finds the runs whose time has come by the index of those instants.

A submitter writes these rows with the run. From then on only the leader changes them: `wake` queues a run, and a
commit that ends a waiting run (cancel) removes its row. The leader does both one after another, never at once, so
that a run is woken or ended as waiting, and not both.

Instants are of the store's clock, and are kept as they are when that clock is set: a run that sleeps until nine
o'clock is woken when the clock says nine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from locktender.base.changes import TaskRow
from locktender.base.model import Mail, RunRow
from locktender.store.protocol.base import StoreBase


class Wake(msgspec.Struct, frozen=True):
    """Queue waiting runs whose time has come."""

    term: int
    cycle: int
    actor: str
    limit: int = 1_000
    """At most so many, the earliest first."""
    mailed: Sequence[int] | None = ()
    """Runs that an event was sent to: those that can take it are woken before their time. None: all runs."""
    patient: bool = False
    """The leader was turned away several times: it waits a little for submitters."""


class WokenRun(NamedTuple):
    """Where it stands in the queue."""

    run: int
    lane: int
    rank: tuple[int, int]


class WokenRows(NamedTuple):
    """Woken runs as they are now, what was sent to them, and their tasks, by id."""

    runs: list[RunRow]
    tasks: list[TaskRow]
    mails: list[Mail]


class Woken(msgspec.Struct, frozen=True):
    runs: list[WokenRun]
    next_at: int | None
    """When the next waiting run is to be woken; None: there is none."""
    now: int = 0
    """The store's time at which they were due."""
    held: list[str] = msgspec.field(default_factory=list[str])
    """Ids of runs whose time cannot be read."""
    busy: bool = False
    """Submitters were in the way and nothing was done: the leader goes on, and comes back."""
    read: WokenRows | None = None
    """All of them, where the store has read them anyway."""


class Waiting(StoreBase, Protocol):
    async def wake(self, wake: Wake) -> Woken:
        """By the leader: runs whose time has come are queued. One whose time cannot be read is held."""
        ...

    async def next_wake(self) -> int | None:
        """When the next waiting run is to be woken; None: there is none."""
        ...

    async def wake_times(self, runs: Sequence[int]) -> dict[int, int]:
        """When those of these runs (their `seq`) that wait are to be woken."""
        ...

    async def tasks_of(self, runs: Sequence[int]) -> list[TaskRow]:
        """All tasks of these runs (their `seq`), by id: they were woken, or are tried again."""
        ...
