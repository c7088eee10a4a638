"""States of runs and tasks, and the one table of legal changes with their owner.

A change that is not in the table is a bug wherever it is found: the checker
reads the same table that the leader and the workers write by.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class RunState(StrEnum):
    """Where a run stands: submitted, waiting, queued, running, cancelling, held; or how it ended."""

    SUBMITTED = "submitted"
    """In a transaction of an application; the leader has not taken it up yet."""
    QUEUED = "queued"
    """It waits for its place at the limits of runs."""
    RUNNING = "running"
    """It has its place: its tasks start as the other limits allow."""
    CANCELLING = "cancelling"
    """Its tasks are ended and its clean-up steps run."""
    WAITING = "waiting"
    """It waits for a time or an event and holds nothing: its rows are all there is of it."""
    HELD = "held"
    """Something of it cannot be read, decided or written: an operator or its deadline ends it."""
    SUCCEEDED = "succeeded"
    """Ended: no step failed for good."""
    FAILED = "failed"
    """Ended: a step failed for good; `retry` goes on from there."""
    CANCELLED = "cancelled"
    """Ended by a cancel, or dropped for a later run of its key."""
    TIMED_OUT = "timed_out"
    """Ended by its deadline."""
    REJECTED = "rejected"
    """It was submitted in a transaction of an application and refused when the leader saw it."""


class TaskState(StrEnum):
    """Where a task stands: requested (waits), scheduled (offered to a worker), running; or how it ended."""

    PENDING = "pending"
    """Not decided yet: the row of an earlier try of a retried run, or the last item of a map in slices."""
    REQUESTED = "requested"
    """It waits: `why` names the limits."""
    SCHEDULED = "scheduled"
    """It has its slots and is offered to a worker."""
    RUNNING = "running"
    """A worker runs its body."""
    COMPLETED = "completed"
    """Ended with a result."""
    FAILED = "failed"
    """Ended with an error, and no attempt is left."""
    CANCELLED = "cancelled"
    """Ended with its run."""
    TIMED_OUT = "timed_out"
    """Its last attempt took longer than `timeout`."""
    ABANDONED = "abandoned"
    """An attempt whose worker was lost."""
    HANDED_BACK = "handed_back"
    """An attempt that its worker gave back before its end: it runs elsewhere."""
    SKIPPED = "skipped"
    """Its body is not called: a condition is false, or a step before it was skipped or failed."""


class Owner(StrEnum):
    SUBMITTER = "submitter"
    LEADER = "leader"
    WORKER = "worker"


NEW: Final = "new"
"""The state before the first: what a row's first event comes from."""

ENDED_RUNS: Final = frozenset(
    {RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.TIMED_OUT}
)
TERMINAL_RUNS: Final = ENDED_RUNS | {RunState.REJECTED}
OUTBOX_RUNS: Final = frozenset({RunState.SUBMITTED, RunState.REJECTED})
"""States of submissions that the table of runs does not have."""
STORED_RUNS: Final = frozenset(RunState) - OUTBOX_RUNS
EXECUTING_RUNS: Final = frozenset({RunState.RUNNING, RunState.CANCELLING})
ACTIVE_RUNS: Final = EXECUTING_RUNS | {RunState.QUEUED, RunState.HELD}
HOLDING: Final = frozenset({TaskState.SCHEDULED, TaskState.RUNNING})
"""States in which a task holds its slots, its window place and a permit. *Requested* holds nothing."""

ENDS: Final = frozenset(
    {
        TaskState.COMPLETED,
        TaskState.FAILED,
        TaskState.CANCELLED,
        TaskState.TIMED_OUT,
        TaskState.SKIPPED,
    }
)
"""States a task can end in. Failed and timed_out end it only when no attempt follows."""

