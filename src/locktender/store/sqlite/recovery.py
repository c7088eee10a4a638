"""The leader withdraws offers, declares workers lost, reassigns queue lanes and removes empty ones."""

from __future__ import annotations

from collections.abc import Callable

from locktender.base.clock import SECOND
from locktender.base.events import NO_RUN, Change
from locktender.base.model import Proof, WorkerLife, WorkerRow
from locktender.base.states import TaskState
from locktender.kernel.lanes import rank
from locktender.store import worker_changes
from locktender.store.decode import decode_tags, known_worker, lease_end, life, read_keeps
from locktender.store.history import by_run
from locktender.store.lanes import lane_name
from locktender.store.protocol import (
    BoundCache,
    Expire,
    Lost,
    ReassignLanes,
    RemoveUnused,
    Withdraw,
)
from locktender.store.sqlite.client_verbs import lanes_for
from locktender.store.sqlite.leader_verbs import fence, move
from locktender.store.sqlite.session import SqliteSession, listed, record

_REMEMBER_US = 86_400 * SECOND


def withdraw(tx: SqliteSession, withdraw: Withdraw) -> list[tuple[int, int]]:
    _, _, now = fence(tx, withdraw.term)
    tokens = dict(withdraw.tasks)
    done: list[tuple[int, int]] = []
    changes: list[Change] = []
    for task, token, state, _ in tx.all("tasks_owned", listed(tokens)):
        if token != tokens[task]:
            continue
        if state == TaskState.SCHEDULED:
            changes.append(
                Change("task", task, state, withdraw.to, token, {"reason": withdraw.reason})
            )
        elif state != withdraw.to:
            continue
        done.append((task, token))
    if changes:
        ids = listed(change.task for change in changes)
        tx.run("task_withdraw", withdraw.to, now, ids)
        tx.run("order_remove", ids)
        record(
            tx,
            now,
            withdraw.actor,
            by_run(changes).items(),
            term=withdraw.term,
            cycle=withdraw.cycle,
        )
    return done


def lives(tx: SqliteSession, proof: Callable[[str], Proof]) -> list[WorkerLife]:
    return [
        life(worker, until, lease_us, proof(worker))
        for worker, until, lease_us in tx.all("worker_leases")
    ]


def expire(tx: SqliteSession, expire: Expire) -> list[Lost]:
    _, _, now = fence(tx, expire.term)
    known = {worker: lease_end(until) for worker, until, _ in tx.all("worker_leases")}
    lost = {
        worker: Lost(worker, reason, [], [], until)
        for worker, until, reason in expire.dead
        if known.get(worker) == until
    }
    if not lost:
        return []
    left = {worker: worker_changes.left_by(_row_of(tx, worker)) for worker in lost}
    changes = [
        worker_changes.take_back(lost[worker], left[worker], task, token, state)
        for task, token, state, worker in tx.all("worker_tasks", listed(lost))
    ]
    abandoned = [task for entry in lost.values() for task, _ in entry.abandoned]
    handed_back = [task for entry in lost.values() for task, _ in entry.handed_back]
    withdrawn = [task for entry in lost.values() for task, _ in entry.withdrawn]
    tx.run("task_abandon", now, listed(abandoned))
    tx.run("task_hand_back", now, worker_changes.LEFT_BEHIND, listed(handed_back))
    tx.run("task_release", listed(withdrawn))
    tx.run("order_remove", listed(abandoned + handed_back + withdrawn))
    _remove_rows(tx, list(lost), now)
    gone = [worker_changes.lost(entry.worker, entry.reason) for entry in lost.values()]
    events = {NO_RUN: gone, **by_run(changes)}
    record(tx, now, expire.actor, events.items(), term=expire.term, cycle=expire.cycle)
    return list(lost.values())


def _row_of(tx: SqliteSession, worker: str) -> WorkerRow | None:
    return known_worker(tx.row("worker_get", worker)[2])


def _remove_rows(tx: SqliteSession, workers: list[str], now: int) -> None:
    for worker in workers:
        tx.run("worker_remove", worker)
    tx.each("lost_add", [(worker, now) for worker in workers])
    tx.run("lost_prune", now - _REMEMBER_US)
    tx.run("workers_changed")


def reassign_lanes(tx: SqliteSession, reassign: ReassignLanes) -> int:
    fence(tx, reassign.term)
    limits = tx.limits()
    rows = tx.all("queued_after", reassign.after, reassign.batch)
    signatures = [
        lane_name(
            limits,
            kind=kind,
            tags=decode_tags(tags),
            key=key,
            waits_for=waits_for,
            flow=flow,
            run=seq,
            keeps=read_keeps(keeps, limits),
        )
        for seq, kind, flow, tags, _, key, waits_for, keeps, *_ in rows
    ]
    lanes = lanes_for(tx, signatures)
    moves: list[tuple[int, int, int, int, int]] = []
    for row, sign in zip(rows, signatures, strict=True):
        seq, _, _, _, priority, _, _, _, *old, queued_at = row
        new = (lanes[sign], *rank(limits, priority, queued_at))
        if new != tuple(old):
            moves.append((seq, priority, *new))
    if moves:
        move(tx, moves)
    return rows[-1][0] if len(rows) == reassign.batch else 0


def remove_unused(tx: SqliteSession, remove: RemoveUnused) -> tuple[int, set[str]]:
    """The lane to continue after, and who has a row: workers and the leader."""
    fence(tx, remove.term)
    rows = tx.all("lanes_after", remove.after, remove.batch)
    tx.run("lanes_remove", listed(lane for lane, stood_in in rows if not stood_in))
    tx.run("buckets_remove")
    if not remove.after:
        tx.run("drain_orders_remove")
        tx.run("throttles_remove")
        unused = tx.all("counters_unused", remove.batch)
        tx.run("counter_remove", listed(name for (name,) in unused))
        tx.run("limit_history_remove", remove.before)
        tx.run("outbox_prune", remove.before)
    owners = {row[0] for row in tx.all("worker_leases")} | {tx.row("leader")[1]}
    return rows[-1][0] if len(rows) == remove.batch else 0, owners


def bound_cache(tx: SqliteSession, bound: BoundCache) -> bool:
    fence(tx, bound.term)
    expired = tx.run("cached_expire", tx.now(), bound.batch)
    count, size = tx.row("cached_total")
    gone = 0
    if count > bound.most or size > bound.most_bytes:
        gone = tx.run("cached_bound", bound.most, bound.most_bytes, bound.batch)
    return bound.batch in (expired, gone)
