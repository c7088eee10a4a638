"""Values that reading methods return: small, frozen, true at the moment of reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final

import msgspec

from locktender.base.clock import SECOND
from locktender.base.model import Failure, RunRow, Unstopped, WorkerRow
from locktender.base.states import RunState, TaskState
from locktender.client.results import failure_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def instant(at: int) -> datetime:
    """Microseconds since the epoch as a UTC datetime, exactly."""
    return _EPOCH + timedelta(microseconds=at)


def moment(at: int | None) -> datetime | None:
    """The same where 0 means: not yet."""
    return instant(at) if at else None


class RunInfo(msgspec.Struct, frozen=True):
    """A run at the moment of reading. Times are UTC."""

    id: str
    flow: str
    state: RunState
    tags: Mapping[str, str]
    priority: int
    key: str | None
    kind: str
    """`flow`, or `hold` for slots held by `slots()`."""
    generation: int
    """How often it was retried."""
    queued_at: datetime
    started_at: datetime | None
    """When it last began to execute; None: not yet."""
    ended_at: datetime | None
    deadline_at: datetime | None
    error: Failure | None
    """Why it failed: `.type`, `.message`, `.node` (the step), `.traceback`."""
    number: int
    """The store's own number of the run: what events and tasks refer to."""

    @classmethod
    def of(cls, row: RunRow) -> RunInfo:
        """The same from a row of the store."""
        return cls(
            id=row.id,
            flow=row.flow,
            state=RunState(row.state),
            tags=row.tags,
            priority=row.priority,
            key=row.key,
            kind=row.kind,
            generation=row.generation,
            queued_at=instant(row.queued_at),
            started_at=moment(row.started_at),
            ended_at=moment(row.ended_at),
            deadline_at=moment(row.deadline_at),
            error=failure_of(row.error),
            number=row.seq,
        )


class EndedRun(msgspec.Struct, frozen=True):
    """A run that was waited for and has ended."""

    number: int
    state: str
    """Empty: there is no such run any more."""


class QueueInfo(msgspec.Struct, frozen=True):
    """A queued run and its position, from 1, in the order in which runs start."""

    position: int
    run: RunInfo


class ProgressInfo(msgspec.Struct, frozen=True):
    """What a body reported last with `current().progress(...)`."""

    done: float
    total: float | None
    message: str

    def __str__(self) -> str:
        of = "" if self.total is None else f"/{self.total:g}"
        return f"{self.done:g}{of} {self.message}".rstrip()


class UnstoppedInfo(msgspec.Struct, frozen=True):
    """A running attempt that was asked to stop and has not: it keeps its permit and its slots until it ends."""

    task: int
    step: str
    reason: str
    """`timeout`, `cancel`, `drain` …"""
    since: datetime
    """When it was told."""

    @classmethod
    def of(cls, row: Unstopped) -> UnstoppedInfo:
        """The same from a worker's report."""
        return cls(row.task, row.step, row.reason, instant(row.since))


class LogInfo(msgspec.Struct, frozen=True):
    """One line that a body logged."""

    at: datetime
    """By the clock of the process that ran it."""
    level: str
    logger: str
    message: str
    task: int
    name: str
    """The step, as the flow names it."""
    index: int | None
    attempt: int


class TaskInfo(msgspec.Struct, frozen=True):
    """A task: a plain step of a run, or one item of a mapped one."""

    id: int
    name: str
    """As the flow names the step."""
    step: str
    index: int | None
    """The item's; None for a plain step."""
    state: TaskState
    attempt: int
    """Attempts that were started so far."""
    worker: str | None
    """Where its last attempt is or was."""
    pools: Mapping[str, int]
    """Slots it holds now."""
    wait_reason: str | None
    """Every gate that blocks a waiting task at the moment of reading, or to whom it is offered; `why()` has the
    numbers and the holders."""
    error: Failure | None
    requested_at: datetime | None
    """When it began to wait at its limits."""
    scheduled_at: datetime | None
    """When it got its slots and was offered to a worker."""
    started_at: datetime | None
    ended_at: datetime | None
    not_before: datetime | None
    """A retry's back-off: it does not start earlier."""
    progress: ProgressInfo | None = None
    """How far the running attempt is, as its body reported; as old as its worker's last beat."""
    unstopped: UnstoppedInfo | None = None
    """That the running attempt was asked to stop a while ago, and has not."""
    cached: bool = False
    """Its result is that of an earlier call with the same arguments: no body ran."""


