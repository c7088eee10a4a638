"""`blame`: what the time of a run went into, and to whom it was lost.

Of an ended run it reads the history and nothing else. Of a run that goes on it also asks the rules what blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from locktender.base.durations import spoken
from locktender.base.events import NO_RUN, Event, EventRow, unpack
from locktender.base.graph import Graph, Node
from locktender.base.model import RunRow
from locktender.base.states import OUTBOX_RUNS, TERMINAL_RUNS, TaskState
from locktender.base.text import WORKER_GATE
from locktender.kernel.reasons import Reason
from locktender.observe.holders import (
    OWN_GATES,
    HolderNames,
    LostTo,
    Samples,
    charged,
    required_by,
)
from locktender.observe.run_times import RunTimes, TaskTimes, times_of
from locktender.observe.time_pieces import HAND_OFF, PAUSED, WORK, added
from locktender.observe.why import explain_run
from locktender.store.graphs import graph_of
from locktender.store.protocol import EventFilter, Store

PAGE: Final = 10_000
MAX_TASKS: Final = 100
"""Tasks that are named beside those of the critical path: those that waited longest."""
MAX_PATH_SHOWN: Final = 30
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class GateTime(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was lost at one gate."""

    gate: str
    us: int
    to: tuple[LostTo, ...] = ()
    """Runs that held it meanwhile, the most first; empty where that is not known, or where no run holds it."""


