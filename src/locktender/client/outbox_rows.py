"""Runs that are still in the outbox, or were refused there, as rows: reads of runs find them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from locktender.base.errors import InvalidInput, LocktenderError, NotFound
from locktender.base.ids import RunId
from locktender.base.model import Failure, RunRow
from locktender.base.states import OUTBOX_RUNS, RunState
from locktender.client.refusals import refusal
from locktender.store.outbox import unpack_answer, unpack_run
from locktender.store.protocol import OutboxAnswer, OutboxEntry, RunFilter, Store, Submitted

if TYPE_CHECKING:
    from locktender.observe.why import Why

MAX_LISTED = 10_000
"""Submissions that a list looks through."""
_INSTEAD = frozenset({"attached", "finished"})
"""Outcomes by which another run stands for this one."""


async def find_row(store: Store, run_id: str) -> RunRow | None:
    """The row of a run, or what stands for it while it is in the outbox."""
    row = await store.run(run_id)
    if row is not None:
        return row
    entry = await store.outbox_entry(run_id)
    if entry is None:
        # It may have been moved between the two reads.
        return await store.run(run_id)
    answer = None if entry.answer is None else unpack_answer(entry.answer)
    if answer is not None and answer.submitted is not None and _stands_for(answer.submitted):
        return await store.run(answer.submitted.id)
    return _row(entry, answer)


async def outbox_runs(store: Store, where: RunFilter) -> list[RunRow]:
    """Submissions that became no run, of the states, tags and flow that are asked for, the newest first."""
    wanted = OUTBOX_RUNS.intersection(where.states or ())
    if not wanted or where.before is not None or not await store.outbox_used():
        return []
    found: list[RunRow] = []
    for entry in await store.outbox_newest(MAX_LISTED):
        answer = None if entry.answer is None else unpack_answer(entry.answer)
        if answer is not None and answer.submitted is not None and _stands_for(answer.submitted):
            continue
        row = _row(entry, answer)
        fits = where.flow in (None, row.flow) and where.tags.items() <= row.tags.items()
        if row.state in wanted and fits:
            found.append(row)
    return found[: where.limit]


async def rejection(store: Store, run_id: str) -> LocktenderError:
    """What `result()` raises for a run that was refused."""
    entry = await store.outbox_entry(run_id)
    if entry is None or entry.answer is None:
        return NotFound(f"there is no run {run_id!r}.", field="run", got=run_id)
    return _error(entry, unpack_answer(entry.answer))


def _stands_for(submitted: Submitted) -> bool:
    return submitted.outcome in _INSTEAD


def _error(entry: OutboxEntry, answer: OutboxAnswer) -> LocktenderError:
    if answer.submitted is not None:
        found = refusal(answer.submitted, unpack_run(entry.body).run)
        if found is not None:
            return found
    said = "it was refused" if answer.failure is None else answer.failure.message
    return InvalidInput(f"run {entry.id} was refused: {said}", field="run", got=entry.id)


def _row(entry: OutboxEntry, answer: OutboxAnswer | None) -> RunRow:
    try:
        run = unpack_run(entry.body).run
    except msgspec.MsgspecError:
        run = None
    failure = None
    if answer is not None:
        error = _error(entry, answer)
        failure = msgspec.json.encode(Failure(error.code, str(error), retryable=False))
    return RunRow(
        seq=0,
        id=RunId(entry.id),
        flow="" if run is None else run.flow,
        graph="" if run is None else run.graph,
        params=b"{}" if run is None else run.params,
        consts=b"[]" if run is None else run.consts,
        tags={} if run is None else run.tags,
        priority=0 if run is None else run.priority,
        key=None if run is None else run.key,
        kind="flow",
        generation=0,
        state=RunState.SUBMITTED if answer is None else RunState.REJECTED,
        verdict=None,
        lane=0,
        waits_for=None,
        queued_at=entry.at,
        started_at=0,
        ended_at=entry.answered_at or 0,
        deadline_at=None,
        queue_timeout_us=None,
        dispatch_deadline_us=None,
        output=None,
        error=failure,
    )


def unmoved(row: RunRow, now: int) -> Why:
    """Why a submission in the outbox became no run."""
    from locktender.observe.why import Why

    if row.state == RunState.SUBMITTED:
        note = "It was submitted in a transaction of an application. The leader takes it up within 0.1 s."
    else:
        note = (
            "It was refused."
            if row.error is None
            else msgspec.json.decode(row.error, type=Failure).message
        )
    why = Why("run", row.id, row.flow, row.state, row.queued_at, now, note=note)
    return msgspec.structs.replace(why, ended_at=row.ended_at)
