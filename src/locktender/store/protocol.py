"""The store: about 30 verbs, each one transaction with one parameter object and one result.

Who calls what, and what they race for:

    clients       submit, retry, ask, set_limit and the reads
    the leader    elect, load, gather, heads, commit, withdraw, expire, recut, provision
    workers       beat, orders, accept, finish, leave

Every verb of the leader carries its term and changes nothing if the term has
ended (`NotLeader`). Every verb of a worker names (task, token); one that is
stale changes nothing and is reported as such. A task has one owner at a time,
so only two pairs of verbs can meet on one row: `accept` against `withdraw`,
and `finish` against `expire`. Both are compare-and-set on (task, token, state)
inside one transaction; whoever commits second finds the row moved and does nothing.

Every verb may be repeated with the same ids after an answer was lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgspec

from locktender.base.changes import Bucket, Commit, End, Linger, Order, Reservation, TaskRow
from locktender.base.events import EventRow
from locktender.base.limits import Limits
from locktender.base.model import (
    LimitChange,
    LimitRow,
    LogFilter,
    LogRow,
    NewRun,
    Outcome,
    Request,
    RunRow,
    StoredRequest,
    WorkerRow,
)
from locktender.store.provisioning import Provisioning
from locktender.store.pruning import Forgetting


@dataclass(frozen=True, slots=True)
class Submit:
    runs: list[NewRun]
    graphs: dict[str, bytes]
    """Content hash → JSON, of every graph the runs name."""
    partial: bool = False
    """False: all or none. True: what fits is admitted, the rest is rejected."""


class Submitted(msgspec.Struct, frozen=True, gc=False):
    """The answer to one run of a submission."""

    id: str
    """The run the caller now has: its own, or the one it attached to."""
    seq: int
    outcome: Outcome
    ceiling: str = ""
    """On rejection: which ceiling (`max_active`, `tenant=acme` …)."""
    rule: str = ""
    """On rejection: what sets that ceiling (`max_active`, `tenant=*` …)."""
    active: int = 0
    limit: int = 0
    wanted: int = 1
    """On rejection: how many of the submission count under that ceiling, all or none.

    More than `limit` of them can never be taken together: `retry_after_us` is 0 then."""
    retry_after_us: int = 0
    as_of: int = 0
    """On rejection: the history's last seq when it was decided, so that the checker can verify it.

    0: a commit was on its way that may stand before that, and nobody is kept waiting to know."""
    difference: str = ""
    """On `duplicate`: what differs from the active run of the same key."""


@dataclass(frozen=True, slots=True)
class Elect:
    """Take or renew the leader's lease."""

    owner: str
    lease_us: int
    term: int = 0
    """The term to renew; 0 to stand for election."""


@dataclass(frozen=True, slots=True)
class Leadership:
    term: int
    """0: somebody else leads."""
    owner: str
    expires_at: int
    now: int
    cycle: int = -1
    """The last one written in this term, as a renewal finds it."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a new leader, or `why`, needs to rebuild the ledger: active work, never the backlog."""

    now: int
    seq: int
    """The history's last seq in this snapshot: `gather` goes on from here."""
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
    lanes: list[int]
    """Lanes that have queued runs."""
    requests: list[StoredRequest]
    stops: list[Order]
    """Stop orders not yet obeyed."""


@dataclass(frozen=True, slots=True)
class Gather:
    """What others committed since `after`."""

    after: int
    actor: str
    """Rows written by this actor are left out."""
    limit: int = 5_000


@dataclass(frozen=True, slots=True)
class Gathered:
    now: int
    seq: int
    events: list[EventRow]
    tasks: list[TaskRow]
    """Rows, as they are now, of every task those events end (completed, failed, handed back …)."""
    requests: list[StoredRequest]
    workers: list[WorkerRow] | None
    """All workers, where any joined, left or changed since the last call; else None."""
    limits_changed: bool
    queued: list[RunRow] = field(default_factory=list[RunRow])
    """Rows of the first few runs those events queue, where they cost no further look at the store."""


@dataclass(frozen=True, slots=True)
class Heads:
    """The first `each` queued runs of every lane named, in order; at most `most` in all."""

    lanes: list[int]
    each: int
    most: int = 4_096


