"""Rows as they pass between the kernel, the store and the worker.

Named tuples in the order of their columns: the hot path binds them to SQL
as they are. The kernel makes them, the store writes them, `load` reads them.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import NamedTuple

from locktender.base.events import Change
from locktender.base.states import TaskState


class TaskRow(NamedTuple):
    """The whole row of a task."""

    id: int
    node: int
    idx: int
    """The item's index; −1 for a plain step, and for a map that was skipped before it was expanded."""
    state: str
    attempt: int = 0
    """Attempts a worker accepted, ever."""
    tries: int = 0
    """Attempts charged against `retries` since the run was last (re)submitted."""
    abandons: int = 0
    offers: int = 0
    token: int = 0
    worker: str | None = None
    held: bytes | None = None
    """JSON `{pool: slots}` while scheduled or running: usage is derived from these rows."""
    input: bytes | None = None
    """JSON `{"args": […], "kwargs": {…}}`; of an item only what differs from its siblings."""
    output: bytes | None = None
    error: bytes | None = None
    """JSON of `base.model.Failure`."""
    requested_at: int = 0
    scheduled_at: int = 0
    started_at: int = 0
    ended_at: int = 0
    not_before: int = 0
    eligible_at: int = 0
    """When it first passed every gate but the worker's: the dispatch deadline's clock. 0: not yet."""


class End(NamedTuple):
    """How an attempt ended, by the worker that accepted it (handed_back also before acceptance: a decline)."""

    task: int
    token: int
    state: str
    output: bytes | None = None
    error: bytes | None = None
    """JSON of `base.model.Failure`."""
    reason: str = ""
    worker: str = ""
    """Whose attempt it was; no other worker writes its end."""


class TaskSave(NamedTuple):
    """A task the leader owns, as it is at the end of a cycle: its hot columns."""

    id: int
    state: str
    attempt: int
    tries: int
    abandons: int
    offers: int
    token: int
    worker: str | None
    held: bytes | None
    error: bytes | None
    requested_at: int
    scheduled_at: int
    started_at: int
    ended_at: int
    not_before: int
    eligible_at: int


class TaskEnd(NamedTuple):
    """A completed task of a worker in the leader's own process, written with the leader's commit."""

    id: int
    token: int
    output: bytes | None
    ended_at: int


class NodeInput(NamedTuple):
    """Arguments that all items of one mapped step share, rendered and stored once."""

    run: int
    node: int
    input: bytes


class RunStart(NamedTuple):
    run: int
    started_at: int


class RunWait(NamedTuple):
    """An executing run of which nothing is left but waits."""

    run: int
    wake_at: int


class EventWait(NamedTuple):
    """A task that waits for an event, from its request until it ends."""

    task: int
    run: int
    name: str
    match: str
    """JSON object: what an event of a topic has to agree with."""
    since: int
    until: int
    """Then it times out."""


class MailTaken(NamedTuple):
    """An event that was delivered to a task, or refused at its delivery (task 0). Once for each run."""

    run: int
    n: int
    task: int


class CachedResult(NamedTuple):
    """The result of a step, kept for later tasks with the same key."""

    key: str
    step: str
    flow: str
    """Of the run that made it."""
    scope: str
    task: int
    """Which made it; its run may be pruned."""
    made_at: int
    expires_at: int
    size: int
    """Bytes of the value, also where `output` refers to it."""
    output: bytes


class CacheClear(NamedTuple):
    """Cached results that are forgotten: those of a step, of a flow, of both, or (two Nones) all."""

    step: str | None
    flow: str | None

    def covers(self, result: CachedResult) -> bool:
        return self.step in (None, result.step) and self.flow in (None, result.flow)


class RunMark(NamedTuple):
    """A run that is being brought to an end: `verdict` is how it will end once nothing of it is in flight."""

    run: int
    state: str
    verdict: str
    error: bytes | None


class RunUnfolded(NamedTuple):
    """A run submitted by name whose flow was traced: the graph and the values it goes on with."""

    run: int
    graph: str
    """Content hash."""
    body: bytes
    """The graph as it is stored."""
    consts: bytes


class RunEnd(NamedTuple):
    run: int
    state: str
    output: bytes | None
    error: bytes | None
    ended_at: int


class Order(NamedTuple):
    """What a worker in another process is to do: accept an offer, stop a task it runs, drain or not."""

    worker: str
    task: int
    token: int
    kind: str
    """`offer`, `stop`, `drain` or `undrain` (of the last two `task` is minus the request's number)."""
    reason: str = ""


class Bucket(NamedTuple):
    """A rate's state: the instant from which the next grant is free (GCRA's theoretical arrival time)."""

    pool: str
    tat: int


class Reservation(NamedTuple):
    """Slots kept free for a waiter that was bypassed too often; stored so that every `why` can show it."""

    task: int
    pool: str
    slots: int


class Linger(NamedTuple):
    """Slots of a dead worker's attempt in a pool with a longer lease: taken until that has passed too."""

    task: int
    token: int
    pool: str
    slots: int
    until: int
    worker: str


