"""Rebuild: continue a run from its rows, in a new leader or for `why`.

Unfinished work of the last leader is done here: a failed task is retried or
ends, an abandoned or handed-back task is requested again, and tasks that have
no row yet are requested.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from locktender.base import ids
from locktender.base.changes import TaskRow
from locktender.base.events import Change
from locktender.base.graph import Graph, needs_of, outputs, templates
from locktender.base.model import RUN_AGAIN, RunRow
from locktender.base.states import RunState, TaskState
from locktender.kernel import render
from locktender.kernel.dag import RunGraph
from locktender.kernel.entries import RunEntry, TaskEntry
from locktender.kernel.lifecycle import Lifecycle, failure_of
from locktender.kernel.node_state import PLAIN, SLICE, UNNEEDED, Existing

_AGAIN = msgspec.json.encode(RUN_AGAIN)
_UNNEEDED = UNNEEDED.encode()
LEADER_CHANGED = "its leader changed"


def restore_runs(
    lifecycle: Lifecycle,
    graphs: Mapping[str, Graph],
    runs: Iterable[RunRow],
    tasks: Iterable[TaskRow],
    now: int,
    unplaced: Iterable[int] = (),
) -> Iterator[None]:
    """Take up runs where their rows stand; a break after every `SLICE` rows and after each run."""
    by_run: dict[int, list[TaskRow]] = {}
    for number, task in enumerate(tasks, 1):
        if not number % SLICE:
            yield
        by_run.setdefault(ids.run_of(task.id), []).append(task)
    without_place = frozenset(unplaced)
    for row in runs:
        lifecycle.at_run = row.seq
        rows, placed = by_run.pop(row.seq, []), row.seq not in without_place
        yield from restore_run(lifecycle, row, graphs[row.graph], rows, now, placed=placed)
        yield
    lifecycle.at_run = 0


def restore_run(
    lifecycle: Lifecycle,
    row: RunRow,
    graph: Graph,
    rows: list[TaskRow],
    now: int,
    *,
    placed: bool = True,
    charged: bool = False,
) -> Iterator[None]:
    """Take up one run; its graph goes on from one node to the next between two breaks.

    `placed`: it did not give its place back. `charged`: it has just passed its gates.
    """
    run = lifecycle.ledger.add_run(row, graph, charged=charged, placed=placed)
    run_graph = lifecycle.enter(run)
    existing: list[Existing] = []
    open_rows: list[tuple[TaskEntry, TaskRow]] = []
    for number, task in enumerate(rows, 1):
        if not number % SLICE:
            yield
        ordinal = ids.ordinal_of(task.id)
        if task.state == TaskState.PENDING:
            run.pending[task.id] = task
            _note_opened(run, run_graph, task)
            existing.append(_again(task))
            continue
        _note_opened(run, run_graph, task)
        final = task.state in (TaskState.COMPLETED, TaskState.CANCELLED, TaskState.SKIPPED)
        if not final:
            entry = _entry(run, task)
            if task.state in (TaskState.FAILED, TaskState.TIMED_OUT):
                final = not lifecycle.retries(entry, failure_of(task.error))
            if not final:
                lifecycle.tasks[entry.id] = entry
                lifecycle.ledger.enter(entry)
                open_rows.append((entry, task))
        existing.append(
            Existing(task.node, task.idx, ordinal, task.state, task.output, task.error, final)
        )
    # The graph first: it may close a map whose waiting items must then not stand in line.
    stopping, failing = row.verdict is not None, row.verdict == RunState.FAILED
    advance = yield from run_graph.beginning(existing, stopping=stopping, failing=failing)
    lifecycle.apply(run, advance, now)
    for number, (entry, task) in enumerate(open_rows):
        if not number % SLICE:
            yield
        if lifecycle.tasks.get(entry.id) is entry:
            _pick_up(lifecycle, entry, task, now)
    if row.verdict is not None and row.seq in lifecycle.run_graphs:
        lifecycle.wind_down(run, now, force=False)
    lifecycle.close_if_finished(run, now)


def _note_opened(run: RunEntry, graph: RunGraph, task: TaskRow) -> None:
    """A map over a list was opened when its first items were asked for."""
    step = graph.steps[task.node]
    if task.requested_at and step.mapped and step.source is None and not run.row.generation:
        known = run.opened.get(task.node, task.requested_at)
        run.opened[task.node] = min(known, task.requested_at)


def start_again(lifecycle: Lifecycle, run: RunEntry, rows: Sequence[TaskRow], now: int) -> None:
    """Start a retried run over the rows of its earlier tries.

    Completed tasks keep their results, and so do collected errors: other steps may have taken them. Every
    other row is *pending* from the commit of this start on: it is the same row that is requested or skipped
    when its turn comes, however late and whichever leader does it.
    """
    run_graph = lifecycle.enter(run)
    undone = _undone(run.graph, rows)
    existing: list[Existing] = []
    for row in rows:
        if row.node not in undone and (
            row.state == TaskState.COMPLETED or _is_collected(lifecycle, run, row)
        ):
            ordinal = ids.ordinal_of(row.id)
            existing.append(
                Existing(row.node, row.idx, ordinal, row.state, row.output, row.error, final=True)
            )
            continue
        if row.state != TaskState.PENDING:
            change = Change("task", row.id, row.state, TaskState.PENDING, 0, {})
            lifecycle.commit_builder.record(run.seq, change)
        if run.graph.nodes[row.node].event is not None:
            # Of a run that was held while it stood. It may be opened again in this commit.
            lifecycle.commit_builder.commit.waits_over.append(row.id)
        pending = TaskRow(row.id, row.node, row.idx, TaskState.PENDING, row.attempt)
        lifecycle.commit_builder.add_again(pending)
        run.pending[row.id] = pending
        existing.append(_again(pending))
    lifecycle.apply(run, run_graph.begin(existing), now)


def _is_collected(lifecycle: Lifecycle, run: RunEntry, row: TaskRow) -> bool:
    """Whether a task failed for good and its error was handed on as a value. A clean-up is done again anyway."""
    node = run.graph.nodes[row.node]
    return (
        row.state in (TaskState.FAILED, TaskState.TIMED_OUT)
        and row.idx != PLAIN
        and (node.on_error, node.run_if) == ("collect", "success")
        and not lifecycle.retries(_entry(run, row), failure_of(row.error))
    )


def _again(row: TaskRow) -> Existing:
    ordinal = ids.ordinal_of(row.id)
    return Existing(row.node, row.idx, ordinal, row.state, None, None, final=False, again=True)


def _entry(run: RunEntry, row: TaskRow) -> TaskEntry:
    entry = TaskEntry(row.id, run, row.node, row.idx, run.graph.nodes[row.node])
    entry.state = row.state
    entry.attempt, entry.tries = row.attempt, row.tries
    entry.abandons, entry.offers = row.abandons, row.offers
    entry.token, entry.worker = row.token, row.worker
    entry.requested_at, entry.scheduled_at = row.requested_at, row.scheduled_at
    entry.started_at, entry.not_before = row.started_at, row.not_before
    entry.eligible_at = row.eligible_at
    entry.input = row.input
    entry.stored = True
    return entry


def _pick_up(lifecycle: Lifecycle, entry: TaskEntry, row: TaskRow, now: int) -> None:
    scope = lifecycle.run_graphs[entry.run.seq].scope
    item = row.input if row.idx != PLAIN else None
    entry.pools = render.pool_needs(entry.spec, scope, item)
    if entry.spec.cache is not None:
        lifecycle.cache.prepare(entry, scope, item)
    match row.state:
        case TaskState.REQUESTED:
            lifecycle.stand_in_line(entry, now)
        case TaskState.SCHEDULED | TaskState.RUNNING:
            lifecycle.ledger.hold(entry)
            if row.state == TaskState.SCHEDULED:
                lifecycle.watch_offer(entry, now)
        case TaskState.FAILED | TaskState.TIMED_OUT:
            lifecycle.judge(entry, failure_of(row.error), now)
        case TaskState.ABANDONED | TaskState.HANDED_BACK if _with_its_worker(row):
            # Its leader died before it could write for how long the slots stay taken.
            lifecycle.ledger.hold(entry)
            for until in lifecycle.ledger.release_lost(entry, row.ended_at, now):
                lifecycle.timers.set(until, "linger", entry.id)
            lifecycle.ask_again(entry, row.state, now, LEADER_CHANGED)
        case _:
            declined = row.started_at < row.scheduled_at
            lifecycle.ask_again(entry, row.state, now, LEADER_CHANGED, declined=declined)


def _with_its_worker(row: TaskRow) -> bool:
    """Whether the attempt ended because its worker was declared lost; what a worker hands back has no error."""
    return row.state == TaskState.ABANDONED or row.error is not None


def _is_skipped(row: TaskRow) -> bool:
    """Whether the last try skipped it. A row that it had no use for says nothing: its map may have been empty."""
    if row.state == TaskState.PENDING:
        # Not decided before its run was held. If it had run before, that try has reset what follows from it.
        return True
    return row.state == TaskState.SKIPPED and _UNNEEDED not in (row.error or b"")


def _undone(graph: Graph, rows: Sequence[TaskRow]) -> AbstractSet[int]:
    """Nodes that a retry runs again although tasks of theirs completed, or gave errors as values.

    A clean-up (`run_if="always"` or `"failure"`) that was not skipped is done once more, and so is everything that
    follows from it. If it completed, it has removed what it was given: what made that is done once more, too.
    """
    undone = {row.node for row in rows if row.error == _AGAIN}
    completed = {row.node for row in rows if row.state == TaskState.COMPLETED}
    skipped = {row.node for row in rows} - {row.node for row in rows if not _is_skipped(row)}
    for index, node in enumerate(graph.nodes):
        # A map without items has no rows, and was not skipped.
        if node.run_if == "success" or index in skipped:
            continue
        undone.add(index)
        if index in completed:
            undone |= {ref.node for each in templates(node) for ref in outputs(each)}
    # Nodes stand in the order of their calls: what a node needs comes before it.
    for index, node in enumerate(graph.nodes):
        if not undone.isdisjoint(needs_of(node)):
            undone.add(index)
    return undone


def nodes_from(graph: Graph, first: int) -> frozenset[int]:
    """A node and all that follow it, with its result or only in order."""
    if graph.sequential:
        return frozenset(range(first, len(graph.nodes)))
    found = {first}
    for index, node in enumerate(graph.nodes):
        if not found.isdisjoint(needs_of(node)):
            found.add(index)
    return frozenset(found)
