"""The leader's commit: everything a cycle decided, in one statement with its fence.

A commit that only prepares (`Commit.preparing`) does not wait for the disk. The
acceptance of its offers does, and the log is flushed in order, so an offer is
durable before a body begins. If the server dies before that, the offer is gone:
the leader finds its last cycle missing, by its next commit or renewal, and
reloads its state.

The fence is the update of the leader's row: it passes only in the right term,
after the right cycle, and locks the row, so that a successor, which selects it
FOR UPDATE, waits for the commit in flight. A leader that was paused and resumes
finds a higher term there and changes nothing.

Parts of one statement do not see each other's rows. Several changes of one row in
a cycle are therefore folded into one (`folded_rows.py`). Some commits must read the
rows in between: they run the same parts one after another in a transaction, under
the submitters' lock:

  a run with a key ends: a replacement may be submitted that waits for it;
  runs end that are counted under tags: their tags name the counters;
  a waiting run ends: it is counted apart; queued runs move; so many tasks are new that COPY is used;
  the same run or task changes twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from typing import Any

import msgspec

from locktender.base.changes import Order
from locktender.base.commits import Commit, RunEnd, TaskSave
from locktender.base.errors import NotLeader, OutOfOrder, StoreBusy
from locktender.base.events import pack
from locktender.base.limits import Limits
from locktender.kernel.lanes import rank
from locktender.store.admission import WAITING, WINDOW_SECONDS, capped, closing
from locktender.store.carried_runs import compared, not_as_carried
from locktender.store.decode import decode_tags, keeps_text
from locktender.store.lanes import key_successors, let_go
from locktender.store.postgres.composed_sql import (
    Parts,
    as_offset,
    columns,
    empty_if_null,
    once_if_equal,
    without_zeros,
)
from locktender.store.postgres.folded_rows import TASK, Folded, fold
from locktender.store.postgres.listener import notices, sent_and_stored
from locktender.store.postgres.mailing import mail_parts
from locktender.store.postgres.result_cache import cache_parts
from locktender.store.postgres.session import PostgresSession, Row
from locktender.store.protocol import Committed

COPY_OVER = 1_000
"""More new tasks than this are copied in."""
_EMPTY_IN_NEW_ROWS = frozenset({"tries", "abandons", "output", "error", "ended_at", "not_before"})
"""Columns that `task_new_alike` writes as empty: a commit with others takes `task_new`."""
_ALIKE = frozenset(TASK) - {"id", "idx", "token", "input"}
"""Columns in which all new rows of a commit must agree to be written by `task_new_alike`."""
_NEW_SPREAD = frozenset({"node", "state", "requested_at"})
"""Columns that the statement `task_new` spreads where all tasks have the same; `task_save` these:"""
_SAVED_SPREAD = frozenset(
    {"state", "offers", "worker", "held", "requested_at", "scheduled_at", "eligible_at"}
)
_TRIES = 5


def not_leader(term: int, row: Row) -> NotLeader:
    current, owner, *_, moved = row
    return NotLeader(
        f"term {term} has ended with its history: the server was restarted or replaced."
        if moved and current == term
        else f"term {term} has ended; {owner!r} leads in term {current}.",
        field="term",
        got=term,
        hint="Stand for election again and reload.",
    )


async def commit(tx: PostgresSession, commit: Commit) -> Committed:
    sent, stored = sent_and_stored(commit.orders, tx.known.listening)
    told = notices((end.run for end in commit.runs_ended), sent, stored)
    commit = msgspec.structs.replace(commit, orders=stored)
    folded = fold(commit)
    long_way = folded.tangled or len(folded.new) > COPY_OVER or bool(commit.reprioritised)
    opened = {each.task for each in commit.waits_opened}
    long_way = long_way or not opened.isdisjoint(commit.waits_over)
    long_way = long_way or bool(commit.ended_waiting or commit.runs_waiting or commit.taken_up)
    for _ in range(_TRIES):
        version, limits = tx.known.limits
        if long_way or (commit.runs_ended and capped(limits)):
            answer = await _step_by_step(tx, commit, folded, version, limits, told)
        else:
            answer = await _at_once(tx, commit, folded, version, told)
        if answer is not None:
            return Committed(answer[0], answer[1])
        row = await tx.row("leader")
        term, _, _, cycle, seq, now, found, moved = row
        if term != commit.term or moved:
            raise not_leader(commit.term, row)
        if commit.cycle <= cycle:
            return Committed(seq, now)
        if commit.previous and commit.previous != cycle:
            # The commit before it failed and is retried: this one must wait for it.
            raise OutOfOrder(
                f"cycle {commit.cycle} follows cycle {commit.previous}, which is not written yet.",
                field="previous",
                got=commit.previous,
            )
        if found != version:
            await tx.limits(found)
        elif long_way and commit.as_carried:
            raise not_as_carried(commit)
        else:
            long_way = True
    raise StoreBusy("the limits changed during every try to write the cycle.", hint="Try again.")


class _Undo(Exception):
    """Ends the transaction of a dry run."""


async def dry_run(tx: PostgresSession, wanted: Commit) -> Committed:
    """What `commit` would answer or raise; nothing of it stays."""
    answer: Committed | None = None
    try:
        async with tx.transaction():
            answer = await commit(tx, wanted)
            raise _Undo
    except _Undo:
        assert answer is not None  # noqa: S101
        return answer


def _fence(parts: Parts, commit: Commit, version: int, *, keys: bool) -> None:
    parts.add("now", alias="clock")
    ended = [] if keys else sorted(end.run for end in commit.runs_ended)
    previous = commit.previous
    params = commit.term, commit.cycle, previous, version, len(commit.events), keys, ended
    if commit.as_carried:
        rows = [compared(row) for row in commit.as_carried]
        parts.add("cycle_fence_carried", *params, *columns(rows, len(rows[0])), alias="fence")
    else:
        parts.add("cycle_fence", *params, alias="fence")


async def offer_again(tx: PostgresSession, offers: list[Order]) -> None:
    sent, _ = sent_and_stored(offers, tx.known.listening)
    if sent:
        await tx.row("notify", *tx.hints(notices((), sent, ())))


def _record_events(parts: Parts, commit: Commit) -> None:
    runs = [each.run for each in commit.events]
    parts.add("events_given", runs, [pack(each.changes) for each in commit.events], alias="told")
    parts.add("event_add", commit.at or None, commit.term, commit.cycle, commit.actor)


def _by_run(rows: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    return sorted(rows, key=lambda row: row[0])


def _last(rows: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """Of rows about the same thing the last one: a statement changes a row only once."""
    return _by_run(list({row[0]: row for row in rows}.values()))


def _new_tasks(folded: Folded) -> tuple[str, list[Any]]:
    """The statement that inserts them, and its parameters."""
    found = dict(zip(TASK, columns(folded.new, len(TASK)), strict=True))
    first = {name: column[0] for name, column in found.items()}
    same = [name for name, column in found.items() if column.count(first[name]) == len(column)]
    if (
        folded.replaced
        or not _ALIKE.issubset(same)
        or any(first[name] for name in _EMPTY_IN_NEW_ROWS)
    ):
        return "task_new", [*_columns_of(folded.new, TASK, _NEW_SPREAD), folded.replaced]
    ids, same_index = found["id"], "idx" in same
    indexes, index_far = ([], None) if same_index else as_offset(ids, found["idx"])
    no_token = "token" in same and not first["token"]
    tokens, token_far = ([], None) if no_token else as_offset(ids, found["token"])
    return "task_new_alike", [
        *(ids, indexes, index_far, first["idx"], tokens, token_far, empty_if_null(found["input"])),
        *(first[name] for name in TASK if name in _ALIKE - _EMPTY_IN_NEW_ROWS),
    ]


def _columns_of(
    rows: Sequence[Sequence[Any]], fields: Sequence[str], spread: Set[str]
) -> list[list[Any]]:
    """Of tasks; the first column, their ids, says how many rows there are. `spread`: see `alike`."""
    ids, *others = columns(rows, len(fields))
    found = [ids]
    for name, column in zip(fields[1:], others, strict=True):
        sent = without_zeros(column)
        found.append(once_if_equal(sent) if name in spread else sent)
    return found


async def _at_once(
    tx: PostgresSession, commit: Commit, folded: Folded, version: int, told: list[str]
) -> Row | None:
    parts = Parts()
    _fence(parts, commit, version, keys=False)
    if folded.new:
        name, params = _new_tasks(folded)
        parts.add(name, *params)
    if folded.saved:
        parts.add("task_save", *_columns_of(folded.saved, TaskSave._fields, _SAVED_SPREAD))
    if folded.ended:
        parts.add("task_end", *columns(folded.ended, 4))
    if folded.idle:
        parts.add("idle_given", folded.idle, alias="idle")
        parts.add("order_remove")
    gone = sorted(row[0] for row in (*commit.runs_started, *commit.runs_ended))
    if gone:
        parts.add("queue_remove", gone)
    if commit.runs_started:
        parts.add("run_start", *columns(_by_run(commit.runs_started), 2))
    if commit.runs_marked:
        parts.add("run_mark", *columns(_last(commit.runs_marked), 4))
    if commit.runs_ended:
        parts.add("run_end", *columns(_by_run(commit.runs_ended), 5))
        parts.add("closing_all", alias="closing")
        parts.add("counter_close")
        parts.add("drain_add", WINDOW_SECONDS)
    for name, params in _others(commit):
        parts.add(name, *params)
    if commit.events:
        _record_events(parts, commit)
    answer = "commit_answer_unflushed" if commit.preparing else "commit_answer"
    parts.add(answer, *tx.hints(told))
    rows = await tx.compose(parts)
    return rows[0] if rows else None


def _task(order: Order) -> int:
    return order.task


def _others(commit: Commit) -> list[tuple[str, list[Any]]]:
    """What no other part of a commit touches."""
    found: list[tuple[str, list[Any]]] = []
    if commit.orders:
        orders = {(order.task, order.kind): order for order in commit.orders}
        found.append(("order_add", columns(sorted(orders.values(), key=_task), 5)))
    if commit.runs_unfolded:
        bodies = {each.graph: each.body for each in commit.runs_unfolded}
        found.append(("graph_add", columns(sorted(bodies.items()), 2)))
        unfolded = [(run, graph, consts) for run, graph, _, consts in commit.runs_unfolded]
        found.append(("run_unfold", columns(_by_run(unfolded), 3)))
    if commit.node_inputs:
        found.append(("node_input_add", columns(sorted(commit.node_inputs), 3)))
    if commit.buckets:
        found.append(("bucket_save", columns(_last(commit.buckets), 2)))
    if commit.reservations is not None:
        rows = columns(sorted(commit.reservations), 3)
        found.append(("reservation_clear", rows[:2]))
        if commit.reservations:
            found.append(("reservation_add", rows))
    if commit.lingers is not None:
        rows = columns(sorted(commit.lingers), 6)
        found.append(("linger_clear", rows[:3]))
        if commit.lingers:
            found.append(("linger_add", rows))
    if commit.placed:
        found.append(("unplaced_remove", [sorted(commit.placed)]))
    if commit.unplaced:
        found.append(("unplaced_add", [sorted(commit.unplaced)]))
    if commit.kept:
        kept = [(run, keeps_text(rules)) for run, rules in commit.kept]
        found.append(("kept_add", columns(_by_run(kept), 2)))
    if commit.silences is not None:
        rows = columns(sorted(commit.silences), 3)
        found.append(("silence_clear", rows[:1]))
        if commit.silences:
            found.append(("silence_add", rows))
    found += mail_parts(commit)
    found += cache_parts(commit)
    if commit.requests_done:
        found.append(("request_done", [sorted(commit.requests_done)]))
    return found


# -- the long way


async def step(tx: PostgresSession, name: str, *params: Any, idle: list[int] | None = None) -> None:
    """One part by itself, behind a fence that was passed before."""
    parts = Parts()
    parts.add("now", alias="clock")
    parts.add("open_fence", alias="fence")
    if idle is not None:
        parts.add("idle_given", idle, alias="idle")
    parts.add(name, *params)
    await tx.compose(parts)


async def _step_by_step(
    tx: PostgresSession,
    commit: Commit,
    folded: Folded,
    version: int,
    limits: Limits,
    told: list[str],
) -> Row | None:
    async with tx.transaction("begin_alone"):
        parts = Parts()
        _fence(parts, commit, version, keys=True)
        parts.add("commit_answer", *tx.hints(told))
        rows = await tx.compose(parts)
        if not rows:
            return None
        await _tasks(tx, folded)
        if commit.reprioritised:
            await _reprioritise(tx, commit.reprioritised, limits)
        if commit.runs_started:
            await step(tx, "run_start", *columns(_by_run(commit.runs_started), 2))
            await step(tx, "queue_remove", sorted(start.run for start in commit.runs_started))
        if commit.runs_waiting or commit.taken_up:
            await _write_waits(tx, commit, limits)
        if commit.runs_marked:
            await step(tx, "run_mark", *columns(_last(commit.runs_marked), 4))
        if commit.runs_ended:
            await _end(tx, commit.runs_ended, limits)
        for name, params in _others(commit):
            await step(tx, name, *params)
        if commit.events:
            history = Parts()
            history.add("now", alias="clock")
            history.add("open_fence", alias="fence")
            _record_events(history, commit)
            await tx.compose(history)
    return rows[0]


async def _tasks(tx: PostgresSession, folded: Folded) -> None:
    if folded.new:
        ids = [row[0] for row in folded.new]
        # Only the leader makes tasks, and the fence is ours: what is not there now will not be.
        if len(ids) > COPY_OVER and not await tx.all("tasks_known", ids):
            await tx.copy("task", TASK, folded.new)
        else:
            name, params = _new_tasks(folded)
            await step(tx, name, *params)
    if folded.saved:
        await step(tx, "task_save", *_columns_of(folded.saved, TaskSave._fields, _SAVED_SPREAD))
    if folded.idle:
        await step(tx, "order_remove", idle=folded.idle)
    if folded.ended:
        await step(tx, "task_end", *columns(folded.ended, 4))


async def _write_waits(tx: PostgresSession, commit: Commit, limits: Limits) -> None:
    """Executing runs begin to wait, and waiting ones are taken up to be ended. Under the submitters' lock."""
    if commit.taken_up:
        await end_waits(tx, commit.taken_up, limits)
    if waits := sorted(commit.runs_waiting):
        runs = [each.run for each in waits]
        await tx.run("run_wait", runs)
        await step(tx, "waiting_add", *columns(waits, 2))
        await _count(tx, Counter({WAITING: len(runs)}), await _counted(tx, limits, runs))


