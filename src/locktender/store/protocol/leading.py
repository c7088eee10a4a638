"""What a leader does: election, reading what changed, committing decisions, asking for workers.

Every write carries the leader's term: a leader whose term is over changes nothing.

Workers that a provisioner is asked for are stored before it is asked, so that the
next leader counts them too. A worker marks its own name as joined with its first
beat. A name is never used twice, so removing the name of a worker that has ended
is right for any process: `forget_asked` needs no fence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from locktender.base.changes import (
    Bucket,
    CachedResult,
    KeptPlace,
    Linger,
    Order,
    Reservation,
    TaskRow,
)
from locktender.base.events import EventRow
from locktender.base.limits import Limits
from locktender.base.model import (
    AskedWorker,
    DeadWorker,
    LimitRow,
    ProvisionStatus,
    RunRow,
    StoredRequest,
    WorkerLife,
    WorkerRow,
)
from locktender.store.protocol.base import StoreBase
from locktender.store.protocol.reading import Cursor

if TYPE_CHECKING:
    from locktender.base.commits import Commit


class Elect(msgspec.Struct, frozen=True):
    """Acquire or renew the leader's lease."""

    owner: str
    lease_us: int
    term: int = 0
    """The term to renew; 0 to stand for election."""
    passed: int = 0
    """The end of the leader's lease that this candidate has seen unchanged for a whole lease, by its own clock.
    It has passed, whatever the store's clock says: that may have been set back."""


class Leadership(msgspec.Struct, frozen=True):
    term: int
    """0: another process leads."""
    owner: str
    expires_at: int
    now: int
    cycle: int = -1
    """The last cycle written in this term, as a renewal finds it."""


class Snapshot(msgspec.Struct, frozen=True):
    """What a new leader, or `why`, needs to rebuild the ledger: active work, never the backlog."""

    now: int
    cursor: Cursor
    """The events that this snapshot shows: `gather` continues from here."""
    limits: Limits
    limit_rows: list[LimitRow]
    runs: list[RunRow]
    """Executing runs (running, cancelling), by seq."""
    graphs: dict[str, bytes]
    tasks: list[TaskRow]
    """All tasks of those runs, by id."""
    workers: list[WorkerRow]
    buckets: list[Bucket]
    reservations: list[Reservation]
    lingers: list[Linger]
    unplaced: list[int]
    """Those of `runs` that gave their place back."""
    lanes: list[int]
    """Lanes that have queued runs."""
    requests: list[StoredRequest]
    stops: list[Order]
    """Stop orders not yet obeyed."""
    kept: list[KeptPlace] = msgspec.field(default_factory=list[KeptPlace])
    """Runs that have begun, have no place, and keep it at some limits."""
    held: list[RunRow] = msgspec.field(default_factory=list[RunRow])
    """Runs that are held, by seq; and runs in a state that there is not, which must become so."""
    held_tasks: list[TaskRow] = msgspec.field(default_factory=list[TaskRow])
    """Tasks of held runs that are in flight, by id."""
    last_run: int = 0
    """The highest number of a run."""


ANSWER_KEPT_US = 60 * 1_000_000


class Answer(msgspec.Struct, frozen=True):
    """To a question that a client stored as a request."""

    term: int
    request: int
    question: str
    """The name that the client gave it."""
    body: bytes
    """Empty: the leader does not know."""


class Gather(msgspec.Struct, frozen=True):
    """Read what others committed since `after`."""

    after: Cursor
    actor: str
    """Rows written by this actor are left out."""
    limit: int = 5_000


class EndedTask(NamedTuple):
    """Of a task's row, what the leader does not know of its end."""

    id: int
    token: int
    state: str
    output: bytes | None
    error: bytes | None


class Gathered(msgspec.Struct, frozen=True):
    now: int
    cursor: Cursor
    events: list[EventRow]
    tasks: list[EndedTask]
    """Rows, as they are now, of every task those events end (completed, failed, handed back …)."""
    requests: list[StoredRequest]
    workers: list[WorkerRow] | None
    """All workers, where any joined, left or changed since the last call; else None."""
    limits_changed: bool
    queued: list[RunRow] = msgspec.field(default_factory=list[RunRow])
    """Rows of the first few runs those events queue, where reading them costs no extra query."""


class ChangeNotice(msgspec.Struct, frozen=True):
    """What a leader is told of other processes' commits."""

    look: bool
    """Something was committed that `gather` must read."""
    accepted_by: frozenset[str] = frozenset()
    """Workers that accepted offers. It can be read later, unless a caller waits for their answer."""
    queued: tuple[int, ...] = ()
    """Runs that were submitted: their rows can be read without the history."""
    mailed: tuple[tuple[int, int], ...] = ()
    """(run, number) of events that were sent to runs: the history need not be read for them."""
    outbox: bool = False
    """An application committed a submission: see `Outbox`."""
    carried: tuple[RunRow, ...] = ()
    """Rows of runs in `queued` as the notification has them: true only where a commit with them is written."""


class Heads(msgspec.Struct, frozen=True):
    """The first `each` queued runs of every lane named, in order; at most `most` in all."""

    lanes: list[int]
    each: int
    most: int = 4_096


