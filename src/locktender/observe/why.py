"""`why`: what a run or a task waits for now, and for how long.

It works with or without a live engine: the ledger (of a queued run: who holds places and who waits
beside it) is rebuilt from rows in this process and explained by the rules the leader decides with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from locktender.base.changes import TaskRow
from locktender.base.durations import clock_text
from locktender.base.errors import NotFound
from locktender.base.events import unpack
from locktender.base.ids import run_of
from locktender.base.model import RunRow
from locktender.base.names import Declared
from locktender.base.states import ENDS, EXECUTING_RUNS, TERMINAL_RUNS, RunState, TaskState
from locktender.kernel.reasons import Reason
from locktender.observe.answer import LEFT, Why, why_run
from locktender.observe.live import ask_leader
from locktender.observe.pool_pauses import with_pauses
from locktender.observe.store_notes import (
    engine_note,
    nobody_leads,
    provisioner_note,
    troubles,
    turn_note,
)
from locktender.store.graphs import graph_of
from locktender.store.protocol import EventFilter, RunFilter, Store


async def with_sessions(store: Store, why: Why) -> Why:
    """The answer, with what no gate tells: who paused a pool, sessions that delay the store, troubles."""
    if why.ended_at:
        return why
    why = await with_pauses(store, why)
    sessions = (await store.held_up()).sessions
    return msgspec.structs.replace(why, held_up=sessions, troubles=await troubles(store))


def _rules():
    # Only here: a leader in another process answers by the same rules, and to load them takes longer than that.
    from locktender.observe import why_executing  # noqa: PLC0415

    return why_executing


CYCLE_SECONDS = 0.1
"""A change is decided within this time. What no gate blocks after two of them waits for the engine itself."""


async def explain_run(store: Store, run_id: str, labels: Declared | None = None) -> Why:
    """Why this run does not start, or what its tasks wait for. `labels`: those that settings declare."""
    return await _settled(store, lambda: _explain_run(store, run_id, labels))


async def explain_task(store: Store, task: int, labels: Declared | None = None) -> Why:
    """Why this task does not start: every gate that blocks it now. `labels`: those that settings declare."""
    return await _settled(store, lambda: _explain_task(store, task, labels))


async def _settled(store: Store, ask: Callable[[], Awaitable[Why]]) -> Why:
    why = await ask()
    if why.note == LEFT:
        why = await ask()  # its row was read before that, and says by now what became of it
    for _ in range(2):
        if not why.unblocked:
            return why
        if await store.leader() is None:
            break
        await asyncio.sleep(CYCLE_SECONDS)
        why = await ask()
    return msgspec.structs.replace(why, note=await engine_note(store)) if why.unblocked else why


async def _explain_run(store: Store, run_id: str, labels: Declared | None) -> Why:
    row = await store.run(run_id)
    if row is None:
        raise NotFound(f"there is no run {run_id}.", field="run", got=run_id)
    if row.state == RunState.QUEUED:
        from locktender.observe.why_queued import queued_why  # noqa: PLC0415

        return await queued_why(store, row)
    if row.state in EXECUTING_RUNS:
        return await _executing(store, row, labels)
    now = await store.now()
    if row.state == RunState.WAITING:
        from locktender.observe.waits import waiting_reasons  # noqa: PLC0415

        reasons = await waiting_reasons(store, row, now)
        return why_run(row, now, row.queued_at, reasons, note=await nobody_leads(store))
    if row.state not in TERMINAL_RUNS:
        return await _held(store, row, now)
    return msgspec.structs.replace(
        why_run(row, now, row.queued_at), ended_at=row.ended_at, until=()
    )


async def _held(store: Store, row: RunRow, now: int) -> Why:
    from locktender.kernel.held_runs import reason_of  # noqa: PLC0415

    snapshot = await store.load(lost=False)
    in_flight = sum(run_of(task.id) == row.seq for task in snapshot.held_tasks)
    why = f"held: {reason_of(row)}" if row.state == RunState.HELD else row.unreadable
    note = f"Cancel it, or repair it and then: locktender runs retry {row.id}"
    if in_flight:
        goes_on = "1 attempt goes on" if in_flight == 1 else f"{in_flight} attempts go on"
        note = f"{goes_on} and keep what they hold; it ends, or can be retried, after that. {note}"
    return why_run(row, now, row.queued_at, (Reason("held", why),), note=note)


async def _explain_task(store: Store, task: int, labels: Declared | None) -> Why:
    live = await ask_leader(
        store,
        str(task),
        lambda lead, now: _rules().live_task_why(lead, task, labels, now),
        _read_why,
    )
    if live is not None:
        return await _noted_task(store, live)
    found, snapshot = await _rules().rebuilt_task_why(store, task, labels)
    if found is not None:
        return await _noted_task(store, found)
    row = next((each for each in snapshot.tasks if each.id == task), None)
    if row is None:
        row = next((each for each in await store.tasks(run_of(task)) if each.id == task), None)
    if row is None:
        raise NotFound(
            f"there is no task {task}.",
            field="task",
            got=task,
            hint="locktender runs show RUN --tasks shows them.",
        )
    return await _apart(store, row, snapshot.now)


async def _noted_task(store: Store, why: Why) -> Why:
    if why.note:
        return why
    note = await (provisioner_note(store, [why.reasons]) if why.reasons else turn_note(store))
    return msgspec.structs.replace(why, note=note)


async def _apart(store: Store, task: TaskRow, now: int) -> Why:
    """Of a task that has ended, or whose run does not execute."""
    run, name = await _run_and_node(store, task)
    why = Why("task", str(task.id), name, task.state, task.requested_at, now)
    if task.state in ENDS:
        note = ""
        if task.state == TaskState.COMPLETED and not task.attempt:
            note = await _cached_note(store, task.id)
        note = note or f"It is {task.state} and waits for nothing."
        return msgspec.structs.replace(why, note=note)
    if run is None:
        return why
    if run.state == RunState.WAITING:
        from locktender.observe.waits import task_waits  # noqa: PLC0415

        reasons, note = await task_waits(store, run, task, now), await nobody_leads(store)
    else:
        whole = await _explain_run(store, run.id, None)
        reasons, note = whole.reasons, whole.note
    return msgspec.structs.replace(
        why, reasons=reasons, note=note, priority=run.priority, tags=run.tags
    )


async def _run_and_node(store: Store, task: TaskRow) -> tuple[RunRow | None, str]:
    """The run of a task, and the name of its step; a number where the graph cannot be read."""
    seq = run_of(task.id)
    runs = await store.runs(RunFilter(before=seq + 1, limit=1))
    run = runs[0] if runs and runs[0].seq == seq else None
    graph = None if run is None else await graph_of(store, run.graph)
    nodes = () if graph is None else graph.nodes
    return run, nodes[task.node].name if 0 <= task.node < len(nodes) else f"node {task.node}"


async def _cached_note(store: Store, task: int) -> str:
    """Where its result is from, if it is a cached one."""
    for row in reversed(await store.events(EventFilter(run=run_of(task)))):
        for event in unpack(row) if b'"cached":' in row.body else ():
            if event.task == task and (cached := event.data.get("cached")):
                made, until = clock_text(cached["made_at"]), clock_text(cached["expires_at"])
                return (
                    f"It is completed from the cache: task {cached['task']} made the result at {made},"
                    f" and it is kept until {until}. No body ran for it."
                )
    return ""


async def _executing(store: Store, row: RunRow, labels: Declared | None) -> Why:
    live = await ask_leader(
        store,
        row.id,
        lambda lead, now: _rules().live_run_why(lead, row, labels, now),
        _read_why,
    )
    if live is not None:
        return await _noted(store, live)
    found, snapshot = await _rules().rebuilt_run_why(store, row, labels)
    if found is None:
        from locktender.store.readable import readable  # noqa: PLC0415

        fault = (await readable(store, snapshot)).faults.get(row.seq)
        note = "It is ending." if fault is None else f"Its stored data cannot be read: {fault}"
        return why_run(row, snapshot.now, row.queued_at, note=note)
    return await _noted(store, found)


_read_why = msgspec.json.Decoder(Why).decode


async def _noted(store: Store, why: Why) -> Why:
    """With what the rules alone do not know: who leads, and who starts workers."""
    notes = [await nobody_leads(store) if why.waiting else "", why.note]
    if not notes[0]:
        notes.append(await provisioner_note(store, [group.reasons for group in why.waiting]))
    return msgspec.structs.replace(why, note=" ".join(note for note in notes if note))