async def end_waits(tx: PostgresSession, runs: list[int], limits: Limits) -> None:
    """Waiting runs that count as active again. Under the submitters' lock."""
    await tx.run("waiting_remove", sorted(runs))
    await _count(tx, await _counted(tx, limits, sorted(runs)), Counter({WAITING: len(runs)}))


async def _count(tx: PostgresSession, admitted: Counter[str], closed: Counter[str]) -> None:
    await step(tx, "counter_admit", *columns(sorted(admitted.items()), 2))
    parts = Parts()
    parts.add("now", alias="clock")
    parts.add("closing_given", *columns(sorted(closed.items()), 2), alias="closing")
    parts.add("counter_close")
    await tx.compose(parts)


async def _counted(tx: PostgresSession, limits: Limits, runs: list[int]) -> Counter[str]:
    return closing(limits, [decode_tags(tags) for _, tags in await tx.all("runs_tags", runs)])


async def _end(tx: PostgresSession, ended: list[RunEnd], limits: Limits) -> None:
    ends = {end.run: end for end in ended}
    runs = await tx.all("runs_open", sorted(ends))
    if not runs:
        return
    ids = sorted(row[0] for row in runs)
    waited = [run for run, state, *_ in runs if state == "waiting"]
    if waited:
        await tx.run("waiting_remove", sorted(waited))
    closed = [
        decode_tags(tags)
        for _, state, kind, tags, *_ in runs
        if kind != "hold" and state != "waiting"
    ]
    names = closing(limits, closed, len(waited))
    parts = Parts()
    parts.add("now", alias="clock")
    parts.add("open_fence", alias="fence")
    parts.add("queue_remove", ids)
    if names:
        parts.add("closing_given", *columns(sorted(names.items()), 2), alias="closing")
        parts.add("counter_close")
        parts.add("drain_add", WINDOW_SECONDS)
    parts.add("run_end", *columns([ends[run] for run in ids], 5))
    await tx.compose(parts)
    keyed = {run: waits_for for run, _, _, _, key, waits_for in runs if key is not None}
    if keyed:
        for successor, run in key_successors(keyed):
            await tx.run("key_pass", successor, run)
        await tx.run("key_free", sorted(keyed))
        awaited = await tx.all("runs_awaited", sorted(keyed))
        for still, run in let_go(keyed, (row[0] for row in awaited)):
            await tx.run("run_waits_on", still, run)


async def _reprioritise(tx: PostgresSession, wanted: list[tuple[int, int]], limits: Limits) -> None:
    priorities = dict(wanted)
    moves: list[tuple[int, int, int, int, int]] = []
    for run, lane, _, _, queued_at in await tx.all("queued_runs_by_seq", sorted(priorities)):
        moves.append((run, priorities[run], lane, *rank(limits, priorities[run], queued_at)))
    await move(tx, sorted(moves))


async def move(tx: PostgresSession, moves: list[tuple[int, int, int, int, int]]) -> None:
    """Gives queued runs a new (priority, lane, rank1, rank2)."""
    # The old place is found from the run's row, so it goes before the row changes.
    await step(tx, "queue_remove", [run for run, *_ in moves])
    await tx.run("run_rank", *columns(moves, 5))
    await step(tx, "queue_add", *columns([(*place, run) for run, _, *place in moves], 4))
