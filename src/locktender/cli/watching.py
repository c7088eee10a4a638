"""One run read for display: per step done, running, waiting, and what the waiting ones wait for.

Reads with a connection and a loop of its own, so that looking never keeps the
engine in the same process from deciding.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import msgspec

from locktender.base.changes import TaskRow
from locktender.base.config import Settings
from locktender.base.graph import Graph, Output
from locktender.base.model import RunRow
from locktender.base.states import ENDS, HOLDING, TERMINAL_RUNS, RunState, TaskState
from locktender.cli.reading import Reading
from locktender.observe.why import Why, explain_run

_graph = msgspec.json.Decoder(Graph).decode


@dataclass(frozen=True, slots=True)
class StepView:
    name: str
    total: int | None
    """None: how many items it has is not known yet."""
    done: int
    failed: int
    cancelled: int
    skipped: int
    running: int
    waiting: int
    notes: tuple[str, ...]
    """What the waiting ones wait for."""
    told: str = ""
    """Of running ones that were told to stop and have not."""

    @property
    def over(self) -> bool:
        return self.total is not None and self.ended >= self.total

    @property
    def ended(self) -> int:
        return self.done + self.failed + self.cancelled + self.skipped


@dataclass(frozen=True, slots=True)
class RunView:
    id: str
    flow: str
    state: str
    elapsed_us: int
    """Since it was submitted."""
    steps: tuple[StepView, ...]
    notes: tuple[str, ...]
    """What the run itself waits for, while it is queued."""
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


class Watcher(Reading):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._graphs: dict[str, Graph] = {}

    def look(self, run_id: str) -> RunView:
        return self.call(self._look(run_id))

    async def _look(self, run_id: str) -> RunView:
        store = self.store
        row = await self.core.row(run_id)
        graph = self._graphs.get(row.graph)
        if graph is None:
            graph = self._graphs[row.graph] = _graph(await store.graph(row.graph))
        rows = await store.tasks(row.seq)
        why = None
        if row.state not in TERMINAL_RUNS:
            why = await explain_run(store, run_id, self.core.settings.labels)
        return view_of(row, graph, rows, why, await store.now())


def view_of(row: RunRow, graph: Graph, rows: list[TaskRow], why: Why | None, now: int) -> RunView:
    by_node: dict[int, Counter[str]] = {}
    for task in rows:
        by_node.setdefault(task.node, Counter())[task.state] += 1
    totals: list[int | None] = []
    for index in range(len(graph.nodes)):
        totals.append(_total(graph, totals, index, sum(by_node.get(index, Counter()).values())))
    steps = tuple(
        _step(node.name, total, by_node.get(index, Counter()), why)
        for index, (node, total) in enumerate(zip(graph.nodes, totals, strict=True))
    )
    notes: tuple[str, ...] = ()
    if why is not None and row.state == RunState.QUEUED:
        notes = tuple(reason.text for reason in why.reasons) or ((why.note,) if why.note else ())
    end = row.ended_at or now
    took = end - row.started_at if row.started_at else None
    return RunView(row.id, row.flow, row.state, end - row.queued_at, steps, notes, took)


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
    over = sum(states[state] for state in ENDS)
    running = sum(states[state] for state in HOLDING)
    return StepView(
        name=name,
        total=total,
        done=states[TaskState.COMPLETED],
        failed=states[TaskState.FAILED] + states[TaskState.TIMED_OUT],
        cancelled=states[TaskState.CANCELLED],
        skipped=states[TaskState.SKIPPED],
        running=running,
        waiting=sum(states.values()) - over - running,
        notes=_notes(name, why),
        told=_told(name, running, why),
    )


def _told(name: str, running: int, why: Why | None) -> str:
    stubborn = None if why is None else why.stubborn.get(name)
    return "" if why is None or stubborn is None else stubborn.text(why.now, running)


def _notes(name: str, why: Why | None) -> tuple[str, ...]:
    if why is None:
        return ()
    found: list[str] = []
    for group in why.waiting:
        if group.step == name:
            found += [reason.text for reason in group.reasons]
    if name in why.pending and not found:
        others = why.pending[name]
        found.append(f"after {', '.join(others)}" if others else "its turn")
    return tuple(dict.fromkeys(found))
