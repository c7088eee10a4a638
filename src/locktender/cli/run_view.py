"""The view of one run: per step done, running and waiting, and the limits it waits at.

It reads through a connection and a loop of its own, so that it never delays the
engine in the same process.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import msgspec

from locktender.base.changes import TaskRow
from locktender.base.config import Settings
from locktender.base.graph import Graph, Output, is_cached
from locktender.base.model import RunRow
from locktender.base.states import ENDS, TERMINAL_RUNS, RunState, TaskState
from locktender.cli.tables import now
from locktender.client.bridge import StoreReader
from locktender.client.run import Run
from locktender.client.run_details import nodes_of
from locktender.kernel.node_state import PASSED
from locktender.observe.answer import Why
from locktender.observe.why import explain_run

CACHED = "cached"
_PASSED = f'"{PASSED}"'.encode()


class StepView(msgspec.Struct, frozen=True):
    name: str
    total: int | None
    """None: how many items it has is not known yet."""
    done: int
    failed: int
    cancelled: int
    skipped: int
    passed: int
    """Not called because their item is an error, which is their result, too."""
    running: int
    offered: int
    """To a worker that has not accepted them yet."""
    waiting: int
    notes: tuple[str, ...]
    """What the waiting ones wait for."""
    not_stopped: str = ""
    """Of running ones that were asked to stop and have not."""
    cached: int = 0
    """Of those done: their result was cached, and no body ran."""

    @property
    def over(self) -> bool:
        return self.total is not None and self.ended >= self.total

    @property
    def ended(self) -> int:
        return self.done + self.failed + self.cancelled + self.skipped + self.passed


class RunView(msgspec.Struct, frozen=True):
    id: str
    flow: str
    state: str
    elapsed_us: int
    """Since it was submitted."""
    steps: tuple[StepView, ...]
    notes: tuple[str, ...]
    """What the run itself waits for, while it is queued, waiting or held."""
    took_us: int | None = None
    """From its start, as `runs list` has it; None: it never started."""

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL_RUNS

    @property
    def done(self) -> int:
        return sum(step.ended for step in self.steps)

    @property
    def total(self) -> int:
        """Tasks known so far; a step whose items are not known yet counts as one."""
        return sum(1 if step.total is None else step.total for step in self.steps)


class Watcher(StoreReader):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._graphs: dict[str, Graph] = {}

    def read(self, run_id: str, why: Why | None = None) -> RunView:
        """`why`: what it waits for, where that was asked already."""
        return self.call(self._look(run_id, why))

    async def _look(self, run_id: str, why: Why | None) -> RunView:
        store = self.store
        row = await self.core.row(run_id)
        graph = self._graphs.get(row.graph)
        if graph is None:
            graph = Graph(row.flow, await nodes_of(store, row.graph))
            self._graphs[row.graph] = graph
        rows = await store.tasks(row.seq)
        if why is None and row.state not in TERMINAL_RUNS:
            why = await explain_run(store, run_id, self.core.settings.labels)
        return view_of(row, graph, rows, why, await store.now())


def view_of(row: RunRow, graph: Graph, rows: list[TaskRow], why: Why | None, now: int) -> RunView:
    by_node: dict[int, Counter[str]] = {}
    for task in rows:
        by_node.setdefault(task.node, Counter())[_state_of(task, graph)] += 1
    totals: list[int | None] = []
    for index in range(len(graph.nodes)):
        totals.append(_total(graph, totals, index, sum(by_node.get(index, Counter()).values())))
    steps = tuple(
        _step(node.name, total, by_node.get(index, Counter()), why)
        for index, (node, total) in enumerate(zip(graph.nodes, totals, strict=True))
    )
    notes = _run_notes(row.state, why)
    end = row.ended_at or now
    took = end - row.started_at if row.started_at else None
    return RunView(row.id, row.flow, row.state, end - row.queued_at, steps, notes, took)


def view_through(run: Run[Any], why: Why | None = None) -> RunView:
    """The same through a client: a server shows no rows."""
    info, graph, tasks = run.info(), run.graph(), run.tasks()
    if why is None and info.state not in TERMINAL_RUNS:
        why = run.why()
    by_name: dict[str, Counter[str]] = {}
    for task in tasks:
        passed = task.error is not None and task.error.type == PASSED
        state = CACHED if task.cached else PASSED if passed else task.state
        by_name.setdefault(task.name, Counter())[state] += 1
    steps: list[StepView] = []
    for node in graph.nodes:
        states = by_name.get(node.name, Counter())
        total = 1 if not node.mapped else sum(states.values()) or None
        steps.append(_step(node.name, total, states, why))
    return RunView(
        info.id,
        info.flow,
        info.state,
        _us(info.queued_at, info.ended_at),
        tuple(steps),
        _run_notes(info.state, why),
        None if info.started_at is None else _us(info.started_at, info.ended_at),
    )


def _us(since: datetime, until: datetime | None) -> int:
    return ((until or now()) - since) // timedelta(microseconds=1)


def _run_notes(state: str, why: Why | None) -> tuple[str, ...]:
    """What a run that has not started waits for."""
    if why is None or state not in (RunState.WAITING, RunState.QUEUED, RunState.HELD):
        return ()
    return tuple(reason.text for reason in why.reasons) or ((why.note,) if why.note else ())


def _state_of(task: TaskRow, graph: Graph) -> str:
    if 0 <= task.node < len(graph.nodes) and is_cached(
        graph.nodes[task.node], task.state, task.attempt
    ):
        return CACHED
    passed = task.state == TaskState.SKIPPED and _PASSED in (task.error or b"")
    return PASSED if passed else task.state


def _total(graph: Graph, totals: list[int | None], index: int, known: int) -> int | None:
    """How many tasks a step will have. A map over a map has as many as that, long before it has rows."""
    over = graph.nodes[index].over
    if over is None:
        return 1
    if isinstance(over, Output) and not over.path and over.node < index:
        source = totals[over.node]
        if graph.nodes[over.node].over is not None and source is not None and source >= known:
            return source
    return known or None


def _step(name: str, total: int | None, states: Counter[str], why: Why | None) -> StepView:
    over = sum(states[state] for state in (*ENDS, PASSED, CACHED))
    running, offered = states[TaskState.RUNNING], states[TaskState.SCHEDULED]
    return StepView(
        name=name,
        total=total,
        done=states[TaskState.COMPLETED] + states[CACHED],
        failed=states[TaskState.FAILED] + states[TaskState.TIMED_OUT],
        cancelled=states[TaskState.CANCELLED],
        skipped=states[TaskState.SKIPPED],
        passed=states[PASSED],
        running=running,
        offered=offered,
        waiting=sum(states.values()) - over - running - offered,
        notes=_notes(name, why),
        not_stopped=_not_stopped(name, running, why),
        cached=states[CACHED],
    )


def _not_stopped(name: str, running: int, why: Why | None) -> str:
    unstopped = None if why is None else why.unstopped.get(name)
    return "" if why is None or unstopped is None else unstopped.text(why.now, running)


def _notes(name: str, why: Why | None) -> tuple[str, ...]:
    if why is None:
        return ()
    found: list[str] = []
    if (offer := why.offered.get(name)) is not None:
        found.append(offer.text(why.now))
    for group in why.waiting:
        if group.step == name:
            found += [reason.text for reason in group.reasons]
    if name in why.pending and not found:
        others = why.pending[name]
        found.append(f"after {', '.join(others)}" if others else "its turn")
    return tuple(dict.fromkeys(found))