class Silence(NamedTuple):
    """A worker that left offers unanswered although its lease is kept; stored so that every reader can see it."""

    worker: str
    unanswered: int
    """In a row."""
    until: int
    """It gets no offer before."""


class KeptPlace(NamedTuple):
    """A run that has begun, has no place now, and keeps it at some limits of tags (`counts_while_waiting`)."""

    run: int
    id: str
    tags: dict[str, str]
    rules: tuple[str, ...]
    """The names of those limits."""
    since: int = 0
    """When it started."""


class RunEvents(NamedTuple):
    """Changes of one run (0: of none) in one commit, in order."""

    run: int
    changes: list[Change]


_REQUESTED = TaskState.REQUESTED
_COMPLETED = TaskState.COMPLETED
_WAITING = frozenset({TaskState.REQUESTED, TaskState.SCHEDULED})


@dataclass(slots=True)
class Commit:
    """A leader's cycle: everything it decided, in one transaction, if its term still holds."""

    term: int
    cycle: int
    actor: str
    previous: int = 0
    """The cycle of the commit before it: the store takes commits in their order only."""
    at: int = 0
    """The store's time when the cycle was decided: the time of its events."""
    runs_started: list[RunStart] = field(default_factory=list[RunStart])
    runs_marked: list[RunMark] = field(default_factory=list[RunMark])
    runs_unfolded: list[RunUnfolded] = field(default_factory=list[RunUnfolded])
    runs_ended: list[RunEnd] = field(default_factory=list[RunEnd])
    tasks_new: list[TaskRow] = field(default_factory=list[TaskRow])
    tasks_again: list[TaskRow] = field(default_factory=list[TaskRow])
    """Rows of a retried run that are written over what an earlier try left in them."""
    tasks_saved: list[TaskSave] = field(default_factory=list[TaskSave])
    tasks_ended: list[TaskEnd] = field(default_factory=list[TaskEnd])
    node_inputs: list[NodeInput] = field(default_factory=list[NodeInput])
    orders: list[Order] = field(default_factory=list[Order])
    buckets: list[Bucket] = field(default_factory=list[Bucket])
    reservations: list[Reservation] | None = None
    """The whole set, where it changed."""
    lingers: list[Linger] | None = None
    """The whole set, where it changed."""
    unplaced: list[int] = field(default_factory=list[int])
    """Executing runs that give their place back."""
    placed: list[int] = field(default_factory=list[int])
    """Those that have one again, or need none any more."""
    kept: list[tuple[int, tuple[str, ...]]] = field(
        default_factory=list[tuple[int, tuple[str, ...]]]
    )
    """Runs that give their place back, execute no more or not now, and keep it at these limits of tags."""
    silences: list[Silence] | None = None
    """The whole set, where it changed."""
    runs_waiting: list[RunWait] = field(default_factory=list[RunWait])
    """They give their place back and wait. A run may be started and wait in one commit."""
    taken_up: list[int] = field(default_factory=list[int])
    """Those of `runs_started` that were waiting: they are to be ended."""
    ended_waiting: list[int] = field(default_factory=list[int])
    """Those of `runs_ended` that were waiting: they count under another ceiling."""
    waits_opened: list[EventWait] = field(default_factory=list[EventWait])
    waits_over: list[int] = field(default_factory=list[int])
    """Tasks that wait for no event any more."""
    mail_taken: list[MailTaken] = field(default_factory=list[MailTaken])
    cache_cleared: list[CacheClear] = field(default_factory=list[CacheClear])
    """Before anything is stored."""
    cache_stored: list[CachedResult] = field(default_factory=list[CachedResult])
    """One for each key, in the place of what is stored under it."""
    requests_done: list[int] = field(default_factory=list[int])
    reprioritised: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """(queued run, new priority)"""
    events: list[RunEvents] = field(default_factory=list[RunEvents])
    own_ends: bool = False
    """Attempts of the leader's own process end with it: no other process has written how."""

    @property
    def preparing(self) -> bool:
        """No attempt or run begins or ends with it: runs are opened, tasks wait or are offered, waits are over.

        A worker acts on it only when its own write (an acceptance) is durable, and then this one is too.
        """
        return not (
            self.own_ends
            or self.runs_marked
            or self.runs_ended
            or self.runs_waiting
            or self.tasks_ended
            or self.lingers is not None
            or self.requests_done
            or self.reprioritised
            or any(order.kind != "offer" for order in self.orders)
            or any(task.state not in _WAITING for task in self.tasks_new)
            # A wait that is over, or a cached result: no worker has run it.
            or any(task.state != _COMPLETED or task.token for task in self.tasks_again)
            or any(
                # When it began to lack only a worker is counted from: it survives.
                task.state not in _WAITING or (task.eligible_at and task.state == _REQUESTED)
                for task in self.tasks_saved
            )
        )

    @property
    def empty(self) -> bool:
        """Nothing is written with it. Of a set that is written whole, none left is something to write."""
        return (
            self.reservations is None
            and self.lingers is None
            and self.silences is None
            and not any(getattr(self, each) for each in _LISTS)
        )


_LISTS = tuple(each.name for each in fields(Commit) if each.default_factory is not MISSING)
"""What a commit may have in it: a mark of a run, say, comes without an event."""
