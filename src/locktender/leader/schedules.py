"""Schedules on the leader: once a second the due ones are read, decided on, and moved on with one commit.

Any process that leads runs this. The decision is the kernel's (`kernel/schedules.py`), over the row as it was
read. The commit makes the runs of the ticks and moves the schedules on in one transaction, if the term still holds
and the schedule has not changed since: of two leaders, or of a leader and an operator, the second changes nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from locktender.base import graph_check
from locktender.base.announced import AnnouncedFlow, check_arguments
from locktender.base.clock import SECOND
from locktender.base.errors import LocktenderError
from locktender.base.ids import ENTROPY, run_ids
from locktender.base.model import NewRun
from locktender.base.named_runs import tracing_graph
from locktender.base.schedules import ScheduleRow, ScheduleSpec
from locktender.base.states import TERMINAL_RUNS
from locktender.base.ticks import moment
from locktender.kernel.schedules import decide, stopped_when_gone
from locktender.store.protocol import Store, TickMove
from locktender.store.readable import is_fault, reason_of

log: logging.Logger = logging.getLogger(__name__)
MAX_DUE = 100
"""Decided on per sweep; the others follow a second later."""
MAX_ROUNDS = 10
"""Per sweep, where some of them cannot be decided on."""
PUT_OFF_US = 60 * SECOND
"""For how long one that cannot be read or decided on is not looked at. Another release may read it."""
MAX_LOGGED = 1_000
"""Faulty schedules that were logged."""
TAG = "schedule"
"""The tag by which the runs of a schedule are found."""


class ScheduleKeeper:
    def __init__(self, store: Store, on_submitted: Callable[[], None]) -> None:
        self._store = store
        self._on_submitted = on_submitted
        self._logged: set[str] = set()
        self._turned_away = False

    async def run(self, term: int, now: int) -> None:
        """Decides on what is due. A failure of one schedule leaves the others alone."""
        for _ in range(MAX_ROUNDS):
            rows = await self._store.schedules_due(MAX_DUE)
            faulty = await self._decide(rows, term, now) if rows else []
            if faulty:
                # Every second they would be the first of those that are due, and keep others from being read.
                await self._store.put_off(term, faulty, now + PUT_OFF_US)
            if not faulty or len(rows) < MAX_DUE:
                return

    async def _decide(self, rows: list[ScheduleRow], term: int, now: int) -> list[str]:
        """The names of those that cannot be decided on."""
        faulty: list[str] = []
        runs = [run.seq for row in rows for run in row.state.runs]
        states = await self._store.run_states(runs) if runs else {}
        active = {run for run, state in states.items() if state not in TERMINAL_RUNS}
        names = sorted({row.spec.flow for row in rows if row.spec is not None})
        flows = {flow.name: flow for flow in await self._store.flows(names)}
        moves: list[TickMove] = []
        for row in rows:
            try:
                if row.spec is None:
                    raise LocktenderError(row.unreadable)
                moves.append(_move(row, row.spec, active, flows, now))
            except Exception as error:  # noqa: BLE001 — one schedule must not stop the others
                self._log_once(row.name, error)
                faulty.append(row.name)
        try:
            if moves:
                done = await self._store.tick(term, moves, patient=self._turned_away)
                # Submitters were in the way: they are due still, and the leader must not wait for long.
                self._turned_away = not done
        except Exception as error:
            if not is_fault(error):
                raise
            faulty += await self._one_by_one(term, moves)
        if any(move.runs for move in moves):
            self._on_submitted()
        return faulty

    async def _one_by_one(self, term: int, moves: list[TickMove]) -> list[str]:
        """The store refuses the data of one of them: the others go on. The names of those refused."""
        refused: list[str] = []
        for move in moves:
            try:
                await self._store.tick(term, [move], patient=True)
            except Exception as error:
                if not is_fault(error):
                    raise
                self._log_once(move.name, error)
                refused.append(move.name)
        return refused

    def _log_once(self, name: str, error: Exception) -> None:
        """Once: it is looked at again and again."""
        if name not in self._logged:
            if len(self._logged) > MAX_LOGGED:
                self._logged.clear()
            self._logged.add(name)
            log.error("failed to decide on schedule %s: %s", name, reason_of(error))


def _move(
    row: ScheduleRow,
    spec: ScheduleSpec,
    active: set[int],
    flows: Mapping[str, AnnouncedFlow],
    now: int,
) -> TickMove:
    still = [run for run in row.state.runs if run.seq in active]
    decided = decide(row.name, spec, row.state, still, now)
    flow = flows.get(spec.flow)
    state, next_at, missed = decided.state, decided.next_at, list(decided.missed)
    if flow is None:
        why = f"no worker has announced flow {spec.flow}"
        missed += [(tick, why) for tick in decided.fires]
        if decided.fires:
            state = stopped_when_gone(state, spec.flow, len(decided.fires))
        if state.stopped:
            log.error("schedule %s is paused: %s", row.name, state.stopped)
            next_at = None
        return TickMove(row.name, row.version, state, next_at, missed=missed)
    state = msgspec.structs.replace(state, gone=0)
    arguments: dict[str, Any] = msgspec.json.decode(spec.args)
    try:
        check_arguments(flow, arguments)
    except LocktenderError as error:
        # The flow has changed since the schedule was set.
        missed += [(tick, str(error)) for tick in decided.fires]
        return TickMove(row.name, row.version, state, next_at, missed=missed)
    graph = msgspec.structs.replace(
        tracing_graph(spec.flow, arguments),
        queue_timeout_us=flow.queue_timeout_us,
        dispatch_deadline_us=flow.dispatch_deadline_us,
    )
    digest, body = graph_check.digest(graph)
    made = run_ids(now, os.urandom(ENTROPY * max(1, len(decided.fires))))
    replaces = spec.overlap == "replace"
    runs = [
        (
            tick,
            NewRun(
                run_id,
                spec.flow,
                digest,
                bytes(spec.args),
                b"[]",
                tags={**flow.tags, **spec.tags, TAG: row.name},
                priority=flow.priority,
                key=f"schedule:{row.name}" + ("" if replaces else f":{moment(tick).isoformat()}"),
                on_duplicate="replace" if replaces else "reject",
                deadline_us=flow.deadline_us,
                scheduled=(row.name, tick),
            ),
        )
        for tick, run_id in zip(decided.fires, made, strict=False)
    ]
    return TickMove(row.name, row.version, state, next_at, runs, {digest: body}, missed)
