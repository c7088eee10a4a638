"""`why` of queued runs: one with its whole place in the queue, or the first of them from one reading."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from locktender.base.graph import Graph
from locktender.base.model import RunRow
from locktender.kernel import lanes
from locktender.kernel.entries import QueuedRun
from locktender.kernel.estimates import MAX_DURATIONS_PER_STEP, SharedPlays
from locktender.kernel.explain_runs import explain_queued, place_precision, runs_to_start
from locktender.kernel.fair_turns import Turns
from locktender.kernel.queue_position import QueueGroup, QueuePosition
from locktender.kernel.reasons import Typical
from locktender.kernel.scheduler import Scheduler
from locktender.observe import rebuilt
from locktender.observe.answer import LEFT, Why, why_run
from locktender.observe.rebuilt import line_of, median, places
from locktender.observe.store_notes import nobody_leads, turn_note
from locktender.store.protocol import (
    QueueEntry,
    QueuePlace,
    QueueView,
    RunFilter,
    Store,
)


async def queued_why(store: Store, row: RunRow) -> Why:
    """Why one queued run does not start."""
    view = await store.beside(row.seq, rebuilt.MAX_RUNS_COUNTED)
    if view is None:
        now = await store.now()
        return why_run(row, now, row.queued_at, note=LEFT)
    line = await line_of(store, row, view)
    why = await _explained(store, row, view, places(view), line, view.lasted)
    note = await (nobody_leads(store) if why.reasons else turn_note(store))
    return msgspec.structs.replace(why, note=note)


MAX_FLOWS_TIMED = 20
"""Flows whose usual durations are read for one list of the queue."""


MAX_PLACED = 10
"""Runs of one list whose place in the queue is counted."""
NEAR = 50
"""Places behind a counted one that are read to find the next run of a list: counting takes longer."""


async def whys_of(store: Store, rows: Sequence[RunRow]) -> dict[int, Why]:
    """Why each of some queued runs does not start, by its number; without those that have left the queue.

    Who executes is read once. How many stand before a run is counted for the first of the list; of the others
    the gates are told, and not how long they wait.
    """
    found: dict[int, Why] = {}
    note, turn = await nobody_leads(store), await turn_note(store)
    lines, plays = _Lines(store), SharedPlays()
    await lines.count(rows[:MAX_PLACED])
    for row in rows:
        view = lines.view or await lines.read(row, 1)
        if view is None or (row in rows[:MAX_PLACED] and row.seq not in lines.known):
            continue
        lines.scheduler = scheduler = lines.scheduler or places(view)
        rank, _ = lanes.rank(view.limits, row.priority, row.queued_at)
        line, lasted = QueuePosition(Turns(), "", rank, [], cut=True, more=True), list[int]()
        if row.seq in lines.known:
            line, lasted = lines.known[row.seq], await lines.lasted(row)
        why = await _explained(store, row, view, scheduler, line, lasted, plays)
        found[row.seq] = msgspec.structs.replace(why, note=note if why.reasons else turn)
    return found


class _Lines:
    """Who stands before each of some queued runs. Of runs near each other in the queue the first is counted."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lasted: dict[str, list[int]] = {}
        self.view: QueueView | None = None
        self.scheduler: Scheduler | None = None
        self.known: dict[int, QueuePosition] = {}

    async def read(self, row: RunRow, most: int) -> QueueView | None:
        view = await self._store.beside(row.seq, most)
        if view is not None:
            self.view = self.view or view
            self._lasted.setdefault(row.flow, view.lasted)
        return view

    async def lasted(self, row: RunRow) -> list[int]:
        """How long runs of its flow took lately."""
        if row.flow not in self._lasted:
            await self.read(row, 1)
        return self._lasted.get(row.flow, [])

    async def count(self, rows: Sequence[RunRow]) -> None:
        limits, _ = await self._store.limits()
        places = {
            row.seq: (*lanes.rank(limits, row.priority, row.queued_at), row.seq) for row in rows
        }
        wanted = {row.seq for row in rows}
        for row in sorted(rows, key=lambda each: places[each.seq]):
            if row.seq in self.known or row.seq not in wanted:
                continue
            view = await self.read(row, rebuilt.MAX_RUNS_COUNTED)
            if view is None:
                wanted.discard(row.seq)
                continue
            self.known[row.seq] = line = await line_of(self._store, row, view)
            left = wanted - self.known.keys()
            if left and view.limits.fair is None:
                await self._walk(row, view, line, left)

    async def _walk(
        self, row: RunRow, view: QueueView, line: QueuePosition, wanted: set[int]
    ) -> None:
        """Finds runs of the same priority that stand a few places behind a counted one."""
        passed, last, found = _group(row, view), row.seq, True
        while found and wanted - self.known.keys():
            found = False
            for entry in await self._store.queue(NEAR, QueuePlace(last, 0)):
                last = entry.run.seq
                rank, _ = lanes.rank(view.limits, entry.run.priority, entry.run.queued_at)
                if rank != view.line.rank:
                    return
                if last in wanted:
                    self.known[last] = line.behind(passed)
                    found = True
                passed += _group(entry.run, view)