@dataclass(frozen=True, slots=True)
class Committed:
    seq: int
    now: int


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Take offers back (`to` requested) or cancel before acceptance (`to` cancelled)."""

    term: int
    cycle: int
    actor: str
    tasks: list[tuple[int, int]]
    """(task, token)"""
    to: str
    reason: str


@dataclass(frozen=True, slots=True)
class Expire:
    """Declare workers whose lease has passed lost: their running tasks are abandoned, their offers withdrawn.

    What a worker's row names as left behind (`WorkerRow.leaves`) is handed back instead: it was told to end.
    """

    term: int
    cycle: int
    actor: str


@dataclass(frozen=True, slots=True)
class Lost:
    worker: str
    reason: str
    abandoned: list[tuple[int, int]]
    withdrawn: list[tuple[int, int]]
    lease_until: int | None = None
    """Until when it was presumed alive; for a process that died, maybe later than now."""
    handed_back: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Running attempts that it was told to leave behind."""


@dataclass(frozen=True, slots=True)
class Recut:
    """Give queued runs the lane that the limits now in force ask for; `after` is a run to go on from."""

    term: int
    after: int = 0
    batch: int = 2_000


@dataclass(frozen=True, slots=True)
class Tidy:
    """Remove lanes that nobody stands in, and the state of rates that says nothing any more.

    `after` is a lane to go on from.
    """

    term: int
    after: int = 0
    batch: int = 1_000


@dataclass(frozen=True, slots=True)
class Beat:
    """A worker joins or renews its lease, with what it can take now."""

    worker: WorkerRow
    lease_us: int


@dataclass(frozen=True, slots=True)
class Beaten:
    lease_until: int
    """0: the lease was already lost; the worker must stop its tasks and join under a new id."""
    now: int


@dataclass(frozen=True, slots=True)
class Heard:
    """What woke a worker. Only a hint: rows are the truth."""

    offers: list[tuple[int, int]]
    """(task, token), where the notification itself carried them."""
    look: bool
    """There may be orders beside those: read them."""


@dataclass(frozen=True, slots=True)
class Accept:
    worker: str
    tasks: list[tuple[int, int]]
    """(task, token)"""


class Started(NamedTuple):
    """An accepted task with all it needs to run."""

    task: TaskRow
    shared: bytes | None
    """The node's input that all items share."""
    run_id: str
    graph: str
    trace: str | None = None
    """The submitter's (W3C `traceparent`)."""


@dataclass(frozen=True, slots=True)
class Finish:
    worker: str
    ended: list[End]


@dataclass(frozen=True, slots=True)
class SetLimit:
    kind: str
    name: str
    rule: bytes | None
    """JSON; None resets the live setting (or withdraws the declared one)."""
    who: str
    declared: bool = False
    """True: the default from code or configuration; it never touches an operator's live setting."""
    reason: str = ""
    patch: bytes | None = None
    """JSON object of fields to change in the rule in force, in this transaction; null takes one away.

    `rule` is then only what to begin with where (kind, name) has no rule of its own yet.
    """


@dataclass(frozen=True, slots=True)
class RunFilter:
    states: list[str] | None = None
    tags: dict[str, str] = field(default_factory=dict[str, str])
    flow: str | None = None
    """Without it, holds of slots (`locktender:hold`) are left out: nobody submitted them."""
    limit: int = 100
    before: int | None = None
    """Only runs with a smaller seq: the next page."""
    id_prefix: str | None = None
    """Runs whose id begins so, by id; the other conditions do not apply then."""


@dataclass(frozen=True, slots=True)
class QueueEntry:
    run: RunRow
    position: int


@dataclass(frozen=True, slots=True)
class LineGroup:
    """Queued runs of one lane and one priority that one of them is asked about with."""

    lane: str
    """Its signature, as `kernel.lanes` makes and reads it."""
    rank: int
    """The first part of their rank: smaller goes first."""
    waiting: int
    older: int
    """How many of them stand before the run in question by rank and age."""


@dataclass(frozen=True, slots=True)
class QueueLine:
    """All queued runs but those of lower priority than one of them, counted by lane."""

    rank: int
    groups: list[LineGroup]
    cut: bool = False
    """There are more than were asked for: some are not counted here. Its own lane is counted first."""


@dataclass(frozen=True, slots=True)
class EventFilter:
    run: int | None = None
    after: int = 0
    limit: int = 10_000
    newest: bool = False
    """Of all runs: the last `limit`, and not the first. In their order either way."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Counters and the rows they must equal: what the audit compares.

    Names are those of `TagRule.counter`, and '' for all runs.
    """

    admitted: dict[str, int]
    closed: dict[str, int]
    active: dict[str, int]
    """Counted from rows, under the same names."""
    held: dict[str, int]
    """Slots in use per pool, summed from task rows."""
    queued: int
    executing: int


