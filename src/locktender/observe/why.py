"""`why`: what a run or a task waits for now, and for how long.

It works with or without a live engine: the ledger (of a queued run: who holds places and who waits
beside it) is rebuilt from rows in this process and explained by the rules the leader decides with.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from locktender.base.durations import clock_text, spoken
from locktender.base.errors import NotFound
from locktender.base.events import unpack
from locktender.base.graph import Graph
from locktender.base.ids import run_of
from locktender.base.model import BlockingSession, RunRow, Stubborn
from locktender.base.names import Declared
from locktender.base.names import never as never_by_label
from locktender.base.states import EXECUTING_RUNS, TERMINAL_RUNS, RunState, TaskState
from locktender.kernel import explain, lanes
from locktender.kernel.entries import QueuedRun, TaskEntry
from locktender.kernel.explain import Reason, Typical
from locktender.kernel.explain_runs import explain_queued, place_precision, waiting_nodes
from locktender.kernel.explain_workers import stubborn_by_token
from locktender.kernel.gate_names import offered_to, stop_text
from locktender.kernel.held_runs import reason_of
from locktender.kernel.queue_position import Precision
from locktender.kernel.scheduler import Scheduler
from locktender.kernel.timeouts import Until, patience
from locktender.observe import rebuilt
from locktender.observe.rebuilt import (
    WORKER_GATE,
    line_of,
    median,
    places,
    provisioner_note,
    rebuild,
    troubles,
    typical,
)
from locktender.observe.waits import OfferedStep, StubbornStep, WaitingStep, waiting_reasons
from locktender.store.protocol import EventFilter, RunFilter, Store
from locktender.store.readable import readable

MAX_GROUPS_SHOWN = 50


class Why(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to `why`."""

    subject: str
    """`run` or `task`."""
    id: str
    name: str
    state: str
    since: int
    now: int
    reasons: tuple[Reason, ...] = ()
    position: int | None = None
    """Its place in the order in which queued runs start if no other run comes: 1 is next.

    Whoever is held up at a limit of its own is overtaken, and counted all the same.
    """
    position_is: Precision = "exact"
    """How `position` is meant: exact, unless fair turns are not known for certain, a tag's limit holds it or
    one before it up (about), or a long queue was not counted to its end (at least)."""
    priority: int = 0
    tags: dict[str, str] = {}
    waiting: tuple[WaitingStep, ...] = ()
    pending: dict[str, list[str]] = {}
    """Steps not asked for yet, and the steps they wait for."""
    offered: dict[str, OfferedStep] = {}
    """Steps with tasks that were offered to a worker, which has not accepted them yet."""
    running: dict[str, int] = {}
    stubborn: dict[str, StubbornStep] = {}
    """Steps with tasks that were asked to stop and still run: they keep what they hold until they end."""
    note: str = ""
    ended_at: int = 0
    until: tuple[Until, ...] = ()
    """When it ends without having started, or ended, and as what."""
    held_up: tuple[BlockingSession, ...] = ()
    """Sessions of the database server that delay the store."""
    troubles: tuple[str, ...] = ()
    """Of the whole store: terms that fail, rules and workers that cannot be read."""

    @property
    def estimate_us(self) -> int | None:
        """How long it will probably wait: for the slowest of its gates. None where nothing is known."""
        known = [reason.estimate_us for reason in self.reasons if reason.estimate_us is not None]
        return max(known, default=None)

    def text(self) -> str:
        """The explanation as text, as `print` shows it."""
        age = spoken(max(0, self.now - self.since))
        if self.ended_at:
            ago = spoken(max(0, self.now - self.ended_at))
            return f"{self.subject} {self.id} ({self.name}) ended {self.state} {ago} ago. It waits for nothing."
        head = f"{self.subject} {self.id} ({self.name}) is {self.state}, for {age}"
        if self.position is not None:
            head += f", position {_count_text(self.position, self.position_is)} in the queue"
        lines = [head + "."]
        lines += _lines(self.reasons, "  ", self.now)
        if self.estimate_us is not None:
            lines.append(f"  Expected wait: about {spoken(self.estimate_us)}.")
        lines += [f"  It {each.text(self.now)}." for each in self.until]
        for step, offer in self.offered.items():
            lines.append(f"  {offer.count} × {step} not accepted yet: {offer.text(self.now)}")
        for step, count in self.running.items():
            told = self.stubborn.get(step)
            lines.append(
                f"  {count} × {step} running{f'; {told.text(self.now, count)}' if told else ''}"
            )
        for group in self.waiting:
            lines.append(f"  {group.count} × {group.step} waiting:")
            lines += _lines(group.reasons, "    ", self.now) or [
                "    for its turn in the leader's next cycle"
            ]
            first = "" if group.count == 1 else "the first of them "
            lines += [f"    {first}{each.text(self.now)}" for each in group.until]
        for step, others in self.pending.items():
            lines.append(f"  {step} waits for {', '.join(others) or 'its turn'}")
        if self.note:
            lines.append(f"  {self.note}")
        lines += [f"  {session.text()}" for session in self.held_up]
        lines += [f"  {trouble}" for trouble in self.troubles]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()


