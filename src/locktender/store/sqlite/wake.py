"""Wakes waiting runs, and reads when they are to be woken."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from locktender.base.changes import TaskRow
from locktender.store.admission import WAITING
from locktender.store.protocol import Waiting, Wake, Woken, WokenRun
from locktender.store.sqlite.client_verbs import ceilings, count_admitted, lanes_for
from locktender.store.sqlite.leader_verbs import fence
from locktender.store.sqlite.session import SqliteSession, listed, record
from locktender.store.wakeups import judge_due, place_of, woken_event

T = TypeVar("T")


class SqliteWaiting(Waiting):
    """A part of `SqliteStore`."""

    def _write(self, verb: Callable[[SqliteSession], T]) -> Awaitable[T]:
        raise NotImplementedError

    def _read(self, verb: Callable[[SqliteSession], T]) -> Awaitable[T]:
        raise NotImplementedError

    async def wake(self, wake: Wake) -> Woken:
        return await self._write(lambda tx: wake_due(tx, wake))

    async def next_wake(self) -> int | None:
        return await self._read(next_wake)

    async def tasks_of(self, runs: Sequence[int]) -> list[TaskRow]:
        rows = await self._read(lambda tx: tx.all("tasks_of_runs", listed(runs)))
        return [TaskRow._make(row) for row in rows]

    async def wake_times(self, runs: Sequence[int]) -> dict[int, int]:
        return await self._read(lambda tx: wake_times(tx, runs))


def wake_due(tx: SqliteSession, wake: Wake) -> Woken:
    _, _, now = fence(tx, wake.term)
    limits = tx.limits()
    if mailed := _mailed(tx, wake.mailed):
        tx.run("wake_now", listed(mailed), now)
    plan = judge_due(limits, tx.all("waiting_due", now, wake.limit))
    if not plan.rows:
        return Woken([], next_wake(tx))
    lanes = lanes_for(tx, plan.signatures) if plan.signatures else {}
    woken: list[WokenRun] = []
    for due, sign in zip(plan.due, plan.signatures, strict=True):
        place = place_of(limits, due)
        woken.append(WokenRun(due.run, lanes[sign], place))
        plan.events.append((due.run, [woken_event(due, lanes[sign], place)]))
    tx.run("waiting_remove", listed(plan.rows))
    tx.each("run_wake", [(each.run, each.lane, *each.rank) for each in woken])
    tx.each("queue_add", [(each.lane, *each.rank, each.run) for each in woken])
    for failure, run in plan.held:
        tx.run("run_hold", failure, run)
    counted = ceilings(tx, limits, plan.tags, now)
    for tags in plan.tags:
        counted.count_woken(tags)
    count_admitted(tx, counted)
    if plan.tags:
        tx.each("counter_close", [(WAITING, len(plan.tags))])
    record(tx, now, wake.actor, plan.events, term=wake.term, cycle=wake.cycle)
    return Woken(woken, next_wake(tx), now, plan.held_ids)


def _mailed(tx: SqliteSession, runs: Sequence[int] | None) -> list[int]:
    """Those of `runs`, or of all, that wait and have mail that a task of them can take."""
    if runs is None:
        return [row[0] for row in tx.all("all_mailed_runs")]
    found = tx.all("mailed_runs", listed(runs)) if runs else []
    return [row[0] for row in found]


def next_wake(tx: SqliteSession) -> int | None:
    return tx.row("waiting_next")[0]


def wake_times(tx: SqliteSession, runs: Sequence[int]) -> dict[int, int]:
    found = tx.all("waiting_times", listed(runs))
    return {run: at for run, at in found if isinstance(at, int)}
