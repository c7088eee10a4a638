"""The view of one run: per step done, running and waiting, and the limits it waits at; live or as lines.

It reads through a connection and a loop of its own, so that it never delays the
engine in the same process.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from locktender.base.changes import TaskRow
from locktender.base.config import Settings
from locktender.base.durations import spoken
from locktender.base.graph import Graph, Output, is_cached
from locktender.base.model import RunRow
from locktender.base.states import ENDS, TERMINAL_RUNS, RunState, TaskState
from locktender.cli.output import escape
from locktender.cli.tables import SHORTEST, now, state
from locktender.client.bridge import StoreReader
from locktender.client.run import Run
from locktender.client.run_details import nodes_of
from locktender.kernel.node_state import PASSED
from locktender.observe.answer import Why
from locktender.observe.why import explain_run

CACHED = "cached"
_PASSED = f'"{PASSED}"'.encode()


@dataclass(frozen=True, slots=True)
class StepView:
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


@dataclass(frozen=True, slots=True)
class RunView:
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

    def read(self, run_id: str) -> RunView:
        return self.call(self._look(run_id))

    async def _look(self, run_id: str) -> RunView:
        store = self.store
        row = await self.core.row(run_id)
        graph = self._graphs.get(row.graph)
        if graph is None:
            graph = Graph(row.flow, await nodes_of(store, row.graph))
            self._graphs[row.graph] = graph
        rows = await store.tasks(row.seq)
        why = None
        if row.state not in TERMINAL_RUNS:
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


def view_through(run: Run[Any]) -> RunView:
    """The same through a client: a server shows no rows."""
    info, graph, tasks = run.info(), run.graph(), run.tasks()
    why = None if info.state in TERMINAL_RUNS else run.why()
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
    stubborn = None if why is None else why.stubborn.get(name)
    return "" if why is None or stubborn is None else stubborn.text(why.now, running)


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


PLAIN_FIRST_US = 500_000
PLAIN_EVERY_US = 1_000_000


class Screen(Protocol):
    def show(self, view: RunView) -> None: ...
    def say(self, text: str) -> None: ...
    def close(self) -> None: ...


def screen_for(console: Console, *, plain: bool) -> Screen:
    """Live on a terminal, unless `plain`."""
    if plain or not console.is_terminal or console.is_dumb_terminal or "NO_COLOR" in os.environ:
        return Plain(console)
    return Moving(console)


class Silent:
    """Nothing until the end."""

    def show(self, view: RunView) -> None: ...
    def say(self, text: str) -> None: ...
    def close(self) -> None: ...


class Moving:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()
        self._said = ""

    def show(self, view: RunView) -> None:
        parts: list[RenderableType] = [picture(view, self._console.height - 4)]
        if self._said:
            parts.append(Text(self._said, style="bold yellow"))
        self._live.update(Group(*parts), refresh=True)

    def say(self, text: str) -> None:
        self._said = text

    def close(self) -> None:
        self._live.stop()


class Plain:
    """At most one line per step and second, and only if it says something new."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_us = PLAIN_FIRST_US
        self._shown: dict[str, str] = {}

    def show(self, view: RunView) -> None:
        if view.elapsed_us < self._next_us or view.ended:
            return
        self._next_us = view.elapsed_us + PLAIN_EVERY_US
        for note in view.notes:
            self._print_change(view, "", f"{view.state}: {note}")
        if view.notes:
            return
        for step in view.steps:
            if step.running or step.waiting or step.offered:
                self._print_change(view, step.name, f"{step.name} {counts(step)}")

    def _print_change(self, view: RunView, subject: str, text: str) -> None:
        if self._shown.get(subject) != text:
            self._shown[subject] = text
            self.say(f"{spoken(view.elapsed_us):>6}  {view.done}/{view.total}  {text}")

    def say(self, text: str) -> None:
        self._console.print(escape(text), soft_wrap=True)

    def close(self) -> None: ...


def counts(step: StepView) -> str:
    """`3/6, 2 running, 1 waiting (pool db: 2 of 2 in use)`"""
    parts = [f"{step.done}/{'?' if step.total is None else step.total}"]
    for number, word in (
        (step.cached, "cached"),
        (step.failed, "failed"),
        (step.cancelled, "cancelled"),
        (step.skipped, "skipped"),
        (step.passed, "not called for an error"),
        (step.running, "running"),
        (step.offered, "offered"),
        (step.waiting, "waiting"),
    ):
        if number:
            parts.append(f"{number} {word}")
    text = ", ".join(parts)
    if step.running and step.not_stopped:
        text += f"; {step.not_stopped}"
    return (
        f"{text} ({'; '.join(step.notes)})" if step.waiting + step.offered and step.notes else text
    )


