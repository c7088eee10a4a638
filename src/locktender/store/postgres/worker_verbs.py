"""The worker's verbs: join and renew, accept, finish, leave.

`accept` meets the leader's `withdraw`, `finish` meets its `expire`. Each changes
the tasks' rows in the order of their ids, where state and token are what the caller
knows, in one statement: the second of two finds the row moved and leaves it alone.
Ends that this statement did not move are judged by a second one. An acceptance also
holds the worker's own row, so that a worker is declared lost before it or after it,
never beside it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from operator import itemgetter

from locktender.base.changes import End, Order
from locktender.base.events import NO_RUN, Change, pack
from locktender.base.ids import TASK_BITS
from locktender.base.states import TaskState
from locktender.store.decode import encode, known_worker
from locktender.store.postgres.composed_sql import (
    Parts,
    as_offset,
    columns,
    empty_if_null,
    once_if_equal,
)
from locktender.store.postgres.listener import ACCEPT
from locktender.store.postgres.session import PostgresSession, Row
from locktender.store.protocol import Accept, Finish, Heartbeat, Renewed, Started
from locktender.store.worker_changes import changed, end_of, is_news, joined, left

log: logging.Logger = logging.getLogger(__name__)

ACCEPTED_AT_ONCE = 500
ANSWERED_BYTES = 40 << 10
"""Of arguments, in the answer of the accepting statement. With 250 bytes a task beside them it fits into a socket
whose reader froze."""
_TASK_PLACEHOLDER, _TOKEN_PLACEHOLDER = 1_000_000_007, 1_000_000_009
"""The text of an event is made once with these and cut at them: the server puts each task's own there."""
_OWN = 6
"""So many columns of an answered row are the task's own. The next are shared by all tasks of its step and run."""
_FIRST = 10
"""The column that says whether the shared ones are in this row."""
_SMALL = 11
"""The column that says whether the row has the task whole; a large one is read later."""


async def heartbeat(tx: PostgresSession, beat: Heartbeat) -> Renewed:
    worker = beat.worker
    await _prove_life(tx, worker.id)
    known, [[now]] = await tx.several(("worker_get", (worker.id,)), ("now", ()))
    before = known_worker(known[0][2]) if known else None
    news = changed(before, worker) if known else joined(worker)
    parts = Parts()
    parts.add("now", alias="clock")
    save = "worker_renew" if beat.renews else "worker_save"
    parts.add(save, worker.id, beat.lease_us, encode(worker), alias="fence")
    if not known and worker.provision:
        parts.add("asked_joined", worker.provision)
    # A renewal that changes nothing wakes no process.
    if before is None or is_news(before, worker):
        parts.add("workers_changed")
        parts.add("wake", *tx.hint("beat"), alias="woken")
    else:
        parts.add("quiet", alias="woken")
    if news is not None:
        _record(parts, worker.id, [news])
    parts.add("beat_answer")
    rows = await tx.compose(parts)
    return Renewed(rows[0][0], rows[0][1]) if rows else Renewed(0, now)


async def _prove_life(tx: PostgresSession, worker: str) -> None:
    """The connection that renews keeps a lock: the server knows that the process lives when it is silent.

    Behind a pooler in transaction mode a session is nobody's: there the lease decides alone.
    """
    if tx.options.pooled or tx.known.proofs.get(worker) is tx.conn:
        return
    # Refused where the server still has our last connection: that one proves it until then.
    [locked] = await tx.row("life_lock", f"{tx.options.life_lock}{worker}")
    if locked:
        tx.known.proofs[worker] = tx.conn


def _record(parts: Parts, worker: str, changes: Sequence[Change]) -> None:
    parts.add("events_given", [NO_RUN], [pack(changes)], alias="told")
    parts.add("event_add", None, 0, 0, f"worker:{worker}")