def _count_text(count: int, meant: Precision) -> str:
    return f"{count:,}" if meant == "exact" else f"{meant} {count:,}"


def _lines(reasons: tuple[Reason, ...], indent: str, now: int) -> list[str]:
    lines: list[str] = []
    for reason in reasons:
        ahead = f"; {_count_text(reason.ahead, reason.ahead_is)} ahead" if reason.ahead else ""
        lines.append(f"{indent}- {reason.text}{ahead}")
        for holder in reason.holders[:3]:
            what = f"task {holder.task} ({holder.node})" if holder.task else f"run {holder.run}"
            slots = f", {holder.slots} slots" if holder.slots > 1 else ""
            dead = f", held for dead worker {holder.worker}" if holder.dead else ""
            told = (
                f", {stop_text(holder.stop_reason, holder.stop_asked_at, now)}"
                if holder.stop_reason
                else ""
            )
            stalls = f", whose worker {holder.worker} is stalled" if holder.stalled else ""
            lines.append(f"{indent}    held by {what}{slots}{dead}{told}{stalls}")
        rest = len(reason.holders) - 3 + reason.more_holders
        if rest > 0:
            lines.append(f"{indent}    and {rest} more")
    return lines


async def with_sessions(store: Store, why: Why) -> Why:
    """The answer, with what concerns everything that has not ended: sessions that delay the store, troubles."""
    if why.ended_at:
        return why
    sessions = (await store.held_up()).sessions
    return msgspec.structs.replace(why, held_up=sessions, troubles=await troubles(store))


async def explain_run(store: Store, run_id: str, labels: Declared | None = None) -> Why:
    """Why this run does not start, or what its tasks wait for. `labels`: those that settings declare."""
    row = await store.run(run_id)
    if row is None:
        raise NotFound(f"there is no run {run_id}.", field="run", got=run_id)
    if row.state == RunState.QUEUED:
        return await _queued(store, row)
    if row.state in EXECUTING_RUNS:
        return await _executing(store, row, labels)
    now = await store.now()
    if row.state == RunState.WAITING:
        reasons = await waiting_reasons(store, row, now)
        return _why(row, now, row.queued_at, reasons, note=await _nobody_leads(store))
    if row.state not in TERMINAL_RUNS:
        return await _held(store, row, now)
    return msgspec.structs.replace(_why(row, now, row.queued_at), ended_at=row.ended_at, until=())


async def _held(store: Store, row: RunRow, now: int) -> Why:
    snapshot = await store.load()
    in_flight = sum(run_of(task.id) == row.seq for task in snapshot.held_tasks)
    why = f"held: {reason_of(row)}" if row.state == RunState.HELD else row.unreadable
    note = f"Cancel it, or repair it and then: locktender runs retry {row.id}"
    if in_flight:
        goes_on = "1 attempt goes on" if in_flight == 1 else f"{in_flight} attempts go on"
        note = f"{goes_on} and keep what they hold; it ends, or can be retried, after that. {note}"
    return _why(row, now, row.queued_at, (Reason("held", why),), note=note)


