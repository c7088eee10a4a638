"""Wakes waiting runs, and reads when they are to be woken."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from locktender.base.changes import TaskRow
from locktender.base.events import pack
from locktender.store import postgres
from locktender.store.admission import WAITING, WINDOW_SECONDS, counter_names
from locktender.store.postgres.composed_sql import Parts, columns
from locktender.store.postgres.session import LockTaken, PostgresSession, leading_alone, pairs
from locktender.store.protocol import Waiting, Wake, Woken, WokenRun
from locktender.store.wakeups import judge_due, place_of, woken_event

T = TypeVar("T")


class PostgresWaiting(Waiting):
    """A part of `PostgresStore`."""

    def _lead(self, verb: Callable[[PostgresSession], Awaitable[T]]) -> Awaitable[T]:
        raise NotImplementedError

    def _read(self, verb: Callable[[PostgresSession], Awaitable[T]]) -> Awaitable[T]:
        raise NotImplementedError

    async def wake(self, wake: Wake) -> Woken:
        return await self._lead(lambda tx: wake_due(tx, wake))

    async def next_wake(self) -> int | None:
        return await self._read(next_wake)

    async def tasks_of(self, runs: Sequence[int]) -> list[TaskRow]:
        rows = await self._read(lambda tx: tx.all("tasks_of_runs", list(runs)))
        return [TaskRow._make(row) for row in rows]

    async def wake_times(self, runs: Sequence[int]) -> dict[int, int]:
        return await self._read(lambda tx: wake_times(tx, runs))


async def wake_due(tx: PostgresSession, wake: Wake) -> Woken:
    if (quick := await postgres.quick_wake.wake_quickly(tx, wake)) is not None:
        return quick
    try:
        return await _wake_alone(tx, wake)
    except LockTaken:
        return Woken([], None, busy=True)


async def _wake_alone(tx: PostgresSession, wake: Wake) -> Woken:
    # Submitters decide by what this changes: it holds their lock, as a commit that ends a keyed run does.
    async with tx.transaction(leading_alone(wake.patient)):
        # Before the fence, which gives the transaction its id: an event that is sent behind it has a greater
        # one, and would stand behind the wake-up in the history. It wakes its run the next time.
        [[now]], [[version]] = await tx.several(("now", ()), ("limits_version", ()))
        mailed = await _mailed(tx, wake.mailed)
        await postgres.recovery.fence(tx, wake.term)
        limits = await tx.limits(version)
        if mailed:
            await tx.run("wake_now", mailed, now)
        plan = judge_due(limits, await tx.all("waiting_due", now, wake.limit))
        if not plan.rows:
            return Woken([], await next_wake(tx))
        lanes = (
            await postgres.client_verbs.lanes_for(tx, plan.signatures) if plan.signatures else {}
        )
        woken: list[WokenRun] = []
        for due, sign in zip(plan.due, plan.signatures, strict=True):
            place = place_of(limits, due)
            woken.append(WokenRun(due.run, lanes[sign], place))
            plan.events.append((due.run, [woken_event(due, lanes[sign], place)]))
        for failure, run in plan.held:
            await tx.run("run_hold", failure, run)
        names = counter_names(limits, plan.tags)
        counted, [drained] = await tx.several(
            ("counters_by_name", (sorted(names),)), ("drain_recent", (WINDOW_SECONDS,))
        )
        counters = postgres.client_verbs.ceilings(limits, counted, drained)
        for tags in plan.tags:
            counters.count_woken(tags)
        parts = Parts()
        parts.add("now", alias="clock")
        parts.add("open_fence", alias="fence")
        parts.add("waiting_remove", sorted(plan.rows))
        if woken:
            moves = [(each.run, each.lane, *each.rank) for each in woken]
            parts.add("run_wake", *columns(moves, 4))
            places = [(each.lane, *each.rank, each.run) for each in woken]
            parts.add("queue_add", *columns(places, 4))
        if counters.added:
            parts.add("counter_admit", *columns(sorted(counters.added.items()), 2))
            parts.add("closing_given", [WAITING], [len(plan.tags)], alias="closing")
            parts.add("counter_close")
        if plan.events:
            told = [(run, pack(changes)) for run, changes in plan.events]
            parts.add("events_given", *columns(told, 2), alias="told")
            parts.add("event_add", now, wake.term, wake.cycle, wake.actor)
        parts.add("wake", *tx.hint("wake"))
        await tx.compose(parts)
        return Woken(woken, await next_wake(tx), now, plan.held_ids)


async def _mailed(tx: PostgresSession, runs: Sequence[int] | None) -> list[int]:
    """Those of `runs`, or of all, that wait and have mail that a task of them can take."""
    if runs is None:
        return [row[0] for row in await tx.all("all_mailed_runs")]
    found = await tx.all("mailed_runs", sorted(runs)) if runs else []
    return [row[0] for row in found]


async def next_wake(tx: PostgresSession) -> int | None:
    return (await tx.row("waiting_next"))[0]


async def wake_times(tx: PostgresSession, runs: Sequence[int]) -> dict[int, int]:
    return pairs(await tx.all("waiting_times", list(runs)))