async def leave(tx: PostgresSession, worker: str) -> None:
    if tx.known.proofs.pop(worker, None) is tx.conn:
        # Before the rest, which may fail: else the worker would count as stalled, with all it holds.
        await tx.row("life_unlock", f"{tx.options.life_lock}{worker}")
    async with tx.transaction():
        if await tx.one("worker_lock", worker) is None:
            return
        if await tx.all("worker_tasks", [worker]):
            # Without its row these tasks would never be declared abandoned.
            await tx.run("worker_end_lease", worker)
            return
        await tx.run("worker_remove", worker)
        parts = Parts()
        parts.add("now", alias="clock")
        parts.add("open_fence", alias="fence")
        parts.add("workers_changed")
        _record(parts, worker, [left(worker)])
        parts.add("wake", *tx.hint("leave"))
        await tx.compose(parts)


async def orders(tx: PostgresSession, worker: str) -> list[Order]:
    return [Order(*row) for row in await tx.all("orders_of", worker)]


async def accept(tx: PostgresSession, accept: Accept) -> tuple[list[Started], int]:
    """What was started, and how many offers were stale."""
    tokens = sorted(dict(accept.tasks).items())
    started: list[Started] = []
    for first in range(0, len(tokens), ACCEPTED_AT_ONCE):
        some = dict(tokens[first : first + ACCEPTED_AT_ONCE])
        started += await _accept(tx, accept.worker, some)
    stale = len(tokens) - len(started)
    if stale:
        log.info("worker %s: %d offers were withdrawn before acceptance", accept.worker, stale)
    return started, stale


async def _accept(tx: PostgresSession, worker: str, tokens: dict[int, int]) -> list[Started]:
    ids, given = list(tokens), list(tokens.values())
    parts = Parts()
    parts.add("now", alias="clock")
    parts.add("lease_fence", worker, alias="fence")
    texts = _event_texts("scheduled", "running", {"worker": worker})
    parts.add("task_accept", ids, *as_offset(ids, given), worker, *texts, alias="effect")
    parts.add("offer_remove")
    parts.add("events_moved", alias="told")
    parts.add("event_add", None, 0, 0, f"worker:{worker}")
    parts.add("wake_if_moved", *tx.hint(f"{ACCEPT} {worker}"), alias="woken")
    parts.add("accept_answer", ANSWERED_BYTES)
    answered = await tx.compose(parts)
    started = _started(answered)
    # The large ones are read when nothing is held for them any more. And the repetition of an
    # acceptance whose answer was lost is answered with what it had started.
    if len(answered) > len(started) or (len(started) < len(tokens) and await _member(tx, worker)):
        missing = sorted(tokens.items() - {(each.task, each.token) for each in started})
        rows = await tx.all("tasks_accepted", worker, *columns(missing, 2))
        started += map(Started._make, rows)
    return sorted(started, key=itemgetter(0))


def _started(answered: Sequence[Row]) -> list[Started]:
    """The tasks that were told whole. One row of each step of a run has what its tasks share."""
    shared = {
        (row[0] >> TASK_BITS, row[2]): row[_OWN:_FIRST]
        for row in answered
        if row[_FIRST] and row[_SMALL]
    }
    return [
        Started._make((*row[:_OWN], *common))
        for row in answered
        if row[_SMALL] and (common := shared.get((row[0] >> TASK_BITS, row[2]))) is not None
    ]


def _event_texts(before: str, after: str, data: dict[str, object] | None) -> list[str]:
    """The text of a task's event, cut where its number and its token stand."""
    text = pack(Change("task", _TASK_PLACEHOLDER, before, after, _TOKEN_PLACEHOLDER, data)).decode()
    head, _, rest = text.partition(str(_TASK_PLACEHOLDER))
    middle, _, tail = rest.partition(str(_TOKEN_PLACEHOLDER))
    return [head, middle, tail]


async def _member(tx: PostgresSession, worker: str) -> bool:
    row = await tx.one("worker_get", worker)
    return row is not None and row[1] > 0


