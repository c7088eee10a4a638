"""Retries of ended runs: under the same ceilings and keys as a submission; finished tasks keep their outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Final, NamedTuple

import msgspec

from locktender.base.errors import InvalidInput, NotFound
from locktender.base.ids import RunId
from locktender.base.model import RUN_AGAIN, NewRun
from locktender.base.states import RunState
from locktender.store.admission import Ceilings, rejected
from locktender.store.decode import Row, encode, read_tags
from locktender.store.protocol import Submitted

_RETRYABLE = frozenset({RunState.FAILED, RunState.CANCELLED, RunState.TIMED_OUT, RunState.HELD})


AGAIN: Final = encode(RUN_AGAIN)


class Again(NamedTuple):
    """A run to be queued again."""

    seq: int
    run: NewRun
    before: str
    generation: int
    deadline_us: int | None
    in_flight: int = 0
    """Of a held run: attempts that have not ended."""


def candidates(run_ids: Sequence[str], rows: Sequence[Row]) -> dict[str, Again]:
    """Rows of `retry_candidates` by id; `NotFound` where one is missing."""
    found = {row[1]: _again(row) for row in rows}
    for run_id in run_ids:
        if run_id not in found:
            raise NotFound(f"no run {run_id!r} is stored.", field="run", got=run_id)
    return found


def judge_retry(
    run_ids: Sequence[str],
    found: Mapping[str, Again],
    holders: Mapping[str, tuple[int, str]],
    ceilings: Ceilings,
    now: int,
    as_of: int,
    nodes: Sequence[int] = (),
) -> tuple[list[Submitted], list[Again]]:
    """The answers, and the runs to queue. `nodes`: those that run again in any case."""
    retryable = _RETRYABLE | {RunState.SUCCEEDED} if nodes else _RETRYABLE
    held = dict(holders)
    queue: list[Again] = []
    done: dict[str, Submitted] = {}
    for run_id in run_ids:
        if run_id in done:
            continue
        again = found[run_id]
        answer = done[run_id] = _answer(again, held, ceilings, now, as_of, retryable)
        if answer.outcome == "created" and again.before in retryable:
            queue.append(again)
            if again.run.key is not None:
                held[again.run.key] = again.seq, again.run.id
    return [done[run_id] for run_id in run_ids], queue


def _answer(
    again: Again,
    held: Mapping[str, tuple[int, str]],
    ceilings: Ceilings,
    now: int,
    as_of: int,
    retryable: Set[str],
) -> Submitted:
    seq, run, state, *_ = again
    if again.in_flight:
        return Submitted(run.id, seq, "in_flight", active=again.in_flight)
    if state == RunState.HELD:
        # It is active all the time: it has its key, and is counted.
        return Submitted(run.id, seq, "created")
    if state == RunState.SUCCEEDED and state not in retryable:
        return Submitted(run.id, seq, "finished")
    if state not in retryable:
        # Active already: a repetition of a call whose answer was lost.
        return Submitted(run.id, seq, "created")
    if run.key is not None and (holder := held.get(run.key)) is not None:
        return Submitted(holder[1], holder[0], "duplicate")
    if run.kind != "hold":
        full = ceilings.admit(run.tags, now)
        if full is not None:
            return rejected(run.id, seq, full, as_of)
    return Submitted(run.id, seq, "created")


def _again(row: Row) -> Again:
    seq, run_id, state, kind, flow, graph, tags, priority, key, generation, deadline, going_on = row
    run = NewRun(
        id=RunId(run_id),
        flow=flow,
        graph=graph,
        params=b"",
        consts=b"",
        tags=_tags(run_id, tags),
        priority=priority,
        key=key,
        kind=kind,
    )
    return Again(seq, run, state, generation, deadline, going_on)


def _tags(run_id: str, tags: str) -> dict[str, str]:
    try:
        return read_tags(tags)
    except msgspec.MsgspecError as error:
        raise InvalidInput(
            f"run {run_id} cannot be tried again: its tags cannot be read.",
            field="run",
            got=run_id,
            hint="Repair its row first, or cancel it.",
        ) from error