class Committed(msgspec.Struct, frozen=True):
    seq: int
    """Of its last event; 0: it wrote none."""
    now: int


class Withdraw(msgspec.Struct, frozen=True):
    """Withdraw offers (`to` requested) or cancel before acceptance (`to` cancelled)."""

    term: int
    cycle: int
    actor: str
    tasks: list[tuple[int, int]]
    """(task, token)"""
    to: str
    reason: str


class Expire(msgspec.Struct, frozen=True):
    """Declare workers lost: their running tasks are abandoned, their offers withdrawn.

    Tasks in a worker's drain list (`WorkerRow.leaves`) are handed back instead of abandoned.
    """

    term: int
    cycle: int
    actor: str
    dead: list[DeadWorker]
    """One that has renewed its lease since it was read is left alone."""


class Lost(msgspec.Struct, frozen=True):
    worker: str
    reason: str
    abandoned: list[tuple[int, int]]
    withdrawn: list[tuple[int, int]]
    lease_until: int | None = None
    """When its lease ends; after a crash seen at once, this may be later than now."""
    handed_back: list[tuple[int, int]] = msgspec.field(default_factory=list[tuple[int, int]])
    """Running attempts in its drain list."""


class HoldRuns(msgspec.Struct, frozen=True):
    """Take runs out of everything that a leader decides. Attempts in flight go on and keep their slots."""

    term: int
    cycle: int
    actor: str
    runs: dict[int, str]
    """Run → why."""


class ReassignLanes(msgspec.Struct, frozen=True):
    """Move queued runs to the lane that the limits now in force ask for."""

    term: int
    after: int = 0
    """The run to continue after."""
    batch: int = 2_000


class Provision(msgspec.Struct, frozen=True):
    """Store which workers the provisioner is asked for, before it is asked."""

    term: int
    asked: dict[str, bytes] = msgspec.field(default_factory=dict[str, bytes])
    """Name → the request. A name that is stored already stays as it is."""
    start_timeout_us: int = 0
    """How long those workers may take to join."""
    gone: list[str] = msgspec.field(default_factory=list[str])
    """Names of workers that ended, or that are no longer waited for."""
    status: ProvisionStatus | None = None
    """The provisioner's new state; None: unchanged."""


class ProvisionState(msgspec.Struct, frozen=True):
    now: int
    asked: list[AskedWorker]
    """By name."""
    status: ProvisionStatus | None
    """The provisioner's last state in this term; None: there is no provisioner, or no state yet."""


class Leading(StoreBase, Protocol):
    async def elect(self, elect: Elect) -> Leadership: ...
    async def resign(self, owner: str, term: int) -> None: ...
    async def load(self, *, lost: bool = True) -> Snapshot:
        """All active work. `lost`: among what is held are queued runs that the queue does not have; to find them
        takes longer than all the rest, and only a new leader does something about them."""
        ...

    async def wait_for_changes(self, timeout_us: int) -> ChangeNotice:
        """Waits for commits of other processes; after the timeout the leader looks anyway.

        One waiter per store. The first time it looks at once.
        """
        ...

    async def offer_again(self, offers: list[Order]) -> None:
        """Notifies workers that listen of offers again: the first notification may be lost."""
        ...

    async def gather(self, gather: Gather) -> Gathered:
        """As `follow`, with what a leader needs beside the events. Raises `HistoryReplaced`."""
        ...

    async def heads(self, heads: Heads) -> list[RunRow]: ...
    async def arrivals(self, runs: list[int]) -> list[RunRow]:
        """Of these runs (by seq), those that are queued."""
        ...

    async def overdue(self, limit: int) -> list[RunRow]:
        """Queued runs whose deadline has passed, the longest overdue first."""
        ...

    async def find_cached(self, keys: Sequence[str]) -> list[CachedResult]:
        """Results that are kept under these keys, also those whose time has passed."""
        ...

    async def commit(self, commit: Commit, *, dry_run: bool = False) -> Committed:
        """`dry_run`: everything is rolled back, and only what the store refuses is known."""
        ...

    async def hold_runs(self, hold: HoldRuns) -> None:
        """Those of them that have not ended are held from now on."""
        ...

    async def claim_requests(self, term: int, requests: list[int]) -> None:
        """Counts that a leader begins to carry them out, before it does."""
        ...

    async def answer(self, answer: Answer) -> None:
        """Ends the request and keeps the answer for a minute."""
        ...

    async def withdraw(self, withdraw: Withdraw) -> list[tuple[int, int]]:
        """The (task, token) pairs that were still only offered."""
        ...

    async def lives(self) -> list[WorkerLife]:
        """What is known of each worker's life. Which of them are dead is not the store's decision."""
        ...

    async def expire(self, expire: Expire) -> list[Lost]: ...
    async def reassign_lanes(self, reassign: ReassignLanes) -> int:
        """The run to continue after; 0 when all are done."""
        ...

    async def provision(self, provision: Provision) -> None: ...
    async def forget_asked(self, names: list[str]) -> None:
        """Removes the names of workers that have ended."""
        ...

    async def provisioned(self) -> ProvisionState: ...
