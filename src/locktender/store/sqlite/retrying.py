"""Queueing ended runs again: past the ceiling and the key like any submission, keeping what they finished."""

from __future__ import annotations

from locktender.base.limits import Limits
from locktender.kernel.lanes import rank
from locktender.store.history import CLIENT, RunChanges
from locktender.store.lanes import lane_name
from locktender.store.protocol import Submitted
from locktender.store.retrying import Again, candidates, judge
from locktender.store.sqlite.history import record
from locktender.store.sqlite.session import Session, listed
from locktender.store.sqlite.submission import ceilings, count_admitted, lanes_for
from locktender.store.submission import queued_event


def retry(tx: Session, run_ids: list[str]) -> list[Submitted]:
    found = candidates(run_ids, tx.all("retry_candidates", listed(run_ids)))
    _, as_of, now = tx.row("submit_marks")
    limits = tx.limits()
    counted = ceilings(tx, limits, (again.run.tags for again in found.values()), now)
    keys = [again.run.key for again in found.values() if again.run.key is not None]
    holders: dict[str, tuple[int, str]] = {
        key: (seq, run_id) for key, seq, run_id, *_ in tx.all("runs_by_key", listed(keys))
    }
    answers, queue = judge(run_ids, found, holders, counted, now, as_of)
    events = [_queue(tx, again, limits, now) for again in queue]
    count_admitted(tx, counted)
    record(tx, now, CLIENT, events)
    return answers


def _queue(tx: Session, again: Again, limits: Limits, now: int) -> RunChanges:
    run = again.run
    sign = lane_name(limits, kind=run.kind, tags=run.tags, key=run.key)
    lane = lanes_for(tx, [sign])[sign]
    place = rank(limits, run.priority, now)
    deadline_at = None if again.deadline_us is None else now + again.deadline_us
    generation = again.generation + 1
    tx.run("retry_run", generation, lane, *place, now, deadline_at, again.seq)
    tx.each("queue_add", [(lane, *place, again.seq)])
    if run.key is not None:
        tx.each("key_take", [(run.key, again.seq)])
    return again.seq, [queued_event(run, lane, place, before=again.before, generation=generation)]
