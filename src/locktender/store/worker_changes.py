"""The rules of workers' verbs in every store: which renewals matter, how an attempt may end."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final

from locktender.base.changes import End
from locktender.base.events import Change
from locktender.base.model import Failure, WorkerRow
from locktender.base.states import ACTIVE_RUNS, RunState, TaskState
from locktender.store.decode import Row, decode_failure, encode
from locktender.store.protocol import Lost

LEFT_BEHIND: Final[bytes] = encode(
    Failure("drained", "its worker was asked to end, and ended before it")
)
"""The error of a row that the leader handed back for a lost worker: its body ran until the process ended,
and its slots stay taken for as long as the pool's lease says."""
_REPORTED = (
    *("full", "share", "permits", "total", "claim"),
    *("labels", "steps", "draining", "listens"),
)
"""The fields by which the leader decides; changes of others do not wake it."""


def is_news(before: WorkerRow, worker: WorkerRow) -> bool:
    """Whether the leader must read the workers again."""
    return any(getattr(before, name) != getattr(worker, name) for name in _REPORTED)


def changed(before: WorkerRow | None, worker: WorkerRow) -> Change | None:
    """The event of a renewal; None: nothing to record. `before` is None where it cannot be read."""
    if before is not None and (before.permits, before.labels, before.draining) == (
        worker.permits,
        worker.labels,
        worker.draining,
    ):
        return None
    return describe(worker, "joined", "changed")


def joined(worker: WorkerRow) -> Change:
    return describe(worker, "", "joined")


def left(worker: str) -> Change:
    return Change("worker", 0, "joined", "left", 0, {"worker": worker})


def lost(worker: str, reason: str) -> Change:
    return Change("worker", 0, "joined", "lost", 0, {"worker": worker, "reason": reason})


class _Everything:
    def __contains__(self, _: object) -> bool:
        return True


def held(row: Row, failure: Failure) -> Change:
    """The event of a run that becomes held, from its (state, started_at, verdict).

    A state that cannot be read is taken from the rest of its row.
    """
    state, started_at, verdict = row
    before = state
    if state not in ACTIVE_RUNS and state != RunState.WAITING:
        before = RunState.RUNNING if started_at else RunState.QUEUED
        before = RunState.CANCELLING if verdict == RunState.CANCELLED else before
    data = {"error": {"type": failure.type, "message": failure.message[:500]}}
    return Change("run", 0, before, RunState.HELD, 0, data)


def left_by(worker: WorkerRow | None) -> Container[tuple[int, int]]:
    """The (task, token) pairs in a worker's drain list; one that cannot be read is empty."""
    leaves: frozenset[tuple[int, int]] = frozenset(() if worker is None else worker.leaves)
    return _Everything() if worker is not None and worker.leaves_all else leaves


def take_back(
    lost: Lost, left: Container[tuple[int, int]], task: int, token: int, state: str
) -> Change:
    """The change of a task that a lost worker had. `left`: the worker's drain list.

    Matched by token too: the drain list may be older than a later attempt at the same task.
    """
    attempt, reason = (task, token), lost.reason
    if state != TaskState.RUNNING:
        lost.withdrawn.append(attempt)
        after = TaskState.REQUESTED
    elif attempt in left:
        lost.handed_back.append(attempt)
        after, reason = TaskState.HANDED_BACK, f"drain, {reason}"
    else:
        lost.abandoned.append(attempt)
        after = TaskState.ABANDONED
    return Change("task", task, state, after, token, {"reason": reason})


def describe(worker: WorkerRow, before: str, after: str) -> Change:
    data: dict[str, Any] = {
        "worker": worker.id,
        "permits": worker.permits,
        "labels": worker.labels,
        "draining": worker.draining,
    }
    return Change("worker", 0, before, after, 0, data)


def may_end(state: str, to: str) -> bool:
    """An attempt ends from *running*; an offer can only be handed back."""
    return state == TaskState.RUNNING or (
        state == TaskState.SCHEDULED and to == TaskState.HANDED_BACK
    )


def end_of(ended: End, before: str) -> Change:
    """The change an end makes."""
    data: dict[str, Any] = {}
    if ended.error is not None:
        failure = decode_failure(ended.error)
        data["error"] = {"type": failure.type, "message": failure.message}
        data["retryable"] = failure.retryable
    if ended.reason:
        data["reason"] = ended.reason
    return Change("task", ended.task, before, ended.state, ended.token, data or None)