class NodeInfo(msgspec.Struct, frozen=True):
    """A step's call in the graph of a run."""

    name: str
    step: str
    executor: str
    after: Sequence[str]
    """Names of the nodes that it waits for."""
    mapped: bool
    window: int | None
    pools: Mapping[str, int]
    wait: str | None
    """`sleep`, `until` or `event`: it has no body."""
    tasks: Mapping[str, int]
    """How many of its tasks are in which state now."""
    run_if: str = "success"
    """Whether it runs after a `failure` of what it waits for, `always`, or only after `success`."""
    condition: str = ""
    """What must be true for it to run, besides; constants are not named."""
    event: str | None = None
    """What it waits for."""
    schema: Mapping[str, Any] = {}
    """JSON schema of the event's payload; empty: any."""


class GraphInfo(msgspec.Struct, frozen=True):
    """The steps of a run and how they depend on each other."""

    flow: str
    traced: bool
    """False: submitted by name, and no worker has traced it yet."""
    nodes: Sequence[NodeInfo]


class EventInfo(msgspec.Struct, frozen=True):
    """One change of state."""

    seq: int
    at: datetime
    actor: str
    subject: str
    task: int | None
    name: str | None
    """The step, where the event is a task's."""
    index: int | None
    before: str
    after: str
    data: Mapping[str, Any]
    slot: str | None = None
    """What it means for slots of pools: `waiting` (for any gate), `claimed` (`data`: pools, waited_us),
    `renewed` (with the worker's lease), `released` (`data`: released) or `expired` (its worker was lost)."""


class PoolInfo(msgspec.Struct, frozen=True):
    """A pool: its limit, its use and what waits for it at the moment of reading."""

    name: str
    limit: int | None
    """None: unlimited."""
    used: int
    waiting: int
    """Tasks in line that need it: no back-off holds them, and they have not started."""
    lease: float | None
    """Seconds a dead holder's slots are kept for; None: as long as its worker's lease."""
    rate: str | None
    burst: int | None
    paused: bool
    is_set: bool
    """False: no limit was ever set, tasks only name it."""
    source: str
    """`live` (an operator's), `declared` (code or configuration) or `none`."""
    version: str = ""
    """Another one after every change of its rule."""
    paused_by: str = ""
    """Who paused it; empty: it is not paused, or that was long ago."""
    paused_at: datetime | None = None

    @property
    def limit_text(self) -> str:
        """The limit as text: a number, `unlimited`, or that it was never set."""
        if not self.is_set:
            return "unlimited (never set)"
        return "unlimited" if self.limit is None else str(self.limit)


class LimitInfo(msgspec.Struct, frozen=True):
    """One rule that is stored: what is in force, and what it would be after a reset."""

    kind: str
    name: str
    """As `limits.reset` and `limits.pause` take it."""
    value: str
    """In force now."""
    live: str | None
    declared: str | None
    paused: bool
    version: str = ""
    """Another one after every change of it."""
    rule: Mapping[str, Any] = {}
    """What is in force, for programs: `limit`, `max_active`, `weights`, `value` … as this kind has them; times in
    microseconds, -1 is unlimited."""


class LimitChangeInfo(msgspec.Struct, frozen=True):
    """One change of a limit: when, by whom, from what to what."""

    at: datetime
    who: str
    kind: str
    name: str
    before: str | None
    after: str | None
    reason: str


