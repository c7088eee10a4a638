"""The timeline of a run: what each task waited for, and when it ran, as a page draws it.

It is read from the history that `blame` reads, so that words and sums are the same. At most `MAX_ROWS` tasks
have a row of their own. Steps with more items are folded: how many of its items were in which state, bin by bin,
and rows for the items that waited longest. The answer is small whatever the size of the run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import nlargest, nsmallest
from typing import Final

import msgspec

from locktender.base.events import NO_RUN, EventRow, unpack
from locktender.base.graph import Graph, Node, needs_of
from locktender.base.model import RunRow
from locktender.base.states import ENDS, OUTBOX_RUNS, TERMINAL_RUNS
from locktender.base.text import WORKER_GATE
from locktender.observe.blame import history_rows, instant_of, read_times
from locktender.observe.holders import (
    OWN_GATES,
    HolderNames,
    LostTo,
    Samples,
    charged,
    required_by,
)
from locktender.observe.run_times import RunTimes
from locktender.observe.time_pieces import HAND_OFF, LOST, WORK
from locktender.observe.timeline_spans import (
    Bins,
    Kind,
    SlimHistory,
    SpanKind,
    TaskPhase,
    Whats,
    kind_of,
    node_name,
    slim_history,
)
from locktender.store.graphs import graph_of
from locktender.store.protocol import Store

MAX_ROWS: Final = 400
"""Tasks that have a row of their own."""
FOLD_ABOVE: Final = 24
"""Items of a step that have rows where a run has more tasks than `MAX_ROWS`."""
SLOWEST: Final = 6
"""Items of a folded step that have rows: those that waited longest."""
MAX_BINS: Final = 1_500
BINS: Final = 240
"""Of one folded step, at most."""
PAGE_ITEMS: Final = 200
EXACT_BYTES: Final = 2_000_000
"""A larger history is read by `timeline_spans`."""
MAX_HOLDERS: Final = 200


class TimelineWhat(msgspec.Struct, frozen=True, omit_defaults=True):
    """What time went into, over all tasks: `us` is what `blame` says of it."""

    name: str
    kind: Kind
    us: int
    to: tuple[LostTo, ...] = ()
    """Runs that held the gate, the most first."""


class TimelineSpan(msgspec.Struct, frozen=True, array_like=True):
    """Microseconds from the start of the run; numbers of `whats`, of the attempt, and of `holders` or −1."""

    start: int
    end: int
    what: int
    attempt: int
    holder: int = -1


class TimelineRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task; or the run itself, while no task of it stood anywhere (`task` 0)."""

    name: str
    node: int
    task: int
    state: str
    spans: list[TimelineSpan]
    index: int | None = None
    critical: bool = False


class TimelineFold(msgspec.Struct, frozen=True, omit_defaults=True):
    """The items of a mapped step together."""

    name: str
    node: int
    tasks: int
    states: dict[str, int]
    series: dict[int, list[float]]
    """Number of `whats` → how many items were there on average, per bin."""
    critical: bool = False


class Timeline(msgspec.Struct, frozen=True, omit_defaults=True):
    """What each task of a run waited for, and when it ran. Times are microseconds from `since`."""

    run: str
    state: str
    since: datetime
    wall_us: int
    goes_on: bool
    """`wall_us` is until now."""
    from_us: int
    until_us: int
    """What the bins cover."""
    bins: int
    """Of each folded step."""
    tasks: int
    whats: list[TimelineWhat]
    holders: list[str]
    """Ids of runs that held a gate."""
    rows: list[TimelineRow]
    folds: list[TimelineFold]
    next: int | None = None
    """Of the items of one step: `after` of the next part."""


@dataclass(frozen=True, slots=True)
class TimelinePart:
    """Which part of a timeline: bins between two instants; items of one step from an index on."""

    from_us: int = 0
    until_us: int | None = None
    step: str = ""
    after: int = -1


@dataclass(slots=True)
class _Source:
    """The tasks of a run and their spans, of all or of some."""

    start: int
    end: int
    tasks: dict[int, TaskPhase]
    """Where each stands; in a large run many stand in one."""
    indexes: Mapping[int, int]
    """Of items; below 0 or absent: it is none."""
    spans: Callable[[], Iterable[tuple[SpanKind, Sequence[int]]]]
    critical: Collection[int]
    """Steps on the critical path."""
    critical_tasks: Collection[int]


async def timeline_run(store: Store, row: RunRow, part: TimelinePart | None = None) -> Timeline:
    """The timeline of this run, or a part of it."""
    part = part or TimelinePart()
    rows = [] if row.state in OUTBOX_RUNS else await history_rows(store, row.seq)
    graph = await graph_of(store, row.graph)
    if sum(len(each.body) for each in rows) > EXACT_BYTES:
        now, samples = await store.now(), await _samples(store, row, rows)

        def draw() -> DrawnTimeline:
            return drawn_quickly(slim_history(rows, graph, now), graph, part)

        # In a thread: the engine's own loop goes on meanwhile.
        drawn = await asyncio.to_thread(draw)
    else:
        history = [event for each in rows for event in unpack(each)]
        times, samples = await read_times(store, row, history, graph)
        drawn = drawn_exactly(times, graph, part)
    nodes = () if graph is None else graph.nodes
    return await _named(store, row, nodes, drawn, samples)


