"""Looking after a store without opening it: what it is, what it holds, bringing its schema up to date.

Whoever opens a store migrates it, and may be refused. What is here does
neither: it looks at whatever is there, also at a store of a newer locktender and
at a copy that is not finished, beside engines that work on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from locktender.base.events import EventRow
from locktender.base.model import WorkerRow
from locktender.store.migrate import COPYING
from locktender.store.protocol import Counts


@dataclass(frozen=True, slots=True)
class Led:
    """Who leads, and until when it is presumed alive."""

    owner: str
    term: int
    expires_at: int


@dataclass(frozen=True, slots=True)
class Server:
    """What a database server has to say about itself."""

    version: int
    most_connections: int
    connections: int
    """In use, by anybody."""
    ours: int
    """In use by locktender, in this database."""
    held_back_us: int | None = None
    """For how long a transaction in flight has held the history back; None: none does."""


@dataclass(frozen=True, slots=True)
class Status:
    kind: str
    """`sqlite` or `postgresql`."""
    where: str
    applied: dict[int, str]
    """Migration → checksum. Empty: there is no schema yet."""
    known: int
    """The newest migration this code knows."""
    now: int = 0
    runs: dict[str, int] = field(default_factory=dict[str, int])
    """By state."""
    rows: dict[str, int] = field(default_factory=dict[str, int])
    """By table: tasks, events, graphs, blobs, queued, requests."""
    estimated: bool = False
    """Tasks and events are the server's estimate: counting them would take long."""
    oldest: int | None = None
    """When the oldest run was queued."""
    newest: int | None = None
    bytes: int = 0
    """On disk, with indexes, log and blobs."""
    led: Led | None = None
    workers: list[WorkerRow] = field(default_factory=list[WorkerRow])
    """Those presumed alive."""
    remarks: list[EventRow] = field(default_factory=list[EventRow])
    """What the history says of itself: checkpoints and prunings."""
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
        """Who works on it now; None: nobody."""
        if self.led is not None:
            return f"{self.led.owner} leads"
        return f"worker {self.workers[0].id} is alive" if self.workers else None


def agree(counts: Counts) -> bool:
    """Whether counters say what the rows say."""
    names = counts.admitted.keys() | counts.closed.keys() | counts.active.keys()
    return all(
        counts.admitted.get(name, 0) - counts.closed.get(name, 0) == counts.active.get(name, 0)
        for name in names
    )