class Store(Forgetting, Provisioning, Protocol):
    """One durable place for runs. Both back ends pass `locktender.testing.conformance`."""

    async def open(self) -> None:
        """Create or migrate the schema; refuse a newer one, a corrupt, read-only or locked file."""
        ...

    async def close(self) -> None: ...
    def twin(self) -> Store:
        """The same store once more, not opened yet: for a thread with a loop of its own."""
        ...

    async def now(self) -> int:
        """The store's time: the only clock that processes compare."""
        ...

    # clients
    async def submit(self, submit: Submit) -> list[Submitted]: ...
    async def retry(self, run_ids: list[str]) -> list[Submitted]:
        """Queue ended runs again, past the ceiling like a submission; finished tasks keep their outputs."""
        ...

    async def ask(self, requests: list[Request]) -> None: ...
    async def set_limit(self, changes: list[SetLimit]) -> None: ...

    # the leader
    async def elect(self, elect: Elect) -> Leadership: ...
    async def resign(self, owner: str, term: int) -> None: ...
    async def load(self) -> Snapshot: ...
    async def gather(self, gather: Gather) -> Gathered: ...
    async def heads(self, heads: Heads) -> list[RunRow]: ...
    async def arrivals(self, runs: list[int]) -> list[RunRow]:
        """Of these runs (by seq), those that are queued."""
        ...

    async def overdue(self, limit: int) -> list[RunRow]:
        """Queued runs whose deadline has passed, the longest overdue first."""
        ...

    async def commit(self, commit: Commit) -> Committed: ...
    async def withdraw(self, withdraw: Withdraw) -> list[tuple[int, int]]:
        """The (task, token) pairs that were still only offered."""
        ...

    async def expire(self, expire: Expire) -> list[Lost]: ...
    async def recut(self, recut: Recut) -> int:
        """The run to go on from; 0 when all are done."""
        ...

    async def tidy(self, tidy: Tidy) -> int:
        """The lane to go on from; 0 when all are done. `StoreBusy` where submitters leave no gap for it."""
        ...

    # workers
    async def beat(self, beat: Beat) -> Beaten: ...
    async def leave(self, worker: str) -> None: ...
    async def orders(self, worker: str) -> list[Order]: ...
    async def accept(self, accept: Accept) -> list[Started]:
        """The tasks that were still ours to take: now running, before any user code."""
        ...

    async def finish(self, finish: Finish) -> list[tuple[int, int]]:
        """The (task, token) pairs that were stale: they changed nothing."""
        ...

    async def keep_logs(self, rows: list[LogRow]) -> None:
        """What attempts logged. Fenced by nothing: a stale attempt's lines are its own."""
        ...

    # values
    async def put_blob(self, data: bytes) -> str:
        """Stores `data` under its content hash, which it returns."""
        ...

    async def get_blob(self, digest: str) -> bytes: ...
    async def graph(self, digest: str) -> bytes: ...

    # reads
    async def run(self, run_id: str) -> RunRow | None: ...
    async def runs(self, where: RunFilter) -> list[RunRow]: ...
    async def tasks(self, run: int) -> list[TaskRow]: ...
    async def events(self, where: EventFilter) -> list[EventRow]: ...
    async def logs(self, where: LogFilter) -> list[LogRow]: ...
    async def queue(self, limit: int) -> list[QueueEntry]:
        """Queued runs in their global order (priority, then age)."""
        ...

    async def line(self, run: int, most: int) -> QueueLine | None:
        """Who waits beside it, by lane and priority; None if it is not queued.

        At most `most` of its own lane are counted, and as many of all others.
        """
        ...

    async def workers(self) -> list[WorkerRow]: ...
    async def leader(self) -> str | None:
        """Who leads now; None where nobody's lease is alive."""
        ...

    async def limits(self) -> tuple[Limits, list[LimitRow]]: ...
    async def limit_history(self, limit: int) -> list[LimitChange]: ...
    async def counts(self) -> Counts: ...
    async def stale_writes(self) -> int:
        """How many stale writes were refused since the store was opened (`locktender_stale_writes_total`)."""
        ...

    # waking
    async def hear(self, worker: str, timeout_us: int) -> Heard:
        """What a leader elsewhere has for this worker, as soon as it says so, or after `timeout_us`.

        Nothing said between two calls is missed while the store is open; what was said when nobody
        could hear it is found by looking.
        """
        ...

    async def wait(self, timeout_us: int, since: int = -1) -> int:
        """Returns a mark when another process has committed something, or after `timeout_us`.

        The mark passed back as `since` misses nothing committed in between, however many
        wait on one store; without it, what came since any last wait counts.
        """
        ...