async def _samples(store: Store, row: RunRow, rows: Sequence[EventRow]) -> Samples:
    """Who held which gate meanwhile. Only rows that say so are decoded: there are many."""
    last = rows[-1].seq if row.state in TERMINAL_RUNS else None
    common = await history_rows(store, NO_RUN, rows[0].seq - 1, last)
    return Samples(event for each in common if b'"held"' in each.body for event in unpack(each))


def _exact(times: RunTimes) -> _Source:
    """By the rules of `blame`."""
    tasks = {each.id: TaskPhase(each.node, each.state) for each in times.tasks}
    critical_tasks = {each.id for each in times.tasks if each.critical}

    def spans() -> Iterator[tuple[SpanKind, Sequence[int]]]:
        yield from _of_the_run(times)
        for each in times.tasks:
            attempt = 0
            for span in each.spans:
                at = span.start
                for what, us in span.pieces:
                    if us > 0:
                        yield (each.node, what, at, at + us, attempt), (each.id,)
                        at += us
                attempt += any(what in {WORK, LOST} for what, _ in span.pieces)

    if any(task is None and pieces for task, pieces in times.path):
        tasks = {0: TaskPhase(-1, ""), **tasks}
        critical_tasks.add(0)
    critical = {each.node for each in times.tasks if each.critical}
    indexes = {each.id: each.index for each in times.tasks}
    return _Source(times.start, times.end, tasks, indexes, spans, critical, critical_tasks)


def _of_the_run(times: RunTimes) -> Iterator[tuple[SpanKind, Sequence[int]]]:
    at = times.start
    for task, pieces in times.path:
        for what, us in pieces if task is None else ():
            if us > 0:
                yield (-1, what, at, at + us, 0), (0,)
                at += us
        at = at if task is None else task.end


def _slim(history: SlimHistory, graph: Graph | None) -> _Source:
    """Of a large run. Critical are the steps that ended last, one before the other."""
    ends: dict[int, int] = {}
    for each in set(history.tasks.values()):
        end = each.since if each.state in ENDS else max(each.since, history.end)
        ends[each.node] = max(end, ends.get(each.node, 0))
    critical: set[int] = set()
    node = max(ends, key=lambda each: ends[each], default=None)
    while node is not None:
        critical.add(node)
        known = graph is not None and 0 <= node < len(graph.nodes)
        needs = needs_of(graph.nodes[node]) if graph is not None and known else set[int]()
        before = [each for each in sorted(needs) if each in ends and each not in critical]
        node = max(before, key=lambda each: ends[each], default=None)
    alone = [task for task, index in history.indexes.items() if index < 0]
    return _Source(
        history.start,
        history.end,
        history.tasks,
        history.indexes,
        history.spans.items,
        critical,
        {task for task in alone if history.tasks[task].node in critical},
    )


@dataclass(slots=True)
class DrawnTimeline:
    """A timeline whose holders are not named yet."""

    start: int
    end: int
    first: int
    last: int
    tasks: int
    whats: Whats
    rows: list[TimelineRow]
    folds: list[TimelineFold]
    bins: int
    next: int | None = None


def drawn_exactly(times: RunTimes, graph: Graph | None, part: TimelinePart) -> DrawnTimeline:
    return _drawn(_exact(times), graph, part)


def drawn_quickly(history: SlimHistory, graph: Graph | None, part: TimelinePart) -> DrawnTimeline:
    return _drawn(_slim(history, graph), graph, part)


