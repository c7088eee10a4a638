"""The verbs of runs submitted by name: what workers announce of their flows, and schedules of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from locktender.base.announced import AnnouncedFlow
from locktender.base.schedules import ScheduleChange, ScheduleRow, TickRow
from locktender.store.decode import announced_flows, encode, run_labels
from locktender.store.protocol import RunLabel, SetSchedule, Submit, TickMove
from locktender.store.schedule_rows import (
    ALL_KEPT_CHANGES,
    KEPT_CHANGES,
    KEPT_TICKS,
    changed,
    schedule_row,
    settled,
    ticks_by_schedule,
)
from locktender.store.sqlite.client_verbs import submit
from locktender.store.sqlite.leader_verbs import fence
from locktender.store.sqlite.session import SqliteSession, listed

T = TypeVar("T")


class SqliteNaming:
    """The part of a store that knows flows by name."""

    async def announce(self, flows: Sequence[AnnouncedFlow]) -> None:
        await self._write(lambda tx: _announce(tx, flows))

    async def flows(self, names: Sequence[str] | None = None) -> list[AnnouncedFlow]:
        return await self._query(lambda tx: _flows(tx, names))

    async def forget_flow(self, name: str) -> bool:
        return await self._write(lambda tx: bool(tx.run("flow_forget", name)))

    async def run_labels(self, runs: Sequence[int]) -> dict[int, RunLabel]:
        return run_labels(await self._query(lambda tx: tx.all("run_labels", listed(runs))))

    async def set_schedule(self, change: SetSchedule) -> ScheduleRow | None:
        return await self._write(lambda tx: _set(tx, change))

    async def schedules(self, names: Sequence[str] | None = None) -> list[ScheduleRow]:
        return await self._query(lambda tx: _schedules(tx, names))

    async def schedules_due(self, limit: int) -> list[ScheduleRow]:
        rows = await self._query(lambda tx: tx.all("schedule_due", limit))
        return [schedule_row(row) for row in rows]

    async def tick(
        self,
        term: int,
        moves: Sequence[TickMove],
        *,
        patient: bool = False,  # noqa: ARG002 — every writer waits for the file
    ) -> bool:
        await self._write(lambda tx: _tick(tx, term, moves))
        return True

    async def put_off(self, term: int, schedules: Sequence[str], until: int) -> None:
        await self._write(lambda tx: _put_off(tx, term, schedules, until))

    async def ticks(self, schedules: Sequence[str], limit: int) -> dict[str, list[TickRow]]:
        rows = await self._query(lambda tx: tx.all("schedule_ticks", listed(schedules), limit))
        return ticks_by_schedule(rows)

    async def schedule_history(self, schedule: str, limit: int) -> list[ScheduleChange]:
        rows = await self._query(lambda tx: tx.all("schedule_changes", schedule, limit))
        return [ScheduleChange(*row) for row in rows]

    def _write(self, verb: Callable[[SqliteSession], T]) -> Awaitable[T]:
        raise NotImplementedError

    def _query(self, verb: Callable[[SqliteSession], T]) -> Awaitable[T]:
        raise NotImplementedError


def _announce(tx: SqliteSession, flows: Sequence[AnnouncedFlow]) -> None:
    now = tx.now()
    if flows:
        tx.each("flow_announce", [(flow.name, now, encode(flow)) for flow in flows])


def _flows(tx: SqliteSession, names: Sequence[str] | None) -> list[AnnouncedFlow]:
    rows = tx.all("flow_list") if names is None else tx.all("flow_get", listed(names))
    return announced_flows(rows)


def _schedules(tx: SqliteSession, names: Sequence[str] | None) -> list[ScheduleRow]:
    rows = tx.all("schedule_list") if names is None else tx.all("schedule_get", listed(names))
    return [schedule_row(row) for row in rows]


def _set(tx: SqliteSession, change: SetSchedule) -> ScheduleRow | None:
    now = tx.now()
    [row] = _schedules(tx, [change.name]) or [None]
    made = changed(row, change, now)
    before, after = (None if each is None else each.spec for each in (row, made))
    if made is None:
        tx.run("schedule_remove", change.name)
        tx.run("schedule_ticks_remove", change.name)
    elif row is None or (made.declared, made.live) != (row.declared, row.live) or row.state.stopped:
        specs = (None if each is None else encode(each) for each in (made.declared, made.live))
        tx.run("schedule_put", made.name, made.version, made.next_at, *specs, encode(made.state))
    else:
        return row
    if row is not None or made is not None:
        told = (None if each is None else encode(each) for each in (before, after))
        tx.run(
            "schedule_change_add", now, change.name, change.who, change.what, *told, change.reason
        )
        tx.run("schedule_changes_trim", change.name, KEPT_CHANGES, ALL_KEPT_CHANGES)
    return made


def _put_off(tx: SqliteSession, term: int, schedules: Sequence[str], until: int) -> None:
    fence(tx, term)
    tx.run("schedule_put_off", listed(schedules), until)


def _tick(tx: SqliteSession, term: int, moves: Sequence[TickMove]) -> None:
    _, _, now = fence(tx, term)
    found: dict[str, int] = dict(
        tx.all("schedule_versions", listed(move.name for move in moves))  # pyright: ignore[reportArgumentType]
    )
    for move in moves:
        if found.get(move.name) != move.version:
            continue
        runs = [run for _, run in move.runs]
        answers = submit(tx, Submit(runs, move.graphs, partial=True)) if runs else []
        state, rows = settled(move, answers, now)
        tx.run("schedule_move", move.next_at, encode(state), move.name)
        if state.stopped:
            stopped = move.name, "leader", "stopped", None, None, state.stopped
            tx.run("schedule_change_add", now, *stopped)
            tx.run("schedule_changes_trim", move.name, KEPT_CHANGES, ALL_KEPT_CHANGES)
        if rows:
            tx.each("schedule_tick_add", [(move.name, *row) for row in rows])
            tx.run("schedule_tick_trim", move.name, KEPT_TICKS)
