"""The status of a store that is not opened.

Opening a store migrates it, or refuses it. Reading its status does neither: it
also works for a store of a newer locktender, for an unfinished copy, and beside
running engines.
"""

from __future__ import annotations

import msgspec

from locktender.base.events import EventRow
from locktender.base.model import WorkerRow
from locktender.store.migrate import COPYING
from locktender.store.protocol import Counts


class Led(msgspec.Struct, frozen=True):
    """The leader and the end of its lease."""

    owner: str
    term: int
    expires_at: int


class Server(msgspec.Struct, frozen=True):
    """Facts about the database server."""

    version: int
    most_connections: int
    connections: int
    """In use, by anybody."""
    ours: int
    """In use by locktender, in this database."""
    lag_us: int = 0
    """How far the settled history lags behind an open transaction: audit and pruning end there."""


class Status(msgspec.Struct, frozen=True):
    kind: str
    """`sqlite` or `postgresql`."""
    where: str
    applied: dict[int, str]
    """Migration → checksum. Empty: there is no schema yet."""
    known: int
    """The newest migration this code knows."""
    now: int = 0
    runs: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    """By state."""
    rows: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    """By table: tasks, history, graphs, blobs, queued, requests."""
    estimated: bool = False
    """Tasks and rows of history are the server's estimate: counting them would take long."""
    oldest: int | None = None
    """When the oldest run was queued."""
    newest: int | None = None
    bytes: int = 0
    """On disk, with indexes, log and blobs."""
    led: Led | None = None
    workers: list[WorkerRow] = msgspec.field(default_factory=list[WorkerRow])
    """Workers whose lease is alive."""
    remarks: list[EventRow] = msgspec.field(default_factory=list[EventRow])
    """Remarks in the history: checkpoints and prunings."""
    server: Server | None = None
    counters_agree: bool = True
    """With the rows they count."""

    @property
    def copying(self) -> bool:
        return COPYING in self.applied

    @property
    def schema(self) -> int:
        return max((number for number in self.applied if number != COPYING), default=0)

    @property
    def pending(self) -> int:
        return max(0, self.known - self.schema)

    @property
    def busy(self) -> str | None:
        """The leader or a worker that uses it now; None: it is not in use."""
        if self.led is not None:
            return f"{self.led.owner} leads"
        return f"worker {self.workers[0].id} is alive" if self.workers else None


def agree(counts: Counts) -> bool:
    """Whether counters equal the rows they count."""
    names = counts.admitted.keys() | counts.closed.keys() | counts.active.keys()
    return all(
        counts.admitted.get(name, 0) - counts.closed.get(name, 0) == counts.active.get(name, 0)
        for name in names
    )