def _drawn(source: _Source, graph: Graph | None, part: TimelinePart) -> DrawnTimeline:
    names = [] if graph is None else [node.name for node in graph.nodes]
    if part.step:
        return _items(source, names, part)
    counts, states = Counter[int](), dict[int, Counter[str]]()
    for phase, count in Counter(source.tasks.values()).items():
        counts[phase.node] += count
        states.setdefault(phase.node, Counter())[phase.state] += count
    many = len(source.tasks) > MAX_ROWS
    folded = {node for node, count in counts.items() if many and count > FOLD_ABOVE}
    alone = [
        (number not in source.critical_tasks, number)
        for number, task in source.tasks.items()
        if task.node not in folded
    ]
    # A flow of very many plain steps: the critical ones first.
    shown = {number for _, number in sorted(alone)[:MAX_ROWS]}
    first = source.start + min(part.from_us, source.end - source.start)
    last = source.end if part.until_us is None else min(source.end, source.start + part.until_us)
    bins = max(24, min(BINS, MAX_BINS // max(1, len(folded))))
    by_node = {node: Bins(first, last, bins) for node in sorted(folded)[: MAX_BINS // bins]}
    whats, waited = Whats(), {node: dict[int, int]() for node in by_node}
    for (node, what, start, end, _), tasks in source.spans():
        number, held = whats.add(what, (end - start) * len(tasks)), by_node.get(node)
        if held is None:
            continue
        held.add(number, start, end, len(tasks))
        if what not in (WORK, HAND_OFF):
            us, of = end - start, waited[node]
            for task in tasks:
                of[task] = of.get(task, 0) + us
    slowest = _slowest(waited.values())
    slowest |= {task for task in source.critical_tasks if source.tasks[task].node in by_node}
    spans = _spans(source, shown | slowest)
    rows = [
        _row(source, task, spans.get(task, []), names, whats) for task in sorted(shown | slowest)
    ]
    folds = [
        TimelineFold(
            node_name(node, names),
            node,
            counts[node],
            dict(states[node]),
            held.series(),
            node in source.critical,
        )
        for node, held in by_node.items()
    ]
    total = len(source.tasks) - (0 in source.tasks)
    return DrawnTimeline(source.start, source.end, first, last, total, whats, rows, folds, bins)


def _spans(source: _Source, only: set[int]) -> dict[int, list[SpanKind]]:
    """Of these tasks."""
    found: dict[int, list[SpanKind]] = {}
    for span, tasks in source.spans():
        for task in only.intersection(tasks):
            found.setdefault(task, []).append(span)
    return found


def _slowest(waited: Iterable[Mapping[int, int]]) -> set[int]:
    """Of each folded step: the items that waited longest. Of equal ones those that were asked for first."""
    found: set[int] = set()
    for of in waited:
        least = min(nlargest(SLOWEST, of.values()), default=0)
        longest = [(-us, task) for task, us in of.items() if us >= least]
        found.update(task for _, task in nsmallest(SLOWEST, longest))
    return found


def _items(source: _Source, names: list[str], part: TimelinePart) -> DrawnTimeline:
    """Of one step, from an index on."""
    found = sorted(
        (index, number)
        for number, index in source.indexes.items()
        if index > part.after and node_name(source.tasks[number].node, names) == part.step
    )
    page = found[:PAGE_ITEMS]
    whats = Whats()
    spans = _spans(source, {number for _, number in page})
    for span in (each for several in spans.values() for each in several):
        whats.add(span[1], span[3] - span[2])
    rows = [_row(source, number, spans.get(number, []), names, whats) for _, number in page]
    more = page[-1][0] if len(found) > len(page) else None
    return DrawnTimeline(
        source.start, source.end, source.start, source.end, len(found), whats, rows, [], 0, more
    )


def _row(
    source: _Source, number: int, spans: list[SpanKind], names: list[str], whats: Whats
) -> TimelineRow:
    task, start, index = source.tasks[number], source.start, source.indexes.get(number, -1)
    return TimelineRow(
        name=node_name(task.node, names) if number else "",
        node=task.node,
        task=number,
        state=task.state,
        spans=[
            TimelineSpan(begin - start, end - start, whats.add(what, 0), attempt)
            for _, what, begin, end, attempt in sorted(spans, key=lambda each: each[2:4])
        ],
        index=None if index < 0 else index,
        critical=number in source.critical_tasks,
    )


async def _named(
    store: Store, row: RunRow, nodes: Sequence[Node], drawn: DrawnTimeline, samples: Samples
) -> Timeline:
    """With the runs that held what was waited for."""
    held: dict[int, int] = {}
    names, numbers = HolderNames(store), dict[str, int]()
    lost: dict[int, dict[int, int]] = {}
    whats = list(drawn.whats.numbers)
    rows: list[TimelineRow] = []
    for each in drawn.rows:
        spans: list[TimelineSpan] = []
        for span in each.spans:
            gate = whats[span.what]
            own = gate.startswith(OWN_GATES)
            start, end = drawn.start + span.start, drawn.start + span.end
            of = required_by(nodes, each.node) if gate == WORKER_GATE else ""
            shares = {row.seq: 1.0} if own else samples.shares(gate, start, end, of)
            for run, us in charged(span.end - span.start, shares).items():
                to = lost.setdefault(span.what, {})
                to[run] = to.get(run, 0) + us
            most = max(shares, key=lambda run: shares[run], default=None)
            if most and (most in held or len(held) < MAX_HOLDERS):
                number = held.setdefault(most, len(held))
                span = msgspec.structs.replace(span, holder=number)
            spans.append(span)
        rows.append(msgspec.structs.replace(each, spans=spans))
    for run in held:
        [known] = await names.of({run: 0})
        numbers[known.run] = len(numbers)
    to_of = {what: await names.of(to) for what, to in lost.items()}
    return Timeline(
        run=row.id,
        state=row.state,
        since=instant_of(drawn.start),
        wall_us=drawn.end - drawn.start,
        goes_on=row.state not in TERMINAL_RUNS,
        from_us=drawn.first - drawn.start,
        until_us=drawn.last - drawn.start,
        bins=drawn.bins if drawn.folds else 0,
        tasks=drawn.tasks,
        whats=[
            TimelineWhat(what, kind_of(what), drawn.whats.us[number], to_of.get(number, ()))
            for what, number in drawn.whats.numbers.items()
        ],
        holders=list(numbers),
        rows=rows,
        folds=drawn.folds,
        next=drawn.next,
    )
