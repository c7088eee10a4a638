"""The history as rows: one event row per run and commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from locktender.base.events import NO_RUN, Change, EventRow, pack, read_changes
from locktender.base.ids import run_of
from locktender.base.states import TaskState

CLIENT = "client"

RunChanges = tuple[int, list[Change]]
"""A run and its changes in one commit."""
NewEvent = tuple[int, int, int, str, int, bytes]
"""(at, term, cycle, actor, run, body)"""

_ENDED = frozenset(
    {
        TaskState.COMPLETED,
        TaskState.FAILED,
        TaskState.CANCELLED,
        TaskState.TIMED_OUT,
        TaskState.ABANDONED,
        TaskState.HANDED_BACK,
        TaskState.SKIPPED,
    }
)


def event_rows(
    now: int, actor: str, changes: Iterable[RunChanges], *, term: int = 0, cycle: int = 0
) -> list[NewEvent]:
    """(run, its changes) pairs as rows to store."""
    packed = ((run, pack(several)) for run, several in changes)
    return packed_rows(now, actor, packed, term=term, cycle=cycle)


def packed_rows(
    now: int, actor: str, packed: Iterable[tuple[int, bytes]], *, term: int = 0, cycle: int = 0
) -> list[NewEvent]:
    return [(now, term, cycle, actor, run, body) for run, body in packed]


def by_run(changes: Iterable[Change]) -> Mapping[int, list[Change]]:
    """Changes of tasks under the runs they belong to; those of no task under no run."""
    found: dict[int, list[Change]] = {}
    for change in changes:
        run = run_of(change.task) if change.task else NO_RUN
        found.setdefault(run, []).append(change)
    return found


def news(events: Sequence[EventRow]) -> tuple[list[int], bool]:
    """Tasks that these events end, and whether they speak of limits."""
    ended: dict[int, None] = {}
    limits_changed = False
    for event in events:
        try:
            changes = read_changes(event.body)
        except (msgspec.MsgspecError, UnicodeError, TypeError):
            # Its reader says so; what it may have told is read again.
            limits_changed = True
            continue
        for change in changes:
            if change.subject == "task":
                if change.after in _ENDED:
                    ended[change.task] = None
            elif change.subject == "limit":
                limits_changed = True
    return list(ended), limits_changed
