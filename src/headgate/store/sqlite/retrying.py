"""Queueing ended runs again: past the ceiling and the key like any submission, keeping what they finished."""

from __future__ import annotations

from headgate.base.errors import NotFound
from headgate.base.events import Change
from headgate.base.ids import RunId
from headgate.base.model import NewRun
from headgate.base.states import RunState
from headgate.kernel.lanes import rank
from headgate.store.lanes import lane_name
from headgate.store.protocol import Submitted
from headgate.store.sqlite.admission import Ceilings
from headgate.store.sqlite.decode import decode_tags
from headgate.store.sqlite.history import CLIENT, record
from headgate.store.sqlite.session import Row, Session, listed
from headgate.store.sqlite.submission import lanes_for, queued_event

_RETRYABLE = frozenset({RunState.FAILED, RunState.CANCELLED, RunState.TIMED_OUT})


def retry(tx: Session, run_ids: list[str]) -> list[Submitted]:
    rows = {row[1]: row for row in tx.all("retry_candidates", listed(run_ids))}
    for run_id in run_ids:
        if run_id not in rows:
            raise NotFound(f"no run {run_id!r} is stored.", field="run", got=run_id)
    return _Again(tx, rows).queue(run_ids)


class _Again:
    def __init__(self, tx: Session, rows: dict[str, Row]) -> None:
        self._tx = tx
        self._rows = rows
        self._runs = {run_id: _as_new(row) for run_id, row in rows.items()}
        _, self._as_of, self._now = tx.row("submit_marks")
        self._limits = tx.limits()
        self._ceilings = Ceilings(tx, self._limits, (run.tags for run in self._runs.values()))
        keys = [run.key for run in self._runs.values() if run.key is not None]
        self._holders: dict[str, tuple[int, str]] = {
            key: (seq, run_id) for key, seq, run_id, *_ in tx.all("runs_by_key", listed(keys))
        }
        self._events: list[tuple[int, list[Change]]] = []

    def queue(self, run_ids: list[str]) -> list[Submitted]:
        done: dict[str, Submitted] = {}
        for run_id in run_ids:
            if run_id not in done:
                done[run_id] = self._one(self._rows[run_id], self._runs[run_id])
        self._ceilings.write()
        record(self._tx, self._now, CLIENT, self._events)
        return [done[run_id] for run_id in run_ids]

    def _one(self, row: Row, run: NewRun) -> Submitted:
        seq, _, state, *_ = row
        if state == RunState.SUCCEEDED:
            return Submitted(run.id, seq, "finished")
        if state not in _RETRYABLE:
            # Active already: a repetition of a call whose answer was lost.
            return Submitted(run.id, seq, "created")
        if run.key is not None and (holder := self._holders.get(run.key)) is not None:
            return Submitted(holder[1], holder[0], "duplicate")
        if run.kind != "hold":
            full = self._ceilings.admit(run.tags, self._now)
            if full is not None:
                return Submitted(
                    id=run.id,
                    seq=seq,
                    outcome="rejected",
                    ceiling=full.ceiling,
                    active=full.active,
                    limit=full.limit,
                    retry_after_us=full.retry_after_us,
                    as_of=self._as_of,
                )
        self._write(row, run)
        return Submitted(run.id, seq, "created")

    def _write(self, row: Row, run: NewRun) -> None:
        seq, _, state, *_, generation, deadline_us = row
        sign = lane_name(self._limits, kind=run.kind, tags=run.tags, key=run.key)
        lane = lanes_for(self._tx, [sign])[sign]
        place = rank(self._limits, run.priority, self._now)
        deadline_at = None if deadline_us is None else self._now + deadline_us
        self._tx.run("retry_run", generation + 1, lane, *place, self._now, deadline_at, seq)
        self._tx.each("queue_add", [(lane, *place, seq)])
        if run.key is not None:
            self._tx.each("key_take", [(run.key, seq)])
            self._holders[run.key] = seq, run.id
        change = queued_event(run, lane, place, before=state, generation=generation + 1)
        self._events.append((seq, [change]))


def _as_new(row: Row) -> NewRun:
    _, run_id, _, kind, flow, graph, tags, priority, key, *_ = row
    return NewRun(
        id=RunId(run_id),
        flow=flow,
        graph=graph,
        params=b"",
        consts=b"",
        tags=decode_tags(tags),
        priority=priority,
        key=key,
        kind=kind,
    )
