"""`why` of executing runs and their tasks, by the rules the leader decides with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from locktender.base.model import RunRow, Unstopped
from locktender.base.names import Declared
from locktender.base.names import never as never_by_label
from locktender.base.states import TaskState
from locktender.base.text import WORKER_GATE, counted, offered_to, stop_text
from locktender.kernel import explain
from locktender.kernel.deadlines import Until
from locktender.kernel.entries import TaskEntry
from locktender.kernel.estimates import Holds
from locktender.kernel.explain_runs import open_tasks, waiting_nodes
from locktender.kernel.explain_workers import unstopped_by_token
from locktender.kernel.gate_view import GateView
from locktender.kernel.reasons import Reason, Typical
from locktender.kernel.scheduler import Scheduler
from locktender.kernel.timeouts import wait_limits
from locktender.observe.answer import Why, why_run
from locktender.observe.live import Question
from locktender.observe.rebuilt import rebuild, typical
from locktender.observe.waiting_steps import OfferedStep, UnstoppedStep, WaitingStep
from locktender.observe.waits import gates_of
from locktender.store.protocol import Snapshot, Store

MAX_GROUPS_SHOWN = 50


class _Medians(Mapping[str, int]):
    def __init__(self, holds: Holds) -> None:
        self._holds = holds

    def __getitem__(self, step: str) -> int:
        known = self._holds[step]
        return known[len(known) // 2]

    def __iter__(self) -> Iterator[str]:
        return iter(self._holds)

    def __len__(self) -> int:
        return len(self._holds)


def live_typical(scheduler: Scheduler) -> Typical:
    """Usual durations, as the leader saw them."""
    holds = scheduler.ledger.holds
    return Typical(_Medians(holds), holds=holds)


def live_task_why(scheduler: Scheduler, task: int, labels: Declared | None, now: int) -> Why | None:
    """Of a leader that has just decided."""
    return task_why(scheduler, task, labels, live_typical(scheduler), now)


def live_run_why(
    scheduler: Scheduler, row: RunRow, labels: Declared | None, now: int
) -> Why | None:
    """Of a leader that has just decided."""
    return run_why(scheduler, row, labels, live_typical(scheduler), now)


async def rebuilt_task_why(
    store: Store, task: int, labels: Declared | None
) -> tuple[Why | None, Snapshot]:
    """From rows, and what was read."""
    scheduler, snapshot = await rebuild(store)
    usual = typical(snapshot, scheduler)
    return task_why(scheduler, task, labels, usual, snapshot.now), snapshot


async def rebuilt_run_why(
    store: Store, row: RunRow, labels: Declared | None
) -> tuple[Why | None, Snapshot]:
    """From rows, and what was read."""
    scheduler, snapshot = await rebuild(store)
    usual = typical(snapshot, scheduler)
    return run_why(scheduler, row, labels, usual, snapshot.now), snapshot


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
        until=tuple(wait_limits(scheduler.lifecycle, entry)) if waits else (),
        lets_start=explain.what_opens(scheduler, entry, now, view) if waits else (),
        offers=entry.offers,
    )


def note_of(scheduler: Scheduler, entry: TaskEntry, now: int) -> str:
    stalled = _stalled_note(scheduler, [entry])
    if entry.state == TaskState.SCHEDULED:
        offered = offered_to(entry.worker or "", entry.scheduled_at, entry.offers, now)
        return f"It was {offered}, and is not accepted yet. {stalled}".rstrip()
    if stalled:
        return stalled
    unstopped = unstopped_by_token(scheduler.ledger.workers.by_id.values()).get(entry.token)
    if unstopped is None:
        return f"Worker {entry.worker} has it: it waits for nothing."
    told = stop_text(unstopped.reason, unstopped.since, now)
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
    stalls = "is stalled: its lease has passed, but its process is alive. It keeps what it holds"
    if len(stalled) > 1:
        stalls = "are stalled: their leases have passed, but their processes are alive. They keep what they hold"
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


def run_why(
    scheduler: Scheduler, row: RunRow, labels: Declared | None, usual: Typical, now: int
) -> Why | None:
    """What an executing run waits for; None: it is not known. It costs the same however many items wait."""
    run = scheduler.ledger.runs.get(row.seq)
    graph = scheduler.lifecycle.run_graphs.get(row.seq)
    if run is None or graph is None:
        return None
    found = open_tasks(run)
    running: dict[str, int] = {}
    offered: dict[str, OfferedStep] = {}
    unstopped: dict[str, UnstoppedStep] = {}
    by_token = unstopped_by_token(scheduler.ledger.workers.by_id.values())
    for entry in found.in_flight:
        name = entry.spec.name
        if entry.state == TaskState.SCHEDULED:
            offered[name] = _offered(offered.get(name), entry)
            continue
        running[name] = running.get(name, 0) + 1
        if (each := by_token.get(entry.token)) is not None:
            unstopped[name] = _one_more(unstopped.get(name), each)
    groups: dict[tuple[str, tuple[str, ...]], tuple[TaskEntry, WaitingStep]] = {}
    for entry, count in sorted(found.waiting(now), key=lambda each: each.first.id):
        key = (entry.spec.name, gates_of(scheduler, entry, now))
        first, group = groups.get(key) or (entry, WaitingStep(entry.spec.name, 0, ()))
        until = _earliest(group.until, wait_limits(scheduler.lifecycle, entry))
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
        pending=dict(waiting_nodes(graph)),
        offered=offered,
        running=running,
        unstopped=unstopped,
        note=_stalled_note(scheduler, found.in_flight),
    )


def _offered(known: OfferedStep | None, entry: TaskEntry) -> OfferedStep:
    if known is not None and known.offers >= entry.offers:
        return msgspec.structs.replace(known, count=known.count + 1)
    count = 1 if known is None else known.count + 1
    return OfferedStep(count, entry.worker or "", entry.scheduled_at, entry.offers)


def _one_more(known: UnstoppedStep | None, unstopped: Unstopped) -> UnstoppedStep:
    if known is None:
        return UnstoppedStep(1, unstopped.reason, unstopped.since)
    first = known if known.since <= unstopped.since else unstopped
    return UnstoppedStep(known.count + 1, first.reason, first.since)


def _earliest(known: tuple[Until, ...], more: list[Until]) -> tuple[Until, ...]:
    first: dict[str, Until] = {}
    for each in (*known, *more):
        if each.kind not in first or each.at < first[each.kind].at:
            first[each.kind] = each
    return tuple(first.values())
