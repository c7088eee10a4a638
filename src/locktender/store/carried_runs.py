"""Rows of runs that the notification of their submission carries, so that a leader need not read them.

A notification proves nothing: any program that can connect can notify. So the commit that starts or ends a run by
what a notification said of it compares that with the stored row (`Commit.as_carried`), and is refused where they
differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from locktender.base.errors import NotLeader
from locktender.base.model import RunRow
from locktender.base.states import RunState
from locktender.store import decode
from locktender.store.decode import encode_tags

if TYPE_CHECKING:
    from locktender.base.commits import Commit

MAX_CARRIED_BYTES = 4_000
"""Of the rows in one notification, which has room for 8,000 bytes. Larger ones are read by the leader."""


class _Carried(NamedTuple):
    """What is stored of a run that was just queued, but its number. All else of such a row is always the same."""

    id: str
    kind: str
    flow: str
    graph: str
    tags: str
    priority: int
    lane: int
    queued_at: int
    deadline_at: int | None
    queue_timeout_us: int | None
    dispatch_deadline_us: int | None
    params: bytes
    consts: bytes
    trace: str | None


_decode = msgspec.json.Decoder(list[_Carried]).decode
_SUBMITTED = (1, 2, 3, 4, 5, 6, 8, 12, 14, 15, 16, 17, 18, 19)
"""Where these stand in a row of `AdmissionPlan.runs`."""


def carried(runs: Sequence[Sequence[Any]]) -> str | None:
    """The text that a notification carries of these rows to be submitted; None: they are too large."""
    if sum(len(row[17]) + len(row[18]) for row in runs) > MAX_CARRIED_BYTES:
        return None
    text = msgspec.json.encode([[row[place] for place in _SUBMITTED] for row in runs])
    return text.decode() if len(text) <= MAX_CARRIED_BYTES else None


def read_carried(first: int, last: int, text: str) -> list[RunRow]:
    """The rows of the runs from `first` to `last`; none where the text is not what it should be."""
    if r"\u0000" in text:  # no text of PostgreSQL has it
        return []
    try:
        found = _decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        return []
    if len(found) != last + 1 - first:
        return []
    return [_row(seq, each) for seq, each in enumerate(found, first)]


def _row(seq: int, told: _Carried) -> RunRow:
    return decode.run(
        (
            *(seq, told.id, told.flow, told.graph, told.params, told.consts, told.tags, told.priority),
            *(None, told.kind, 0, RunState.QUEUED.value, None, told.lane, None, told.queued_at, 0, 0),
            *(told.deadline_at, told.queue_timeout_us, told.dispatch_deadline_us, None, None, told.trace),
        )
    )  # fmt: skip


def compared(row: RunRow) -> tuple[Any, ...]:
    """What must be as in the stored row: all but the lane, which new limits change."""
    return (
        *(row.seq, row.id, row.kind, row.flow, row.graph, encode_tags(row.tags)),
        *(row.priority, row.queued_at, row.deadline_at, row.queue_timeout_us),
        *(row.dispatch_deadline_us, row.params, row.consts, row.trace),
    )


def not_as_carried(commit: Commit) -> NotLeader:
    runs = ", ".join(str(row.seq) for row in commit.as_carried)
    return NotLeader(
        f"one of the runs {runs} differs from the notification of its submission:"
        " the leader reads everything again.",
        field="as_carried",
    )
