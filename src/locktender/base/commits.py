"""A leader's commit, and the rows that it alone has. Processes that only read do not import them.

Named tuples in the order of their columns, as in `changes.py`.
"""

from __future__ import annotations

from operator import attrgetter
from typing import NamedTuple

import msgspec
from msgspec.structs import fields

from locktender.base.changes import Bucket, CachedResult, Linger, Order, Reservation, TaskRow
from locktender.base.events import Change
from locktender.base.model import RunRow
from locktender.base.states import TaskState


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


class Silence(NamedTuple):
    """A worker that left offers unanswered although its lease is kept; stored so that every reader can see it."""

    worker: str
    unanswered: int
    """In a row."""
    until: int
    """It gets no offer before."""


class RunEvents(NamedTuple):
    """Changes of one run (0: of none) in one commit, in order."""

    run: int
    changes: list[Change]


_REQUESTED = TaskState.REQUESTED
_COMPLETED = TaskState.COMPLETED
_kind_of, _state_of = attrgetter("kind"), attrgetter("state")
_OFFERS = frozenset({"offer"})
_WAITING = frozenset({TaskState.REQUESTED, TaskState.SCHEDULED})


class Commit(msgspec.Struct):
    """A leader's cycle: everything it decided, in one transaction, if its term still holds."""

    term: int
    cycle: int
    actor: str
    previous: int = 0
    """The cycle of the commit before it: the store takes commits in their order only."""
    at: int = 0
    """The store's time when the cycle was decided: the time of its events."""
    runs_started: list[RunStart] = []
    runs_marked: list[RunMark] = []
    runs_unfolded: list[RunUnfolded] = []
    runs_ended: list[RunEnd] = []
    tasks_new: list[TaskRow] = []
    tasks_again: list[TaskRow] = []
    """Rows of a retried run that are written over what an earlier try left in them."""
    tasks_saved: list[TaskSave] = []
    tasks_ended: list[TaskEnd] = []
    node_inputs: list[NodeInput] = []
    orders: list[Order] = []
    buckets: list[Bucket] = []
    reservations: list[Reservation] | None = None
    """The whole set, where it changed."""
    lingers: list[Linger] | None = None
    """The whole set, where it changed."""
    unplaced: list[int] = []
    """Executing runs that give their place back."""
    placed: list[int] = []
    """Those that have one again, or need none any more."""
    kept: list[tuple[int, tuple[str, ...]]] = []
    """Runs that give their place back, execute no more or not now, and keep it at these limits of tags."""
    silences: list[Silence] | None = None
    """The whole set, where it changed."""
    runs_waiting: list[RunWait] = []
    """They give their place back and wait. A run may be started and wait in one commit."""
    taken_up: list[int] = []
    """Those of `runs_started` that were waiting: they are to be ended."""
    ended_waiting: list[int] = []
    """Those of `runs_ended` that were waiting: they count under another ceiling."""
    waits_opened: list[EventWait] = []
    waits_over: list[int] = []
    """Tasks that wait for no event any more."""
    mail_taken: list[MailTaken] = []
    cache_cleared: list[CacheClear] = []
    """Before anything is stored."""
    cache_stored: list[CachedResult] = []
    """One for each key, in the place of what is stored under it."""
    requests_done: list[int] = []
    reprioritised: list[tuple[int, int]] = []
    """(queued run, new priority)"""
    events: list[RunEvents] = []
    as_carried: list[RunRow] = []
    """Queued runs that start or end with it and were not read: as the notifications of their submissions had them.
    Nothing of the commit is written where a stored row is different."""
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
            or not _OFFERS.issuperset(map(_kind_of, self.orders))
            or not _WAITING.issuperset(map(_state_of, self.tasks_new))
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


_LISTS = tuple(each.name for each in fields(Commit) if each.default_factory is list)
"""What a commit may have in it: a mark of a run, say, comes without an event."""