class WorkerInfo(msgspec.Struct, frozen=True):
    """A worker as it last described itself."""

    id: str
    host: str
    pid: int
    version: str
    permits: Mapping[str, int]
    """Per executor; −1 is unlimited."""
    total_permits: int
    """Over all executors; −1 is unlimited."""
    in_flight: int
    free: int
    """How many tasks it would have taken when it last described itself; none while it drains or is lost."""
    share: int
    """Percent of its permits it uses under the pressure it feels."""
    pressed: Mapping[str, float]
    """What presses it, and above what: `memory` (a share, 0 to 1), `latency` (seconds)."""
    claim: int
    """How many offers it takes under the pressure it feels, beside its permits; −1: no such bound."""
    listens: bool
    """Offers reach it by notification; else it reads them from the store."""
    full: Sequence[str]
    """Executors that are nearly full: it takes none of theirs until there is room again."""
    memory: float
    """Share of its memory in use, 0 to 1."""
    p99: float
    """Seconds within which 99 of 100 tasks of the last minute ended; 0: none has."""
    loop_lag: float
    """Seconds its loop was late, at worst, lately."""
    unstopped: Sequence[UnstoppedInfo]
    """Its attempts that were asked to stop a while ago and still run."""
    labels: Mapping[str, str]
    provision: str
    """What a provisioner calls it; empty: it was started by hand."""
    draining: bool
    ending: bool
    """It drains because its process was told to end: `undrain` cannot take that back."""
    unanswered: int
    """Offers in a row that it left unanswered although its lease lasts; 0: it answers."""
    passed_over_until: datetime | None
    """Where it left offers unanswered: it gets none before."""
    alive: bool
    """Whether its lease lasts."""
    stalled: bool
    """Its lease has passed and it was not declared lost: it gets no tasks, and keeps those it has."""
    unreadable: str
    """What of its row cannot be read; empty: nothing. It gets no tasks then."""
    since: datetime
    lease_until: datetime
    steps: Mapping[str, str]
    """Name → signature: it runs only tasks whose step matches."""
    flows: Mapping[str, str]

    @classmethod
    def of(cls, row: WorkerRow, now: int) -> WorkerInfo:
        """The same from a row of the store, `now` by the store's time."""
        alive = row.lease_until >= now
        return cls(
            id=row.id,
            host=row.host,
            pid=row.pid,
            version=row.version,
            permits=row.permits,
            total_permits=row.total,
            in_flight=row.in_flight,
            free=row.free if alive and not row.draining else 0,
            share=row.share,
            pressed=row.pressed,
            claim=row.claim,
            listens=row.listens,
            full=row.full,
            memory=row.memory,
            p99=row.p99_us / SECOND,
            loop_lag=row.lag_us / SECOND,
            unstopped=[UnstoppedInfo.of(each) for each in row.unstopped],
            labels=row.labels,
            provision=row.provision,
            draining=row.draining,
            ending=row.ending,
            unanswered=row.unanswered,
            passed_over_until=instant(row.asked_again_at) if row.unanswered else None,
            alive=alive,
            stalled=0 < row.lease_until < now,
            unreadable=row.unreadable,
            since=instant(row.since),
            lease_until=instant(row.lease_until),
            steps=row.steps or {},
            flows=row.flows,
        )


class Requested(msgspec.Struct, frozen=True):
    """What was asked of the leader. A request is durable: without a leader it is carried out when one comes."""

    ids: tuple[str, ...]
    """What the request concerns."""
    leader: bool
    """Whether there is a leader now, so that it is carried out at once."""
    over: tuple[str, ...] = ()
    """What was left out because it had ended already."""
    started: tuple[str, ...] = ()
    """What was left out because it had started: `queue` leaves such runs alone."""

    def __str__(self) -> str:
        done = f"requested for {len(self.ids)}"
        if self.started:
            done += f", {len(self.started)} {'has' if len(self.started) == 1 else 'have'} started"
        if self.over:
            done += f", {len(self.over)} had ended already"
        if self.ids and not self.leader:
            done += "; no engine runs now: it is carried out when one starts"
        return done


class Unset(Enum):
    UNSET = "unset"

    def __repr__(self) -> str:
        return "unset"


UNSET: Final = Unset.UNSET