class TaskBlame(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the time of one task went into, from its first request to its end: `wall_us` is the sum of the rest."""

    task: int
    name: str
    index: int | None
    state: str
    wall_us: int
    work_us: int = 0
    hand_off_us: int = 0
    gates: dict[str, int] = {}
    critical: bool = False
    """The run would have ended earlier without this task's time."""


class PathPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of the critical path: a task, or the time between two of them."""

    us: int
    spent: dict[str, int]
    """`work`, `hand-off` and gates: microseconds."""
    task: int | None = None
    name: str = ""
    index: int | None = None


class Blame(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to `blame`: `work_us` + `hand_off_us` + all `gates` = `wall_us`, along the critical path."""

    run: str
    flow: str
    state: str
    since: datetime
    until: datetime
    """When it ended; of a run that goes on, now."""
    wall_us: int
    work_us: int
    hand_off_us: int
    gates: tuple[GateTime, ...] = ()
    """The most expensive first."""
    path: tuple[PathPart, ...] = ()
    tasks: tuple[TaskBlame, ...] = ()
    """Those of the critical path, and the others that waited longest."""
    more_tasks: int = 0
    lost_us: dict[str, int] = {}
    """What all its tasks waited at each gate, whether or not that delayed the run."""

    def text(self) -> str:
        """The answer as text, as `print` shows it."""
        lines = [f"run {self.run} ({self.flow}) {self.state}: {spoken(self.wall_us)}"]
        rows = [("own work", self.work_us, "")]
        rows += [(each.gate, each.us, to_text(each.to, self.run)) for each in self.gates]
        rows += [(HAND_OFF, self.hand_off_us, "")]
        width = max(len(name) for name, *_ in rows)
        for name, us, to in rows:
            share = f"{100 * us / self.wall_us:.0f} %" if self.wall_us else "-"
            lines.append(f"  {name:<{width}}  {seconds(us):>11}  {share:>5}  {to}".rstrip())
        lines.append(f"  {'sum':<{width}}  {seconds(self.wall_us):>11}")
        lines.append("Critical path:")
        shown = [part for part in self.path if part.us or part.task is not None]
        for part in shown[:MAX_PATH_SHOWN]:
            name = part.name if part.index is None else f"{part.name}[{part.index}]"
            spent = ", ".join(f"{what} {seconds(us)}" for what, us in part.spent.items())
            lines.append(f"  {name or '·'}: {spent or 'no time'}")
        if len(shown) > MAX_PATH_SHOWN:
            lines.append(f"  and {len(shown) - MAX_PATH_SHOWN} more")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()


def seconds(us: int) -> str:
    return f"{us / 1_000_000:,.3f} s"


def to_text(holders: Iterable[LostTo], own: str = "") -> str:
    """`to 01K5… (tenant=acme) 1.200 s, …`."""
    parts: list[str] = []
    for each in holders:
        tags = ", ".join(f"{key}={value}" for key, value in each.tags.items())
        who = "itself" if each.run == own else f"{each.run}{f' ({tags})' if tags else ''}"
        parts.append(f"{who} {seconds(each.us)}")
    return f"to {', '.join(parts)}" if parts else ""


async def blame_run(store: Store, row: RunRow) -> Blame:
    """What the time of this run went into. Of one that no leader has taken over yet there is nothing to tell."""
    history = [] if row.state in OUTBOX_RUNS else await _events(store, row.seq, 0)
    graph = await graph_of(store, row.graph)
    times, samples = await read_times(store, row, history, graph)
    nodes = () if graph is None else graph.nodes
    return _blame(row, nodes, times, await _lost_to(store, row.seq, nodes, times, samples))


async def read_times(
    store: Store, row: RunRow, history: Sequence[Event], graph: Graph | None
) -> tuple[RunTimes, Samples]:
    """What the time of each task went into, and who held which gate meanwhile."""
    ended = row.state in TERMINAL_RUNS or row.state in OUTBOX_RUNS
    first, last = (history[0].seq, history[-1].seq) if history else (1, 1)
    common = await _events(store, NO_RUN, first - 1, last if ended else None)
    gates: dict[int, str] = {}
    if not ended:
        nodes = () if graph is None else graph.nodes
        gates = await _gates_now(store, row, history, common, nodes)
    now = await store.now()
    elections = [event.at for event in common if event.subject == "leader"]
    return times_of(history, graph, now, gates, elections), Samples(common)


async def _lost_to(
    store: Store, own: int, nodes: Sequence[Node], times: RunTimes, samples: Samples
) -> dict[str, tuple[LostTo, ...]]:
    """Gate → who held it while the critical path waited there."""
    lost: dict[str, dict[int, int]] = {}
    for task, span in times.spans():
        of = required_by(nodes, -1 if task is None else task.node)
        for gate, us in span.pieces:
            shares = samples.shares(gate, span.start, span.end, of if gate == WORKER_GATE else "")
            if gate.startswith(OWN_GATES):
                shares = {own: 1.0}
            to = lost.setdefault(gate, {})
            for run, part in charged(us, shares).items():
                to[run] = to.get(run, 0) + part
    names = HolderNames(store)
    return {gate: await names.of(to) for gate, to in lost.items()}


async def _events(store: Store, run: int, after: int, until: int | None = None) -> list[Event]:
    return [event for row in await history_rows(store, run, after, until) for event in unpack(row)]


async def history_rows(
    store: Store, run: int, after: int = 0, until: int | None = None
) -> list[EventRow]:
    found: list[EventRow] = []
    while rows := await store.events(EventFilter(run=run, after=after, limit=PAGE)):
        found += rows
        after = rows[-1].seq
        if len(rows) < PAGE or (until is not None and after > until):
            break
    return found


async def _gates_now(
    store: Store,
    row: RunRow,
    history: Sequence[Event],
    common: Iterable[Event],
    nodes: Sequence[Node],
) -> dict[int, str]:
    """What blocks its tasks now, and the run itself under 0: by the lanes' events, else by the rules."""
    lanes = {
        event.data["lane"]: event.after
        for event in sorted((*history, *common), key=lambda event: event.seq)
        if event.subject == "wait" and "lane" in event.data
    }
    asked: dict[int, Event] = {}
    for event in history:
        if event.subject == "task":
            asked[event.task] = event
    why = await explain_run(store, row.id)
    told = any(each.subject == "pause" for each in history)
    steps = {each.step: gate for each in why.waiting if (gate := _first(each.reasons, told))}
    own = _first(why.reasons, told)
    found: dict[int, str] = {0: own} if own else {}
    for task, event in asked.items():
        if event.after != TaskState.REQUESTED:
            continue
        node: int = event.data.get("node", -1)
        name = nodes[node].name if 0 <= node < len(nodes) else ""
        gate = steps.get(name) or lanes.get(event.data.get("lane", ""))
        if gate:
            found[task] = gate
    return found


def _first(reasons: Iterable[Reason], told: bool) -> str:
    """The first gate in the order of decision. `told`: when the run was paused is in its history."""
    gates = (PAUSED if each.gate == "pause" else each.gate for each in reasons)
    return next((gate for gate in gates if not (told and gate == PAUSED)), "")


def _blame(
    row: RunRow, nodes: Sequence[Node], times: RunTimes, to: Mapping[str, tuple[LostTo, ...]]
) -> Blame:
    def name_of(task: TaskTimes) -> str:
        return nodes[task.node].name if 0 <= task.node < len(nodes) else f"node {task.node}"

    spent = times.spent()
    lost: dict[str, int] = added(
        piece for task in times.tasks for piece in task.pieces if piece.what not in {WORK, HAND_OFF}
    )
    others = sorted((task for task in times.tasks if not task.critical), key=_waited, reverse=True)
    critical = [task for task, _ in times.path if task is not None]
    shown = [*critical, *others[:MAX_TASKS]]
    return Blame(
        row.id,
        row.flow,
        row.state,
        instant_of(times.start),
        instant_of(times.end),
        times.end - times.start,
        spent.get(WORK, 0),
        spent.get(HAND_OFF, 0),
        tuple(
            GateTime(gate, us, to.get(gate, ()))
            for gate, us in _by_cost(spent)
            if gate not in {WORK, HAND_OFF}
        ),
        tuple(
            PathPart(
                sum(piece.us for piece in pieces),
                added(pieces),
                None if task is None else task.id,
                "" if task is None else name_of(task),
                None if task is None or task.index < 0 else task.index,
            )
            for task, pieces in times.path
        ),
        tuple(_task(task, name_of(task)) for task in shown),
        len(others) - len(others[:MAX_TASKS]),
        dict(_by_cost(lost)),
    )


def _task(task: TaskTimes, name: str) -> TaskBlame:
    spent = task.spent()
    return TaskBlame(
        task.id,
        name,
        None if task.index < 0 else task.index,
        task.state,
        task.end - task.start,
        spent.pop(WORK, 0),
        spent.pop(HAND_OFF, 0),
        dict(_by_cost(spent)),
        task.critical,
    )


def _waited(task: TaskTimes) -> int:
    return sum(us for what, us in task.pieces if what not in {WORK, HAND_OFF})


def _by_cost(spent: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(spent.items(), key=lambda each: (-each[1], each[0]))


def instant_of(at: int) -> datetime:
    return _EPOCH + timedelta(microseconds=at)