async def explain_task(store: Store, task: int, labels: Declared | None = None) -> Why:
    """Why this task does not start: every gate that blocks it now. `labels`: those that settings declare."""
    scheduler, snapshot = await rebuild(store)
    entry = scheduler.lifecycle.tasks.get(task)
    row = next((each for each in snapshot.tasks if each.id == task), None)
    if row is None:
        row = next((each for each in await store.tasks(run_of(task)) if each.id == task), None)
    if row is None:
        raise NotFound(f"there is no task {task}.", field="task", got=task)
    if entry is None:
        node, note = f"node {row.node}", f"It is {row.state} and waits for nothing."
        if row.state == TaskState.COMPLETED and not row.attempt:
            note = await _cached_note(store, row.id) or note
        return Why("task", str(task), node, row.state, row.requested_at, snapshot.now, note=note)
    usual = typical(snapshot, scheduler)
    reasons = _reasons(scheduler, entry, usual, snapshot.now, labels)
    note = ""
    waits = entry.state == TaskState.REQUESTED
    if waits and not reasons:
        note = await _turn_note(store)
    elif waits:
        note = await provisioner_note(store, [reasons])
    else:
        note = _held_note(scheduler, entry, snapshot.now)
    return Why(
        "task",
        str(task),
        entry.spec.name,
        entry.state,
        entry.requested_at,
        snapshot.now,
        tuple(reasons),
        priority=entry.run.row.priority,
        tags=entry.run.row.tags,
        note=note,
        until=tuple(patience(scheduler.lifecycle, entry)) if waits else (),
    )


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


def _held_note(scheduler: Scheduler, entry: TaskEntry, now: int) -> str:
    if note := _stalled_note(scheduler, [entry]):
        return note
    if entry.state == TaskState.SCHEDULED:
        offered = offered_to(entry.worker or "", entry.scheduled_at, entry.offers, now)
        return f"It is {offered}, and not accepted yet."
    stubborn = stubborn_by_token(scheduler.ledger.workers.by_id.values()).get(entry.token)
    if stubborn is None:
        return f"Worker {entry.worker} has it: it waits for nothing."
    told = stop_text(stubborn.reason, stubborn.since, now)
    return f"Worker {entry.worker} has it: {told}. It keeps what it holds until its body ends."


def _stalled_note(scheduler: Scheduler, entries: Iterable[TaskEntry]) -> str:
    """Empty where no worker of these tasks is stalled."""
    workers = scheduler.ledger.workers.by_id
    found = {entry.worker for entry in entries if entry.worker in workers}
    stalled = sorted(name for name in found if name and workers[name].stalled_since)
    if not stalled:
        return ""
    who = "Worker" if len(stalled) == 1 else "Workers"
    stalls = "is stalled: its lease has passed, its process lives. It keeps what it holds"
    if len(stalled) > 1:
        stalls = (
            "are stalled: their leases have passed, their processes live. They keep what they hold"
        )
    return f"{who} {', '.join(stalled)} {stalls}."


def _reasons(
    scheduler: Scheduler, entry: TaskEntry, usual: Typical, now: int, labels: Declared | None
) -> list[Reason]:
    """What blocks it; where no worker may ever have the labels it needs, the reason is never, not now."""
    found = explain.explain_task(scheduler, entry, usual, now)
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


async def _queued(store: Store, row: RunRow) -> Why:
    view = await store.beside(row.seq, rebuilt.MAX_RUNS_COUNTED)
    if view is None:
        now = await store.now()
        return _why(row, now, row.queued_at, note="It has left the queue this moment.")
    scheduler = places(view)
    scheduler.graphs.setdefault(row.graph, Graph(row.flow, ()))
    scheduler.ledger.put_head(row)
    head = scheduler.ledger.heads.get(row.seq)
    if head is None:
        head = QueuedRun(row, lanes.rank(view.limits, row.priority, row.queued_at))
    line = await line_of(store, row, view)
    reasons = explain_queued(
        scheduler,
        head,
        # Times of other flows are no estimate for this one.
        Typical(run_us=median(view.lasted) if view.lasted else None),
        line,
        view.now,
        replaced=await _replaced(store, row),
    )
    note = await (_nobody_leads(store) if reasons else _turn_note(store))
    why = _why(row, view.now, row.queued_at, tuple(reasons), note=note)
    precision = place_precision(scheduler.ledger, head, line)
    return msgspec.structs.replace(why, position=line.ahead + 1, position_is=precision)


