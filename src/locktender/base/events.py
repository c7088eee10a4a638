"""The history: one typed event per change of state, in commit order.

Stored as one row per run and commit, so that history costs a row per commit
and not one per change; `Event` is what readers see. The checker, `events()`
and the audit read nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec

Subject = Literal[
    "run",
    "trace",
    "place",
    "pause",
    "task",
    "limit",
    "worker",
    "leader",
    "wait",
    "cost",
    "mail",
    "cache",
    "clock",
    "audit",
    "request",
    "term",
]
"""What changed. `wait` is no change of state: a lane was found blocked at another gate than before
(StepSlotWaiting of all that wait in it), or holders of the gate have changed.
`cost` is what waits that are over lasted at each gate.
`place` is an executing run's place at the run gate and the tags' limits, given back or held again.
`pause` is a run that starts nothing: paused, resumed, or lifted because the run is to end.
`trace` is a run submitted by name whose flow a worker has traced.
`mail` is an event that was sent to a run, or to a topic (of no run), and what became of it.
`cache` is a result that is kept for tasks with the same key, or results that are forgotten (of no run).
`audit` is about the history itself: it was checked, or a part of it was pruned."""
SUBJECTS: Final[tuple[Subject, ...]] = get_args(Subject)

NO_RUN = 0
"""The run of an event that concerns no run."""
HISTORY = -1
"""The run of an event about the history itself."""


class Change(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One change as it is stored in an event row's body (a JSON array).

    The garbage collector does not look at it: four are made for each task, and none is part of a circle.
    """

    subject: Subject
    task: int
    """The task's id; 0 where the subject is not a task."""
    before: str
    after: str
    token: int = 0
    data: dict[str, Any] | None = None
    """What the change carries, by subject:

    run       queued: flow, graph, tags, priority, key, generation; attached submissions have none;
              schedule and tick of a run that a schedule made.
              held: error
              running: priority, waits {gate: microseconds}, and under a fair key its value and its turn;
              ends: error, verdict
    trace     before, after: content hashes; graph: the graph that the run goes on with
    place     given_back: reason; held: priority
    pause     paused, resumed: by, reason, flow?; lifted: reason
    task      requested: node, index, attempt, not_before?, reason?
              scheduled: worker, pools {name: slots}, executor
              failed, timed_out: error {type, message}, retryable
              cancelled, handed_back, abandoned: reason
              completed from the cache: cached {key, task (that made it), made_at, expires_at}
              skipped: reason, passed? (its item is an error, which is its result, too)
              requested: also lane, gate, where it stands in a blocked lane from its request on
              scheduled, and ends of tasks that did not start: waits {gate: microseconds}
    wait      gate, lane, used, limit, need, behind (how many wait behind the first), task or run: the first.
              Of a lane that runs share (of no run), and of the queue's (run). Without a lane: gate,
              held [[run, slots], …], who holds the gate from now on, and of a pool used, limit, need, task
    cost      gates {gate: [microseconds, waiters]}, of waits that were over since the last such event
    cache     stored (task: that made it): key, step, flow, expires_at; cleared: step?, flow?
    mail      sent: n (its number), name, id?; delivered (task: to which): n, name; refused: n, name, reason
    limit     kind, name, rule (None: unset) — by the leader, when it comes into force
    worker    permits {executor: n}, labels, lost: reason
    leader    after = owner; a new term has begun
    clock     jumped: what the leader found of a store clock that was set
    audit     checked: seq, events, violations, rules, peaks, who
              pruned: runs, tasks, events, until, checked, who
              thinned: rows, thinned, who; summed: what earlier marks came to
    term      failed: reason, terms (how many in a row), again_at (when its process tries to lead again)
    request   refused: request (its number), reason, and kind, subject, who where it can be read
    """


class Event(msgspec.Struct, frozen=True):
    """One change, with where and when it was committed."""

    seq: int
    at: int
    term: int
    cycle: int
    """0 where it was not written by a leader's cycle."""
    actor: str
    """`leader:<owner>`, `worker:<id>` or `client`."""
    run: int
    subject: Subject
    task: int
    before: str
    after: str
    token: int = 0
    data: dict[str, Any] = {}


class EventRow(NamedTuple):
    """All changes of one run in one commit."""

    seq: int
    at: int
    term: int
    cycle: int
    actor: str
    run: int
    body: bytes


read_changes: Callable[[bytes], list[Change]] = msgspec.json.Decoder(list[Change]).decode
"""The changes in an event row's body."""


def unpack(row: EventRow) -> list[Event]:
    return [event_of(row, change) for change in read_changes(row.body)]


def event_of(row: EventRow, change: Change) -> Event:
    """One change of `row`, with where and when it was committed."""
    return Event(
        seq=row.seq,
        at=row.at,
        term=row.term,
        cycle=row.cycle,
        actor=row.actor,
        run=row.run,
        subject=change.subject,
        task=change.task,
        before=change.before,
        after=change.after,
        token=change.token,
        data=change.data or {},
    )


pack: Callable[[object], bytes] = msgspec.json.Encoder().encode
"""Encodes a list of `Change` as an event row's body."""
