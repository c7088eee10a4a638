"""The store's verbs, by role, each with its parameters and its result. One verb is one transaction.

    Submitting  clients submit runs, retry them, send requests and change limits
    Leading     a leader is elected, reads what changed and commits its decisions
    Working     a worker renews its lease, accepts offers and reports how attempts ended
    Naming      workers announce flows, clients ask for them by name
    Reading     anyone looks at runs, tasks, events, workers and limits
    Waiting     runs that wait for their time are found and woken
    Mailing     clients send events, the leader reads them for the tasks that wait
    Examining   lists of what has certain tags are read in parts of a bounded length
    TokenKeeping  tokens of the HTTP API are added, found and revoked
    Outbox      runs that applications submitted in transactions of their own are taken up
    Upkeep      old runs, graphs and blobs are removed

A leader owns its tasks up to the offer, a worker owns a task from acceptance
on, so only two pairs of verbs can meet on one row: `accept` against `withdraw`,
and `finish` against `expire`. Both are compare-and-set on (task, token, state)
inside one transaction: the second to commit finds the row changed and does nothing.

Every verb may be repeated with the same ids after its answer was lost.
"""

from __future__ import annotations

from typing import Protocol

from locktender.store.protocol.base import StoreBase
from locktender.store.protocol.examining import (
    BEFORE_ALL,
    BEHIND_ALL,
    Examine,
    Examined,
    Examining,
    WaitPlace,
    runs_examined,
)
from locktender.store.protocol.leading import (
    ANSWER_KEPT_US,
    Answer,
    ChangeNotice,
    Committed,
    Elect,
    EndedTask,
    Expire,
    Gather,
    Gathered,
    Heads,
    HoldRuns,
    Leadership,
    Leading,
    Lost,
    Provision,
    ProvisionState,
    ReassignLanes,
    Snapshot,
    Withdraw,
)
from locktender.store.protocol.mailing import (
    MAX_MAIL,
    EventSent,
    EventWaiter,
    Mailing,
    SendEvent,
)
from locktender.store.protocol.naming import Naming, SetSchedule, TickMove
from locktender.store.protocol.outbox import (
    Outbox,
    OutboxAnswer,
    OutboxEntry,
    OutboxMove,
    OutboxRun,
)
from locktender.store.protocol.reading import (
    BEGINNING,
    FOREVER_US,
    FRONT,
    LATEST,
    CountedTasks,
    Counts,
    Cursor,
    EventFilter,
    Follow,
    Followed,
    LineGroup,
    NodeCount,
    OpenRuns,
    QueueEntry,
    QueueLine,
    QueuePlace,
    QueueView,
    Reading,
    RecentRun,
    RunFilter,
    RunLabel,
    RunsEnded,
    TaskFilter,
    Traffic,
)
from locktender.store.protocol.submitting import Rejections, SetLimit, Submit, Submitted, Submitting
from locktender.store.protocol.tokens import (
    FORGET_KEYS_US,
    FORGET_SESSIONS_US,
    AddToken,
    TokenKeeping,
    token_row,
)
from locktender.store.protocol.upkeep import (
    AuditState,
    BoundCache,
    Discard,
    Discarded,
    EventReader,
    Prune,
    Pruned,
    References,
    RemoveUnused,
    StoredContent,
    Thin,
    Upkeep,
)
from locktender.store.protocol.waiting import Waiting, Wake, Woken, WokenRows, WokenRun
from locktender.store.protocol.working import (
    Accept,
    Finish,
    Heartbeat,
    OfferNotice,
    Renewed,
    Started,
    Working,
)

__all__ = [
    "ANSWER_KEPT_US",
    "BEFORE_ALL",
    "BEGINNING",
    "BEHIND_ALL",
    "FOREVER_US",
    "FORGET_KEYS_US",
    "FORGET_SESSIONS_US",
    "FRONT",
    "LATEST",
    "MAX_MAIL",
    "Accept",
    "AddToken",
    "Answer",
    "AuditState",
    "BoundCache",
    "ChangeNotice",
    "Committed",
    "CountedTasks",
    "Counts",
    "Cursor",
    "Discard",
    "Discarded",
    "Elect",
    "EndedTask",
    "EventFilter",
    "EventReader",
    "EventSent",
    "EventWaiter",
    "Examine",
    "Examined",
    "Examining",
    "Expire",
    "Finish",
    "Follow",
    "Followed",
    "Gather",
    "Gathered",
    "Heads",
    "Heartbeat",
    "HoldRuns",
    "Leadership",
    "Leading",
    "LineGroup",
    "Lost",
    "Mailing",
    "Naming",
    "NodeCount",
    "OfferNotice",
    "OpenRuns",
    "Outbox",
    "OutboxAnswer",
    "OutboxEntry",
    "OutboxMove",
    "OutboxRun",
    "Provision",
    "ProvisionState",
    "Prune",
    "Pruned",
    "QueueEntry",
    "QueueLine",
    "QueuePlace",
    "QueueView",
    "Reading",
    "ReassignLanes",
    "RecentRun",
    "References",
    "Rejections",
    "RemoveUnused",
    "Renewed",
    "RunFilter",
    "RunLabel",
    "RunsEnded",
    "SendEvent",
    "SetLimit",
    "SetSchedule",
    "Snapshot",
    "Started",
    "Store",
    "StoreBase",
    "StoredContent",
    "Submit",
    "Submitted",
    "Submitting",
    "TaskFilter",
    "Thin",
    "TickMove",
    "TokenKeeping",
    "Traffic",
    "Upkeep",
    "WaitPlace",
    "Waiting",
    "Wake",
    "Withdraw",
    "Woken",
    "WokenRows",
    "WokenRun",
    "Working",
    "runs_examined",
    "token_row",
]


class Store(
    Submitting,
    Leading,
    Working,
    Naming,
    Reading,
    Upkeep,
    Waiting,
    Mailing,
    Outbox,
    Examining,
    TokenKeeping,
    Protocol,
):
    """One durable place for runs. Both back ends pass `locktender.testing.conformance`."""
