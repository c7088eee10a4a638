"""The verbs of runs submitted by name: what workers announce of their flows, and schedules of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from locktender.base.announced import AnnouncedFlow
from locktender.base.schedules import ScheduleChange, ScheduleRow, TickRow
from locktender.store import postgres
from locktender.store.decode import announced_flows, encode
from locktender.store.postgres.composed_sql import columns
from locktender.store.postgres.session import LockTaken, PostgresSession, leading_alone
from locktender.store.protocol import SetSchedule, Submit, TickMove
from locktender.store.schedule_rows import (
    ALL_KEPT_CHANGES,
    KEPT_CHANGES,
    KEPT_TICKS,
    changed,
    schedule_row,
    settled,
    ticks_by_schedule,
)

T = TypeVar("T")


class PostgresNaming:
    """The part of a store that knows flows by name."""

    async def announce(self, flows: Sequence[AnnouncedFlow]) -> None:
        await self._write(lambda tx: _announce(tx, flows))

    async def flows(self, names: Sequence[str] | None = None) -> list[AnnouncedFlow]:
        return await self._query(lambda tx: _flows(tx, names))

    async def forget_flow(self, name: str) -> bool:
        return await self._write(lambda tx: _forget(tx, name))

    async def set_schedule(self, change: SetSchedule) -> ScheduleRow | None:
        return await self._write(lambda tx: _set(tx, change))

    async def schedules(self, names: Sequence[str] | None = None) -> list[ScheduleRow]:
        return await self._query(lambda tx: _schedules(tx, names))

    async def schedules_due(self, limit: int) -> list[ScheduleRow]:
        rows = await self._query(lambda tx: tx.all("schedule_due", limit))
        return [schedule_row(row) for row in rows]

    async def tick(self, term: int, moves: Sequence[TickMove], *, patient: bool = False) -> bool:
        return await self._lead(lambda tx: _tick(tx, term, moves, patient=patient))

    async def put_off(self, term: int, schedules: Sequence[str], until: int) -> None:
        await self._lead(lambda tx: _put_off(tx, term, schedules, until))

    async def ticks(self, schedules: Sequence[str], limit: int) -> dict[str, list[TickRow]]:
        rows = await self._query(lambda tx: tx.all("schedule_ticks", list(schedules), limit))
        return ticks_by_schedule(rows)

    async def schedule_history(self, schedule: str, limit: int) -> list[ScheduleChange]:
        rows = await self._query(lambda tx: tx.all("schedule_changes", schedule, limit))
        return [ScheduleChange(*row) for row in rows]

    def _write(self, verb: Callable[[PostgresSession], Awaitable[T]]) -> Awaitable[T]:
        raise NotImplementedError

    def _lead(self, verb: Callable[[PostgresSession], Awaitable[T]]) -> Awaitable[T]:
        raise NotImplementedError

    def _query(self, verb: Callable[[PostgresSession], Awaitable[T]]) -> Awaitable[T]:
        raise NotImplementedError


async def _announce(tx: PostgresSession, flows: Sequence[AnnouncedFlow]) -> None:
    if flows:
        rows = sorted((flow.name, encode(flow)) for flow in flows)
        await tx.run("flow_announce", *columns(rows, 2))


async def _flows(tx: PostgresSession, names: Sequence[str] | None) -> list[AnnouncedFlow]:
    rows = await (tx.all("flow_list") if names is None else tx.all("flow_get", list(names)))
    return announced_flows(rows)


async def _forget(tx: PostgresSession, name: str) -> bool:
    return bool(await tx.all("flow_forget", name))


async def _schedules(tx: PostgresSession, names: Sequence[str] | None) -> list[ScheduleRow]:
    rows = await (tx.all("schedule_list") if names is None else tx.all("schedule_get", list(names)))
    return [schedule_row(row) for row in rows]


async def _set(tx: PostgresSession, change: SetSchedule) -> ScheduleRow | None:
    async with tx.transaction():
        # Two that set one schedule, and the leader's tick of it, come one after the other.
        await tx.row("schedule_turn", change.name)
        [now] = await tx.row("now")
        [row] = await _schedules(tx, [change.name]) or [None]
        made = changed(row, change, now)
        before, after = (None if each is None else each.spec for each in (row, made))
        told = [None if each is None else encode(each) for each in (before, after)]
        if change.what == "declared":
            if _same(row, made):
                return row
            if row is not None or made is not None:
                await _declare(tx, change, made, now, told)
            return made
        if made is None:
            await tx.run("schedule_remove", change.name)
            await tx.run("schedule_ticks_remove", change.name)
        elif not _same(row, made):
            specs = (None if each is None else encode(each) for each in (made.declared, made.live))
            await tx.run(
                "schedule_put", made.name, made.version, made.next_at, *specs, encode(made.state)
            )
        else:
            return row
        if row is not None or made is not None:
            values = change.name, change.who, change.what
            await tx.run("schedule_change_add", now, *values, *told, change.reason)
            await tx.run("schedule_changes_trim", change.name, KEPT_CHANGES, ALL_KEPT_CHANGES)
    return made


def _same(row: ScheduleRow | None, made: ScheduleRow | None) -> bool:
    if row is None or made is None:
        return False
    return (made.declared, made.live) == (row.declared, row.live) and not row.state.stopped


async def _declare(
    tx: PostgresSession,
    change: SetSchedule,
    made: ScheduleRow | None,
    now: int,
    told: Sequence[bytes | None],
) -> None:
    """By a function of the schema: a worker's role may call it, and may not write the tables."""
    values: tuple[object, ...] = (None, None, None, None)
    if made is not None:
        declared = None if made.declared is None else encode(made.declared)
        values = made.version, made.next_at, declared, encode(made.state)
    await tx.run("schedule_declare", change.name, *values, now, *told, change.reason)


async def _put_off(tx: PostgresSession, term: int, schedules: Sequence[str], until: int) -> None:
    async with tx.transaction():
        await postgres.recovery.fence(tx, term)
        await tx.run("schedule_put_off", list(schedules), until)


async def _tick(
    tx: PostgresSession, term: int, moves: Sequence[TickMove], *, patient: bool
) -> bool:
    try:
        await _tick_alone(tx, term, moves, leading_alone(patient))
    except LockTaken:
        return False
    return True


async def _tick_alone(tx: PostgresSession, term: int, moves: Sequence[TickMove], how: str) -> None:
    async with tx.transaction(how):
        await postgres.recovery.fence(tx, term)
        for name in sorted(move.name for move in moves):
            await tx.row("schedule_turn", name)
        [now] = await tx.row("now")
        found = {
            row[0]: row[1] for row in await tx.all("schedule_versions", [m.name for m in moves])
        }
        standing = [move for move in moves if found.get(move.name) == move.version]
        submits = [
            Submit([run for _, run in move.runs], move.graphs, partial=True)
            for move in standing
            if move.runs
        ]
        answers = iter(await postgres.client_verbs.submit_within(tx, submits) if submits else ())
        for move in standing:
            state, rows = settled(move, next(answers) if move.runs else [], now)
            await tx.run("schedule_move", move.next_at, encode(state), move.name)
            if state.stopped:
                stopped = move.name, "leader", "stopped", None, None, state.stopped
                await tx.run("schedule_change_add", now, *stopped)
                await tx.run("schedule_changes_trim", move.name, KEPT_CHANGES, ALL_KEPT_CHANGES)
            if rows:
                several = [(move.name, *row) for row in rows]
                await tx.run("schedule_tick_add", *columns(several, 6))
                await tx.run("schedule_tick_trim", move.name, KEPT_TICKS)