async def finish(tx: PostgresSession, finish: Finish) -> list[tuple[int, int]]:
    """The stale ones, in the order they were given."""
    stale: set[End] = set()
    ended: list[End] = list(dict.fromkeys(finish.ended))
    while ended:
        # A task named twice with different ends: the second is judged after the first was written.
        first = {each.task: each for each in reversed(ended)}
        stale |= await _finish(tx, finish.worker, [first[task] for task in sorted(first)])
        ended = [each for each in ended if first[each.task] is not each]
    if stale:
        log.warning("worker %s: refused %d late results", finish.worker, len(stale))
    seen = dict.fromkeys(each for each in finish.ended if each in stale)
    return [(each.task, each.token) for each in seen]


async def _finish(tx: PostgresSession, worker: str, ended: list[End]) -> set[End]:
    """The stale ones. A second statement judges those that do not run here, and moves declined offers."""
    if not any(each.state == TaskState.HANDED_BACK for each in ended):
        ended = await _finish_running(tx, worker, ended)
    return await _finish_owned(tx, worker, ended) if ended else set()


async def _finish_running(tx: PostgresSession, worker: str, ended: list[End]) -> list[End]:
    """Ends those that run here; returns the others."""
    ids, tokens, states, outputs, errors, *_ = columns(ended, 7)
    changes = [
        None if _succeeded(each) else pack(end_of(each, TaskState.RUNNING)).decode()
        for each in ended
    ]
    texts = _event_texts(TaskState.RUNNING, TaskState.COMPLETED, None)
    parts = Parts()
    parts.add("now", alias="clock")
    parts.add("open_fence", alias="fence")
    parts.add(
        "task_finish_running",
        *(
            ids,
            *as_offset(ids, tokens),
            once_if_equal(states),
            empty_if_null(outputs),
            empty_if_null(errors),
            empty_if_null(changes),
        ),
        *texts,
        alias="effect",
    )
    parts.add("idle_moved", alias="idle")
    parts.add("order_remove")
    parts.add("events_moved", alias="told")
    parts.add("event_add", None, 0, 0, f"worker:{worker}")
    parts.add("wake_if_moved", *tx.hint("finish"), alias="woken")
    parts.add("finish_count", len(ended))
    moved, _, which = (await tx.compose(parts))[0]
    if moved == len(ended):
        return []
    # Not judged again: the leader may have asked for one of these anew meanwhile.
    written: set[int] = set(which or ())
    return [each for each in ended if each.task not in written]


def _succeeded(end: End) -> bool:
    """Whether its event says nothing but that."""
    return end.state == TaskState.COMPLETED and end.error is None and not end.reason


async def _finish_owned(tx: PostgresSession, worker: str, ended: list[End]) -> set[End]:
    given: list[Sequence[object]] = []
    for each in ended:
        change = pack(end_of(each, TaskState.RUNNING)).decode()
        declined = (
            pack(end_of(each, TaskState.SCHEDULED)).decode()
            if each.state == TaskState.HANDED_BACK
            else None
        )
        given.append((each.task, each.token, each.state, each.output, each.error, change, declined))
    parts = Parts()
    parts.add("now", alias="clock")
    parts.add("open_fence", alias="fence")
    parts.add("ended_owned", *map(empty_if_null, columns(given, 7)), alias="tasks_owned")
    parts.add("task_finish", alias="effect")
    parts.add("idle_moved", alias="idle")
    parts.add("order_remove")
    parts.add("events_moved", alias="told")
    parts.add("event_add", None, 0, 0, f"worker:{worker}")
    parts.add("wake_if_moved", *tx.hint("finish"), alias="woken")
    parts.add("finish_answer", len(ended))
    rows = await tx.compose(parts)
    if rows[0][0] == len(ended):
        return set()
    _, owned, moved = moves(rows)
    return {
        each
        for each in ended
        if each.task not in moved and owned.get(each.task) != (each.token, each.state)
    }


def moves(rows: Sequence[Row]) -> tuple[bool, dict[int, tuple[int, str]], set[int]]:
    """Was the fence open; (token, state) of each task before; which were moved."""
    (_, fenced, *_), *rest = rows
    owned = {task: (token, state) for task, token, state, moved in rest if not moved}
    return bool(fenced), owned, {row[0] for row in rest if row[3]}