def _group(row: RunRow, view: QueueView) -> list[QueueGroup]:
    """A queued run as those behind it count it; none where nobody waits behind it."""
    limits = view.limits
    if row.kind != "flow" or limits.is_paused(row.flow, row.seq):
        return []
    rank, _ = lanes.rank(limits, row.priority, row.queued_at)
    counters = (rule.counter(row.tags) for rule in limits.tags)
    return [QueueGroup("", rank, 1, 1, frozenset(each for each in counters if each is not None))]


async def queued_whys(store: Store, entries: Sequence[QueueEntry]) -> tuple[list[Why], int | None]:
    """Why each of the first queued runs does not start, and how many are queued in all; None: that is not known.

    Who executes is the same for all of them, and who stands before each is in the list: it is read once. Those
    before the first of the list count as if no limit of a tag concerned them.
    """
    views: dict[str, QueueView] = {}
    for entry in reversed(entries):
        if entry.run.flow not in views and len(views) < MAX_FLOWS_TIMED:
            # Who stands before each is in the list: nothing is counted.
            view = await store.beside(entry.run.seq, 1)
            if view is not None:
                views[entry.run.flow] = view
    if not views:
        return [], 0
    view = next(iter(views.values()))
    scheduler, plays = places(view), SharedPlays()
    before: Counter[frozenset[str]] = Counter({frozenset(): entries[0].position - 1})
    found: list[Why] = []
    note, turn = await nobody_leads(store), await turn_note(store)
    for entry in entries:
        row = entry.run
        rank, _ = lanes.rank(view.limits, row.priority, row.queued_at)
        groups = [QueueGroup("", rank, n, n, of) for of, n in before.items()]
        line = QueuePosition(Turns(), "", rank, groups)
        timed = views.get(row.flow)
        lasted = [] if timed is None else timed.lasted
        why = await _explained(store, row, view, scheduler, line, lasted, plays)
        why = msgspec.structs.replace(why, note=note if why.reasons else turn)
        found.append(msgspec.structs.replace(why, position=entry.position))
        if row.waits_for is None and not scheduler.ledger.is_paused(row):
            tags = {rule.counter(row.tags) for rule in view.limits.tags}
            before[frozenset(each for each in tags if each is not None)] += 1
    return found, view.line.queued


async def _explained(
    store: Store,
    row: RunRow,
    view: QueueView,
    scheduler: Scheduler,
    line: QueuePosition,
    lasted: list[int],
    plays: SharedPlays | None = None,
) -> Why:
    scheduler.graphs.setdefault(row.graph, Graph(row.flow, ()))
    scheduler.ledger.put_head(row)
    head = scheduler.ledger.heads.get(row.seq)
    if head is None:
        head = QueuedRun(row, lanes.rank(view.limits, row.priority, row.queued_at))
    # Times of other flows are no estimate for this one.
    typical = Typical(
        run_us=median(lasted) if lasted else None,
        run_holds=tuple(sorted(lasted[-MAX_DURATIONS_PER_STEP:])),
        plays=plays,
    )
    replaced = await _replaced(store, row)
    reasons = explain_queued(scheduler, head, typical, line, view.now, replaced=replaced)
    precision = place_precision(scheduler.ledger, head, line)
    why = why_run(row, view.now, row.queued_at, tuple(reasons))
    return msgspec.structs.replace(
        why,
        position=line.ahead + 1,
        position_is=precision,
        lets_start=runs_to_start(scheduler.ledger, head, reasons, line),
    )


async def _replaced(store: Store, row: RunRow) -> str | None:
    """The id of the run it waits for."""
    if row.waits_for is None:
        return None
    found = await store.runs(RunFilter(before=row.waits_for + 1, limit=1))
    return next((each.id for each in found if each.seq == row.waits_for), None)
