"""The worker's verbs: join and renew, accept, finish, leave.

`accept` meets the leader's `withdraw`, `finish` meets its `expire`. Each reads
the row's (state, token) and changes it within one write transaction, so the
second of two finds the row moved and leaves it alone.
"""

from __future__ import annotations

import logging

from locktender.base.changes import Order
from locktender.base.events import NO_RUN, Change
from locktender.store.decode import encode, known_worker
from locktender.store.history import by_run
from locktender.store.protocol import Accept, Finish, Heartbeat, Renewed, Started
from locktender.store.sqlite.session import SqliteSession, listed, mapped, record
from locktender.store.worker_changes import changed, end_of, is_news, joined, left, may_end

log: logging.Logger = logging.getLogger(__name__)


def heartbeat(tx: SqliteSession, beat: Heartbeat) -> Renewed:
    now = tx.now()
    worker = beat.worker
    until = now + beat.lease_us
    known = tx.one("worker_get", worker.id)
    if known is None:
        if beat.renews or tx.one("worker_lost", worker.id) is not None:
            return Renewed(0, now)
        _save(tx, beat, now, until)
        if worker.provision:
            tx.run("asked_joined", now, worker.provision)
        tx.run("workers_changed")
        _record(tx, now, worker.id, joined(worker))
        return Renewed(until, now)
    since, lease_until, body = known
    # However late: its tasks are given to others only when the row is gone. It ended a lease of 0 itself.
    if not lease_until:
        return Renewed(0, now)
    _save(tx, beat, since, until)
    before = known_worker(body)
    if before is None or is_news(before, worker):
        tx.run("workers_changed")
    change = changed(before, worker)
    if change is not None:
        _record(tx, now, worker.id, change)
    return Renewed(until, now)


def _save(tx: SqliteSession, beat: Heartbeat, since: int, until: int) -> None:
    tx.run("worker_save", beat.worker.id, since, until, beat.lease_us, encode(beat.worker))


def _record(tx: SqliteSession, now: int, worker: str, change: Change) -> None:
    record(tx, now, f"worker:{worker}", [(NO_RUN, [change])])


def leave(tx: SqliteSession, worker: str) -> None:
    if tx.one("worker_get", worker) is None:
        return
    if tx.all("worker_tasks", listed([worker])):
        # Without its row these tasks would never be declared abandoned.
        tx.run("worker_end_lease", worker)
        return
    tx.run("worker_remove", worker)
    tx.run("workers_changed")
    _record(tx, tx.now(), worker, left(worker))


def orders(tx: SqliteSession, worker: str) -> list[Order]:
    return [Order(*row) for row in tx.all("orders_of", worker)]


def accept(tx: SqliteSession, accept: Accept) -> tuple[list[Started], int]:
    """What was started, and how many offers were stale."""
    now = tx.now()
    tokens = dict(accept.tasks)
    lease = tx.one("worker_get", accept.worker)
    if lease is None or not lease[1]:
        log.warning(
            "refused %d tasks that worker %s accepted: it is not a member",
            len(tokens),
            accept.worker,
        )
        return [], len(tokens)
    wanted = mapped(tokens)
    accepted = tx.all("task_accept", now, accept.worker, wanted)
    started = list(map(Started._make, tx.all("tasks_accepted", accept.worker, wanted)))
    if accepted:
        data = {"worker": accept.worker}
        changes = [
            Change("task", task, "scheduled", "running", token, data) for task, token in accepted
        ]
        tx.run("offer_remove", listed(tokens))
        record(tx, now, f"worker:{accept.worker}", by_run(changes).items())
    stale = len(tokens) - len(started)
    if stale:
        log.info("worker %s: %d offers were withdrawn before acceptance", accept.worker, stale)
    return started, stale


def finish(tx: SqliteSession, finish: Finish) -> list[tuple[int, int]]:
    now = tx.now()
    owned = {
        task: (token, state)
        for task, token, state, _ in tx.all("tasks_owned", listed(e.task for e in finish.ended))
    }
    stale: list[tuple[int, int]] = []
    rows: list[tuple[int, str, bytes | None, bytes | None]] = []
    changes: list[Change] = []
    for ended in finish.ended:
        token, state = owned.get(ended.task, (0, ""))
        if token == ended.token and may_end(state, ended.state):
            rows.append((ended.task, ended.state, ended.output, ended.error))
            changes.append(end_of(ended, state))
            owned[ended.task] = token, ended.state
        elif (token, state) != (ended.token, ended.state):
            stale.append((ended.task, ended.token))
    if rows:
        tx.each("task_finish", rows, now)
        tx.run("order_remove", listed(row[0] for row in rows))
        record(tx, now, f"worker:{finish.worker}", by_run(changes).items())
    if stale:
        log.warning(
            "worker %s: refused %d late results, first %s", finish.worker, len(stale), stale[0]
        )
    return stale