RUN_CHANGES: Final[dict[tuple[str, str], Owner]] = {
    (NEW, RunState.QUEUED): Owner.SUBMITTER,
    (NEW, RunState.WAITING): Owner.SUBMITTER,
    (RunState.WAITING, RunState.QUEUED): Owner.LEADER,
    (RunState.WAITING, RunState.CANCELLED): Owner.LEADER,
    (RunState.WAITING, RunState.HELD): Owner.LEADER,
    (RunState.QUEUED, RunState.RUNNING): Owner.LEADER,
    (RunState.QUEUED, RunState.CANCELLED): Owner.LEADER,
    (RunState.QUEUED, RunState.TIMED_OUT): Owner.LEADER,
    (RunState.QUEUED, RunState.FAILED): Owner.LEADER,
    (RunState.RUNNING, RunState.WAITING): Owner.LEADER,
    # To be ended, without a place: its clean-up takes one.
    (RunState.WAITING, RunState.RUNNING): Owner.LEADER,
    (RunState.RUNNING, RunState.CANCELLING): Owner.LEADER,
    (RunState.RUNNING, RunState.SUCCEEDED): Owner.LEADER,
    (RunState.RUNNING, RunState.FAILED): Owner.LEADER,
    (RunState.RUNNING, RunState.TIMED_OUT): Owner.LEADER,
    (RunState.CANCELLING, RunState.CANCELLED): Owner.LEADER,
    (RunState.QUEUED, RunState.HELD): Owner.LEADER,
    (RunState.RUNNING, RunState.HELD): Owner.LEADER,
    (RunState.CANCELLING, RunState.HELD): Owner.LEADER,
    (RunState.HELD, RunState.CANCELLED): Owner.LEADER,
    (RunState.HELD, RunState.TIMED_OUT): Owner.LEADER,
    # After a repair an operator retries it.
    (RunState.HELD, RunState.QUEUED): Owner.SUBMITTER,
    # A retried run is queued again, past the ceiling like any submission.
    (RunState.FAILED, RunState.QUEUED): Owner.SUBMITTER,
    # From one of its steps on.
    (RunState.SUCCEEDED, RunState.QUEUED): Owner.SUBMITTER,
    (RunState.CANCELLED, RunState.QUEUED): Owner.SUBMITTER,
    (RunState.TIMED_OUT, RunState.QUEUED): Owner.SUBMITTER,
}

TASK_CHANGES: Final[dict[tuple[str, str], Owner]] = {
    (NEW, TaskState.REQUESTED): Owner.LEADER,
    (NEW, TaskState.SKIPPED): Owner.LEADER,
    # The last item of a map that is expanded in slices.
    (NEW, TaskState.PENDING): Owner.LEADER,
    (TaskState.REQUESTED, TaskState.SCHEDULED): Owner.LEADER,
    # A wait that is over: it has no body.
    (TaskState.REQUESTED, TaskState.COMPLETED): Owner.LEADER,
    (TaskState.REQUESTED, TaskState.FAILED): Owner.LEADER,
    (TaskState.REQUESTED, TaskState.CANCELLED): Owner.LEADER,
    (TaskState.REQUESTED, TaskState.SKIPPED): Owner.LEADER,
    (TaskState.SCHEDULED, TaskState.REQUESTED): Owner.LEADER,
    (TaskState.SCHEDULED, TaskState.CANCELLED): Owner.LEADER,
    (TaskState.SCHEDULED, TaskState.RUNNING): Owner.WORKER,
    (TaskState.SCHEDULED, TaskState.HANDED_BACK): Owner.WORKER,
    (TaskState.RUNNING, TaskState.COMPLETED): Owner.WORKER,
    (TaskState.RUNNING, TaskState.FAILED): Owner.WORKER,
    (TaskState.RUNNING, TaskState.TIMED_OUT): Owner.WORKER,
    (TaskState.RUNNING, TaskState.CANCELLED): Owner.WORKER,
    # By the leader where the worker is lost and the task is in its drain list.
    (TaskState.RUNNING, TaskState.HANDED_BACK): Owner.WORKER,
    (TaskState.RUNNING, TaskState.ABANDONED): Owner.LEADER,
    (TaskState.FAILED, TaskState.REQUESTED): Owner.LEADER,
    (TaskState.TIMED_OUT, TaskState.REQUESTED): Owner.LEADER,
    (TaskState.ABANDONED, TaskState.REQUESTED): Owner.LEADER,
    (TaskState.ABANDONED, TaskState.FAILED): Owner.LEADER,
    (TaskState.ABANDONED, TaskState.CANCELLED): Owner.LEADER,
    (TaskState.HANDED_BACK, TaskState.REQUESTED): Owner.LEADER,
    (TaskState.HANDED_BACK, TaskState.CANCELLED): Owner.LEADER,
    # Only when a run is retried. A completed task runs again where a clean-up undid its work, or the
    # retry begins at its step or before.
    (TaskState.COMPLETED, TaskState.PENDING): Owner.LEADER,
    (TaskState.FAILED, TaskState.PENDING): Owner.LEADER,
    (TaskState.TIMED_OUT, TaskState.PENDING): Owner.LEADER,
    (TaskState.CANCELLED, TaskState.PENDING): Owner.LEADER,
    (TaskState.SKIPPED, TaskState.PENDING): Owner.LEADER,
    # Only when a held run is retried: it was left with tasks that wait.
    (TaskState.REQUESTED, TaskState.PENDING): Owner.LEADER,
    (TaskState.ABANDONED, TaskState.PENDING): Owner.LEADER,
    (TaskState.HANDED_BACK, TaskState.PENDING): Owner.LEADER,
    (TaskState.PENDING, TaskState.REQUESTED): Owner.LEADER,
    (TaskState.PENDING, TaskState.SKIPPED): Owner.LEADER,
}