def picture(view: RunView, height: int) -> RenderableType:
    """All of a run, cut to `height` lines: what moves is kept, what is over goes first."""
    short = view.flow.rpartition(":")[2]
    head = (
        f"[bold]{escape(short)}[/] [dim]{view.id[:SHORTEST]}[/] {state(view.state)}"
        f" [dim]{_time(view)}[/]"
    )
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True, min_width=12, max_width=22, overflow="ellipsis")
    grid.add_column(width=10)
    grid.add_column(justify="right", no_wrap=True, min_width=7)
    grid.add_column(ratio=1, overflow="ellipsis", no_wrap=True)
    shown = _most_lively(view.steps, max(3, height - 4))
    for step in shown:
        _add(grid, step)
    lines: list[RenderableType] = [Text.from_markup(head)]
    lines += [Text(f"  {note}", style="yellow") for note in view.notes]
    lines.append(grid)
    if len(shown) < len(view.steps):
        lines.append(Text(f"  and {len(view.steps) - len(shown)} more steps", style="dim"))
    lines.append(_overall(view))
    return Group(*lines)


def _time(view: RunView) -> str:
    """How long it took, as lists say it; of one that waits to start, for how long."""
    if view.took_us is not None:
        return spoken(view.took_us)
    return "-" if view.ended else spoken(view.elapsed_us)


def _add(grid: Table, step: StepView) -> None:
    over = step.ended
    colour = "red" if step.failed else "green" if step.over else "cyan"
    total = step.total or 1
    grid.add_row(
        f"  {escape(step.name)}",
        ProgressBar(total=total, completed=over, width=10, complete_style=colour,
                    finished_style=colour),
        f"{over}/{'?' if step.total is None else step.total}",
        _moving(step),
    )  # fmt: skip
    if step.waiting or step.offered:
        for note in step.notes[:2]:
            grid.add_row("", "", "", f"[dim]└ {escape(note)}[/]")


def _moving(step: StepView) -> str:
    parts: list[str] = []
    if step.cached:
        parts.append(f"[green]{step.cached} cached[/]")
    if step.failed:
        parts.append(f"[red]{step.failed} failed[/]")
    if step.cancelled:
        parts.append(f"[magenta]{step.cancelled} cancelled[/]")
    if step.skipped:
        parts.append(f"[dim]{step.skipped} skipped[/]")
    if step.passed:
        parts.append(f"[yellow]{step.passed} not called for an error[/]")
    if step.running:
        note = f"; [red]{escape(step.not_stopped)}[/]" if step.not_stopped else ""
        parts.append(f"[cyan]{step.running} running[/]{note}")
    if step.offered:
        parts.append(f"[yellow]{step.offered} offered[/]")
    if step.waiting:
        parts.append(f"[yellow]{step.waiting} waiting[/]")
    elif step.notes and not step.running and not step.offered and not step.over:
        parts.append(f"[dim]{escape(step.notes[0])}[/]")
    return ", ".join(parts)


def _overall(view: RunView) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    total = max(1, view.total)
    share = f"{100 * view.done // total} %"
    grid.add_row(
        ProgressBar(
            total=total,
            completed=view.done,
            width=46,
            complete_style="cyan",
            finished_style="green",
        ),
        f"[bold]{view.done}/{view.total}[/] {share}",
    )
    return grid


def _most_lively(steps: tuple[StepView, ...], most: int) -> list[StepView]:
    """At most `most` lines of steps, in the flow's order."""
    if len(steps) <= most // 2:
        return list(steps)
    ranked = sorted(
        range(len(steps)),
        key=lambda at: (
            not steps[at].running,
            not steps[at].waiting + steps[at].offered,
            steps[at].over,
        ),
    )
    kept: set[int] = set()
    lines = 0
    for at in ranked:
        lines += 1 + (min(2, len(steps[at].notes)) if steps[at].waiting + steps[at].offered else 0)
        if lines > most:
            break
        kept.add(at)
    return [steps[at] for at in sorted(kept)]
