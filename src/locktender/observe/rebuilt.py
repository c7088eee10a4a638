"""What the leader has in memory, rebuilt from rows, read-only, for `why` and other questions.

The order of the queue is priority, then fair turn, then age. Each start of a run
records its turn in the history, and turns only grow, so the end of the history is
enough to know them. A new leader or a changed fair key resets them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace

from locktender.base.changes import TaskRow
from locktender.base.events import NO_RUN, Event, EventRow, unpack
from locktender.base.graph import Graph
from locktender.base.ids import run_of
from locktender.base.limits import Fair, Limits
from locktender.base.model import RunRow
from locktender.base.states import RunState, TaskState
from locktender.kernel import clock_jump, lanes
from locktender.kernel.estimates import MAX_DURATIONS_PER_STEP
from locktender.kernel.fair_turns import Turns
from locktender.kernel.lanes import rank
from locktender.kernel.lifecycle import Defaults
from locktender.kernel.liveness import set_stalled, stalled_by_rows
from locktender.kernel.queue_position import QueueGroup, QueuePosition
from locktender.kernel.reasons import Typical
from locktender.kernel.scheduler import Scheduler
from locktender.kernel.timeouts import UNKNOWN_US
from locktender.kernel.waiting_runs import put_cached
from locktender.store.protocol import (
    EventFilter,
    Heads,
    QueueEntry,
    QueueLine,
    QueuePlace,
    QueueView,
    Snapshot,
    Store,
)
from locktender.store.readable import readable


async def rebuild(store: Store) -> tuple[Scheduler, Snapshot]:
    """A ledger of all active work as the rows have it now. It decides nothing and writes nothing."""
    snapshot = await store.load(lost=False)
    scheduler = Scheduler(snapshot.limits, 0, "why", Defaults(dispatch_deadline_us=UNKNOWN_US))
    known = {row.kind for row in snapshot.limit_rows if row.effective is not None}
    scheduler.ledger.default_runs = "runs" not in known
    found = await readable(store, snapshot)
    scheduler.graphs.update(found.graphs)
    restored = clock_jump.restore(
        scheduler,
        found.runs,
        found.tasks,
        snapshot.workers,
        snapshot.buckets,
        snapshot.now,
        lingers=snapshot.lingers,
        unplaced=snapshot.unplaced,
        kept=snapshot.kept,
    )
    for _ in restored:
        # A server answers its other requests between two slices.
        await asyncio.sleep(0)
    scheduler.held.restore(snapshot.held, snapshot.held_tasks, found.graphs, snapshot.now)
    set_stalled(scheduler, stalled_by_rows(snapshot.workers, snapshot.now), snapshot.now)
    # What they wait for is said as if nothing was cached for them: the leader will find out in a moment.
    put_cached(scheduler.lifecycle, scheduler.lifecycle.cache.unread(), {}, {}, snapshot.now)
    for kept in snapshot.reservations:
        entry = scheduler.lifecycle.tasks.get(kept.task)
        if entry is not None and entry.lane is not None:
            scheduler.ledger.task_queue.reserve(entry.lane, entry)
    return scheduler, snapshot


def typical(snapshot: Snapshot, scheduler: Scheduler) -> Typical:
    """Usual durations, from what has ended lately."""
    by_step: dict[str, list[int]] = {}
    for row in snapshot.tasks:
        if row.state == TaskState.COMPLETED and row.started_at:
            by_step.setdefault(_step(scheduler, row), []).append(row.ended_at - row.started_at)
    steps = {step: times for step, times in by_step.items() if step}
    holds = {step: tuple(sorted(times[-MAX_DURATIONS_PER_STEP:])) for step, times in steps.items()}
    return Typical({step: median(times) for step, times in steps.items()}, holds=holds)


def _step(scheduler: Scheduler, row: TaskRow) -> str:
    run = scheduler.ledger.runs.get(run_of(row.id))
    return "" if run is None else run.graph.nodes[row.node].step


def median(values: list[int]) -> int:
    return sorted(values)[len(values) // 2]


MAX_RUNS_COUNTED = 10_000
"""Queued runs that are counted in each direction: some milliseconds, however many are queued."""
TAILS = (500, 5_000)
"""Rows of the history that are read to learn the turns: first a few, then more, then what is known must do."""


async def line_of(store: Store, row: RunRow, view: QueueView) -> QueuePosition:
    """The runs before a queued run."""
    found, fair = view.line, view.limits.fair
    groups = groups_of(found)
    if fair is None:
        if found.ahead is None or not found.cut:
            return QueuePosition(Turns(), "", found.rank, groups)
        if not view.limits.tags and not found.more:
            # No lane is held up alone: it does not matter of which they are.
            groups = [QueueGroup("", found.rank, found.ahead + 1, found.ahead)]
            return QueuePosition(Turns(), "", found.rank, groups)
        before, more = found.ahead, found.more
        return QueuePosition(Turns(), "", found.rank, groups, cut=True, before=before, more=more)
    own = row.tags.get(fair.key, "")
    turns, known = Turns(), True
    if len({group.value for group in groups} | {own}) > 1:
        if found.cut:
            turns.set(fair)  # turns are unknown if the count is incomplete
        else:
            turns, known = await turns_taken(store, fair)
    return QueuePosition(turns, own, found.rank, groups, known=known, cut=found.cut)


def places(view: QueueView) -> Scheduler:
    """Who holds which places at the run gates, as the rows have it now. It decides nothing and writes nothing."""
    scheduler = Scheduler(view.limits, 0, "why", Defaults(dispatch_deadline_us=UNKNOWN_US))
    known = {row.kind for row in view.limit_rows if row.effective is not None}
    scheduler.ledger.default_runs = "runs" not in known
    unplaced = frozenset(view.unplaced)
    scheduler.ledger.keep_places(view.kept)
    for row in view.executing:
        # What an executing run's row does not say right is a fault: the leader holds it.
        if row.state == RunState.HELD or not row.unreadable:
            graph = Graph(row.flow, ())
            scheduler.ledger.add_run(row, graph, charged=False, placed=row.seq not in unplaced)
    return scheduler


def groups_of(line: QueueLine) -> list[QueueGroup]:
    """Who waits beside a run, as the kernel reads it."""
    groups: list[QueueGroup] = []
    for group in line.groups:
        counters, value = lanes.read(group.lane)
        if not lanes.holds(group.lane) and group.lane != lanes.PAUSED:
            groups.append(QueueGroup(value, group.rank, group.waiting, group.older, counters))
    return groups


async def turns_taken(store: Store, fair: Fair) -> tuple[Turns, bool]:
    """The clocks of the leader, and whether that is all of them."""
    turns = Turns()
    turns.set(fair)
    if await store.leader() is None:
        return turns, True  # the next leader begins anew
    known = False
    for tail in TAILS:
        rows = await store.events(EventFilter(limit=tail, newest=True))
        turns, known = replayed(_turn_events(rows), fair, whole=len(rows) < tail)
        if known:
            break
    return turns, known


def _turn_events(rows: Sequence[EventRow]) -> Iterator[Event]:
    """What may concern turns, the last first."""
    for row in reversed(rows):
        if row.run <= NO_RUN or b'"turn":' in row.body:
            yield from reversed(unpack(row))


def replayed(events: Iterable[Event], fair: Fair, *, whole: bool) -> tuple[Turns, bool]:
    """The clocks after the first of `events` (the last comes first), and whether those are all.

    `whole`: there are no more events than these.
    """
    turns = Turns()
    turns.set(fair)
    term = first_cycle = 0
    last: int | None = None
    for event in events:
        term = term or event.term
        if event.term and (event.term < term or event.cycle < first_cycle):
            return turns, True
        if event.subject == "audit" and event.after in {"pruned", "summed"}:
            return turns, False
        if event.subject == "limit" and event.data.get("kind") == "fair":
            first_cycle = event.cycle  # what this very cycle started came after it
        value, turn = _start(event)
        if value is None:
            continue
        last = turn if last is None else last
        if turn <= last - Turns.STEP:
            return turns, True
        turns.present = last
        turns.clock.setdefault(value, turn + Turns.STEP // fair.weight(value))
    return turns, whole


def _start(event: Event) -> tuple[str | None, int]:
    value, turn = event.data.get("fair"), event.data.get("turn")
    if event.subject != "run" or event.after != RunState.RUNNING:
        return None, 0
    return (value, turn) if isinstance(value, str) and isinstance(turn, int) else (None, 0)


MAX_HEADS_READ = 4_096
"""Rows that are read to find whose turn comes first. Where more lanes wait than that, the oldest of them count."""


async def queue_in_order(
    store: Store, limit: int, after: QueuePlace | None = None
) -> list[QueueEntry]:
    """`limit` queued runs in the order in which they start if no other run comes: the first, or those behind
    `after`. With a fair key the order is known of the first `MAX_HEADS_READ` only, and `after` is its position."""
    limits, _ = await store.limits()
    if limits.fair is None:
        return await store.queue(limit, after)
    if after is not None:
        return (await queue_in_order(store, after.position + limit))[after.position :]
    lanes = (await store.load(lost=False)).lanes
    heads = await store.heads(Heads(lanes, min(limit, MAX_HEADS_READ), max(limit, MAX_HEADS_READ)))
    turns, _ = await turns_taken(store, limits.fair)
    rows = in_turn([row for row in heads if row.kind == "flow"], limits, turns)[:limit]
    return [QueueEntry(row, place) for place, row in enumerate(rows, 1)]


def in_turn(rows: list[RunRow], limits: Limits, turns: Turns) -> list[RunRow]:
    """`rows` in the order of their turns, which are taken here."""
    lines: dict[str, list[tuple[int, int, int, RunRow]]] = {}
    for row in rows:
        value = "" if limits.fair is None else row.tags.get(limits.fair.key, "")
        first, second = rank(limits, row.priority, row.queued_at)
        lines.setdefault(value, []).append((first, second, row.seq, row))
    for line in lines.values():
        line.sort(key=lambda each: each[:3], reverse=True)
    front = [(_key(line, value, turns), value) for value, line in lines.items()]
    heapify(front)
    found: list[RunRow] = []
    while front:
        key, value = front[0]
        line = lines[value]
        actual = _key(line, value, turns)
        if actual > key:
            heapreplace(front, (actual, value))  # turns have moved on since
            continue
        found.append(line.pop()[3])
        turns.advance(value)
        if line:
            heapreplace(front, (_key(line, value, turns), value))
        else:
            heappop(front)
    return found


def _key(
    line: list[tuple[int, int, int, RunRow]], value: str, turns: Turns
) -> tuple[int, int, int, int]:
    first, second, seq, _ = line[-1]
    return first, turns.of(value), second, seq
