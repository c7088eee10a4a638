"""`why`: what a run or a task waits for now, and for how long.

It works with or without a live engine: the ledger (of a queued run: who holds places and who waits
beside it) is rebuilt from rows in this process and explained by the rules the leader decides with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from locktender.base.changes import TaskRow
from locktender.base.durations import clock_text
from locktender.base.errors import NotFound
from locktender.base.events import unpack
from locktender.base.ids import run_of
from locktender.base.model import RunRow, Stubborn
from locktender.base.names import Declared
from locktender.base.names import never as never_by_label
from locktender.base.states import ENDS, EXECUTING_RUNS, TERMINAL_RUNS, RunState, TaskState
from locktender.base.text import counted, offered_to, stop_text
from locktender.kernel import explain
from locktender.kernel.entries import TaskEntry
from locktender.kernel.explain_runs import open_tasks, waiting_nodes
from locktender.kernel.explain_workers import stubborn_by_token
from locktender.kernel.gate_view import GateView
from locktender.kernel.held_runs import reason_of
from locktender.kernel.reasons import Reason, Typical
from locktender.kernel.scheduler import Scheduler
from locktender.kernel.timeouts import Until, patience
from locktender.observe.answer import LEFT, Why, why_run
from locktender.observe.holders import WORKER_GATE
from locktender.observe.live import Question, ask_leader, live_typical
from locktender.observe.rebuilt import (
    provisioner_note,
    rebuild,
    troubles,
    typical,
)
from locktender.observe.waits import (
    OfferedStep,
    StubbornStep,
    WaitingStep,
    gates_of,
    task_waits,
    waiting_reasons,
)
from locktender.observe.why_queued import engine_note, nobody_leads, queued_why, turn_note
from locktender.store.graphs import graph_of
from locktender.store.protocol import EventFilter, RunFilter, Store
from locktender.store.readable import readable

MAX_GROUPS_SHOWN = 50


async def with_sessions(store: Store, why: Why) -> Why:
    """The answer, with what concerns everything that has not ended: sessions that delay the store, troubles."""
    if why.ended_at:
        return why
    sessions = (await store.held_up()).sessions
    return msgspec.structs.replace(why, held_up=sessions, troubles=await troubles(store))


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
        return await queued_why(store, row)
    if row.state in EXECUTING_RUNS:
        return await _executing(store, row, labels)
    now = await store.now()
    if row.state == RunState.WAITING:
        reasons = await waiting_reasons(store, row, now)
        return why_run(row, now, row.queued_at, reasons, note=await nobody_leads(store))
    if row.state not in TERMINAL_RUNS:
        return await _held(store, row, now)
    return msgspec.structs.replace(
        why_run(row, now, row.queued_at), ended_at=row.ended_at, until=()
    )


async def _held(store: Store, row: RunRow, now: int) -> Why:
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
        lambda lead, now: task_why(lead, task, labels, live_typical(lead), now),
        _read_why,
    )
    if live is not None:
        return await _noted_task(store, live)
    scheduler, snapshot = await rebuild(store)
    usual = typical(snapshot, scheduler)
    found = task_why(scheduler, task, labels, usual, snapshot.now)
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


def task_why(
    scheduler: Scheduler, task: int, labels: Declared | None, usual: Typical, now: int
) -> Why | None:
    """What a task of an executing run waits for; None: it is not known, or has ended."""
    entry = scheduler.lifecycle.tasks.get(task)
    if entry is None:
        return None
    waits, view = entry.state == TaskState.REQUESTED, GateView(scheduler.ledger, now)
    return Why(
        "task",
        str(task),
        entry.spec.name,
        entry.state,
        entry.requested_at,
        now,
        tuple(_reasons(scheduler, entry, usual, now, labels, view)),
        priority=entry.run.row.priority,
        tags=entry.run.row.tags,
        note="" if waits else note_of(scheduler, entry, now),
        until=tuple(patience(scheduler.lifecycle, entry)) if waits else (),
        lets_start=explain.what_opens(scheduler, entry, now, view) if waits else (),
        offers=entry.offers,
    )


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


def note_of(scheduler: Scheduler, entry: TaskEntry, now: int) -> str:
    stalled = _stalled_note(scheduler, [entry])
    if entry.state == TaskState.SCHEDULED:
        offered = offered_to(entry.worker or "", entry.scheduled_at, entry.offers, now)
        return f"It is {offered}, and not accepted yet. {stalled}".rstrip()
    if stalled:
        return stalled
    stubborn = stubborn_by_token(scheduler.ledger.workers.by_id.values()).get(entry.token)
    if stubborn is None:
        return f"Worker {entry.worker} has it: it waits for nothing."
    told = stop_text(stubborn.reason, stubborn.since, now)
    return f"Worker {entry.worker} has it: {told}. It keeps what it holds until its body ends."


def _stalled_note(scheduler: Scheduler, entries: Iterable[TaskEntry]) -> str:
    """Empty where each worker of these tasks answers."""
    workers = scheduler.ledger.workers.by_id
    found = {entry.worker for entry in entries if entry.worker in workers}
    stalled = sorted(name for name in found if name and workers[name].stalled_since)
    if not stalled:
        silent = sorted(name for name in found if name and workers[name].unanswered)
        return " ".join(
            f"Worker {name} left {counted(workers[name].unanswered, 'offer')} unanswered:"
            " its process may be stopped."
            for name in silent
        )
    who = "Worker" if len(stalled) == 1 else "Workers"
    stalls = "is stalled: its lease has passed, its process lives. It keeps what it holds"
    if len(stalled) > 1:
        stalls = (
            "are stalled: their leases have passed, their processes live. They keep what they hold"
        )
    return f"{who} {', '.join(stalled)} {stalls}."


def _reasons(
    scheduler: Scheduler,
    entry: TaskEntry,
    usual: Typical,
    now: int,
    labels: Declared | None,
    view: GateView,
) -> list[Reason]:
    """What blocks it; where no worker may ever have the labels it needs, the reason is never, not now."""
    found = explain.explain_task(scheduler, entry, usual, now, view)
    needs = entry.spec.needs
    never = never_by_label(needs, labels) if needs else None
    workers = scheduler.ledger.workers.by_id.values()
    # Others may have other settings: a worker that has them all the same is only busy.
    if never is None or any(needs.items() <= worker.row.labels.items() for worker in workers):
        return found
    return [
        Reason(WORKER_GATE, never, never=True) if reason.gate == WORKER_GATE else reason
        for reason in found
    ]


async def _executing(store: Store, row: RunRow, labels: Declared | None) -> Why:
    live = await ask_leader(
        store,
        row.id,
        lambda lead, now: run_why(lead, row, labels, live_typical(lead), now),
        _read_why,
    )
    if live is not None:
        return await _noted(store, live)
    scheduler, snapshot = await rebuild(store)
    found = run_why(scheduler, row, labels, typical(snapshot, scheduler), snapshot.now)
    if found is None:
        fault = (await readable(store, snapshot)).faults.get(row.seq)
        note = "It is ending." if fault is None else f"Its stored data cannot be read: {fault}"
        return why_run(row, snapshot.now, row.queued_at, note=note)
    return await _noted(store, found)


_read_why = msgspec.json.Decoder(Why).decode


def answer_for(subject: str, labels: Declared | None) -> Question[bytes]:
    """What a leader answers to another process about a run's id or a task's number; empty: it does not know."""

    def answer(scheduler: Scheduler, now: int) -> bytes:
        usual = live_typical(scheduler)
        runs = scheduler.ledger.runs.values()
        row = next((run.row for run in runs if run.row.id == subject), None)
        if row is not None:
            found = run_why(scheduler, row, labels, usual, now)
        else:
            task = int(subject) if subject.isdecimal() else 0
            found = task_why(scheduler, task, labels, usual, now)
        return b"" if found is None else msgspec.json.encode(found)

    return answer


async def _noted(store: Store, why: Why) -> Why:
    """With what the rules alone do not know: who leads, and who starts workers."""
    notes = [await nobody_leads(store) if why.waiting else "", why.note]
    if not notes[0]:
        notes.append(await provisioner_note(store, [group.reasons for group in why.waiting]))
    return msgspec.structs.replace(why, note=" ".join(note for note in notes if note))


def run_why(
    scheduler: Scheduler, row: RunRow, labels: Declared | None, usual: Typical, now: int
) -> Why | None:
    """What an executing run waits for; None: it is not known. It costs the same however many items wait."""
    run = scheduler.ledger.runs.get(row.seq)
    progress = scheduler.lifecycle.progress.get(row.seq)
    if run is None or progress is None:
        return None
    found = open_tasks(run)
    running: dict[str, int] = {}
    offered: dict[str, OfferedStep] = {}
    stubborn: dict[str, StubbornStep] = {}
    by_token = stubborn_by_token(scheduler.ledger.workers.by_id.values())
    for entry in found.in_flight:
        name = entry.spec.name
        if entry.state == TaskState.SCHEDULED:
            offered[name] = _offered(offered.get(name), entry)
            continue
        running[name] = running.get(name, 0) + 1
        if (each := by_token.get(entry.token)) is not None:
            stubborn[name] = _one_more(stubborn.get(name), each)
    groups: dict[tuple[str, tuple[str, ...]], tuple[TaskEntry, WaitingStep]] = {}
    for entry, count in sorted(found.waiting(now), key=lambda each: each.first.id):
        key = (entry.spec.name, gates_of(scheduler, entry, now))
        first, group = groups.get(key) or (entry, WaitingStep(entry.spec.name, 0, ()))
        until = _earliest(group.until, patience(scheduler.lifecycle, entry))
        groups[key] = first, msgspec.structs.replace(group, count=group.count + count, until=until)
    shown = list(groups.values())[:MAX_GROUPS_SHOWN]
    view = GateView(scheduler.ledger, now, len(shown))
    # Of those that wait for the same two are estimated, the first and the last.
    usual = usual.shared(min(len(shown), 2 * len({gates for _, gates in groups})))
    in_line = sorted(range(len(shown)), key=lambda at: (shown[at][0].rank, shown[at][0].id))
    reasons = {
        at: tuple(_reasons(scheduler, shown[at][0], usual, now, labels, view))
        for at in (*in_line[:1], *in_line[:0:-1])
    }
    return msgspec.structs.replace(
        why_run(row, now, row.started_at or row.queued_at),
        waiting=tuple(
            msgspec.structs.replace(
                group,
                reasons=reasons[at],
                lets_start=explain.what_opens(scheduler, first, now, view),
            )
            for at, (first, group) in enumerate(shown)
        ),
        more_waiting=len(groups) - len(shown),
        pending=dict(waiting_nodes(progress)),
        offered=offered,
        running=running,
        stubborn=stubborn,
        note=_stalled_note(scheduler, found.in_flight),
    )


def _offered(known: OfferedStep | None, entry: TaskEntry) -> OfferedStep:
    if known is not None and known.offers >= entry.offers:
        return msgspec.structs.replace(known, count=known.count + 1)
    count = 1 if known is None else known.count + 1
    return OfferedStep(count, entry.worker or "", entry.scheduled_at, entry.offers)


def _one_more(known: StubbornStep | None, stubborn: Stubborn) -> StubbornStep:
    if known is None:
        return StubbornStep(1, stubborn.reason, stubborn.since)
    first = known if known.since <= stubborn.since else stubborn
    return StubbornStep(known.count + 1, first.reason, first.since)


def _earliest(known: tuple[Until, ...], more: list[Until]) -> tuple[Until, ...]:
    first: dict[str, Until] = {}
    for each in (*known, *more):
        if each.kind not in first or each.at < first[each.kind].at:
            first[each.kind] = each
    return tuple(first.values())