async def _replaced(store: Store, row: RunRow) -> str | None:
    """The id of the run it waits for."""
    if row.waits_for is None:
        return None
    found = await store.runs(RunFilter(before=row.waits_for + 1, limit=1))
    return next((each.id for each in found if each.seq == row.waits_for), None)


async def _executing(store: Store, row: RunRow, labels: Declared | None) -> Why:
    scheduler, snapshot = await rebuild(store)
    run = scheduler.ledger.runs.get(row.seq)
    progress = scheduler.lifecycle.progress.get(row.seq)
    if run is None or progress is None:
        fault = (await readable(store, snapshot)).faults.get(row.seq)
        note = "It is ending." if fault is None else f"Its stored data cannot be read: {fault}"
        return _why(row, snapshot.now, row.queued_at, note=note)
    usual = typical(snapshot, scheduler)
    groups: dict[tuple[str, tuple[str, ...]], WaitingStep] = {}
    running: dict[str, int] = {}
    offered: dict[str, OfferedStep] = {}
    stubborn: dict[str, StubbornStep] = {}
    by_token = stubborn_by_token(scheduler.ledger.workers.by_id.values())
    seen: dict[tuple[int, int], tuple[Reason, ...]] = {}
    for entry in run.tasks.values():
        if entry.state == TaskState.SCHEDULED:
            offered[entry.spec.name] = _offered(offered.get(entry.spec.name), entry)
            continue
        if entry.state != TaskState.REQUESTED:
            name = entry.spec.name
            running[name] = running.get(name, 0) + 1
            if (each := by_token.get(entry.token)) is not None:
                stubborn[name] = _one_more(stubborn.get(name), each)
            continue
        # Tasks of one lane wait for the same; only the first of them is asked in full.
        lane = (entry.node, 0 if entry.lane is None else id(entry.lane))
        if lane not in seen or entry.not_before > snapshot.now:
            seen[lane] = tuple(_reasons(scheduler, entry, usual, snapshot.now, labels))
        key = (entry.spec.name, tuple(reason.gate for reason in seen[lane]))
        group = groups.get(key) or WaitingStep(entry.spec.name, 0, seen[lane])
        until = _earliest(group.until, patience(scheduler.lifecycle, entry))
        groups[key] = WaitingStep(group.step, group.count + 1, group.reasons, until)
    notes = [await _nobody_leads(store)] if groups else []
    notes.append(_stalled_note(scheduler, run.tasks.values()))
    notes.append(await provisioner_note(store, [group.reasons for group in groups.values()]))
    return msgspec.structs.replace(
        _why(row, snapshot.now, row.started_at or row.queued_at),
        waiting=tuple(groups.values())[:MAX_GROUPS_SHOWN],
        pending=dict(waiting_nodes(progress)),
        offered=offered,
        running=running,
        stubborn=stubborn,
        note=" ".join(note for note in notes if note),
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


def _why(
    row: RunRow,
    now: int,
    since: int,
    reasons: tuple[Reason, ...] = (),
    note: str = "",
) -> Why:
    return Why(
        "run",
        row.id,
        row.flow,
        row.state,
        since,
        now,
        reasons,
        priority=row.priority,
        tags=row.tags,
        note=note,
        until=() if row.deadline_at is None else (Until("deadline", row.deadline_at),),
    )


async def _nobody_leads(store: Store) -> str:
    """Then nothing starts, whatever gates say."""
    if await store.leader() is not None:
        return ""
    return "No process leads, and nothing starts: start an engine on this store."


async def _turn_note(store: Store) -> str:
    """Nothing blocks it: it starts with the leader's next cycle, if there is a leader."""
    if await store.leader() is None:
        return "Nothing blocks it, but no process leads: start an engine on this store."
    return "Nothing blocks it: it starts with the leader's next cycle."
