"""The feed: brings the heads of the queue's lanes, their graphs and their large values to the conductor.

The queue stays in the store; here is only how much of each lane the conductor
holds. A lane is read again when a run arrives in it that could stand before
what is held, or when what is held of it has been started.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import msgspec

from locktender.base import codec
from locktender.base.changes import TaskRow
from locktender.base.events import Event
from locktender.base.graph import Graph
from locktender.base.model import RunRow
from locktender.kernel.dag import looked_into
from locktender.kernel.lanes import rank
from locktender.kernel.scheduler import Scheduler
from locktender.store import blob_values
from locktender.store.protocol import Heads, Store

log: logging.Logger = logging.getLogger(__name__)
_graph = msgspec.json.Decoder(Graph).decode
MOST_HEADS = 4_096
MOST_PER_LANE = 512
LEAST_PER_LANE = 2
"""However many lanes there are: where each has one head, every start would cost a read and a new lane."""
FEW = 64
"""Below this many, or half of what was read of it, a lane is read on, so that it does not run dry."""
MOST_GRAPHS = 1_000


Rank = tuple[int, int]


@dataclass(slots=True)
class LaneCursor:
    held: set[int]
    """Runs of it that the conductor has as heads."""
    more: bool = True
    """The store may have runs behind those."""
    last: Rank = (0, 0)
    """Where the last one held stands: with `more`, whoever stands behind it is not brought yet."""


class QueueReader:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._lanes: dict[int, LaneCursor] = {}
        self._lane_of: dict[int, int] = {}
        self._stale: set[int] = set()
        self._few = FEW
        self._arrived: list[int] = []
        self._brought: dict[int, RunRow] = {}
        """Rows that came with the news of their arrival."""

    def lanes(self, lanes: Iterable[int]) -> None:
        """These lanes have queued runs."""
        for lane in lanes:
            self._lanes.setdefault(lane, LaneCursor(set()))
            self._stale.add(lane)

    def arrived(self, event: Event) -> None:
        """A run was queued. It is brought unless it stands behind what its lane has at hand."""
        number, rank = event.data.get("lane"), event.data.get("rank")
        if not isinstance(number, int) or not isinstance(rank, list):
            return
        first, second = cast("list[int]", rank)
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = LaneCursor(set(), more=False)
        elif lane.more and (number in self._stale or (first, second) > lane.last):
            return
        elif len(lane.held) >= MOST_PER_LANE:
            # Enough at hand: the line is cut here, and read on when these have gone.
            lane.more = True
            return
        lane.last = max(lane.last, (first, second)) if lane.held else (first, second)
        lane.held.add(event.run)
        self._lane_of[event.run] = number
        self._arrived.append(event.run)

    def brought(self, rows: Iterable[RunRow]) -> None:
        """Rows of runs that are queued now; whoever arrives next need not be read."""
        self._brought = {row.seq: row for row in rows}

    def left(self, run: int) -> None:
        """A run is queued no more: it was started, or ended without."""
        number = self._lane_of.pop(run, None)
        lane = None if number is None else self._lanes.get(number)
        if number is None or lane is None:
            return
        lane.held.discard(run)
        if lane.more and len(lane.held) < self._few:
            self._stale.add(number)
        elif not lane.held:
            del self._lanes[number]

    @property
    def hungry(self) -> bool:
        return bool(self._stale or self._arrived)

    @property
    def behind(self) -> int:
        """How many lanes are to be read."""
        return len(self._stale)

    async def fill(self, conductor: Scheduler) -> None:
        """Bring heads of every lane that needs some; bounded, the rest comes with the next cycle."""
        if self._arrived:
            arrived, self._arrived = self._arrived[:MOST_HEADS], self._arrived[MOST_HEADS:]
            brought, self._brought = self._brought, {}
            rows = [brought[run] for run in arrived if run in brought]
            if unread := [run for run in arrived if run not in brought]:
                rows += await self._store.arrivals(unread)
            for row in rows:
                await self._put(conductor, row)
        if self._stale:
            await self._read_on(conductor)

    async def _read_on(self, conductor: Scheduler) -> None:
        heads = conductor.ledger.heads
        share = MOST_HEADS // max(1, len(self._lanes))
        each = max(LEAST_PER_LANE, min(MOST_PER_LANE, share))
        self._few = min(FEW, each // 2)
        wanted = sorted(self._stale)[: MOST_HEADS // each]
        self._stale.difference_update(wanted)
        found: dict[int, int] = {}
        for row in await self._store.heads(Heads(wanted, each, MOST_HEADS)):
            found[row.lane] = found.get(row.lane, 0) + 1
            lane = self._lanes.setdefault(row.lane, LaneCursor(set()))
            lane.held.add(row.seq)
            lane.last = rank(conductor.ledger.limits, row.priority, row.queued_at)
            self._lane_of[row.seq] = row.lane
            if row.seq not in heads or heads[row.seq].row.priority != row.priority:
                await self._put(conductor, row)
        for number in wanted:
            lane = self._lanes.get(number)
            if lane is None:
                continue  # emptied since it was found stale, and nothing has come
            lane.more = found.get(number, 0) >= each
            if not lane.held:
                del self._lanes[number]

    async def _put(self, conductor: Scheduler, row: RunRow) -> None:
        if row.graph not in conductor.graphs:
            if len(conductor.graphs) >= MOST_GRAPHS:
                self._forget_graphs(conductor)
            conductor.graphs[row.graph] = _graph(await self._store.graph(row.graph))
        rows: list[TaskRow] | None = None
        if row.generation:
            graph = conductor.graphs[row.graph]
            rows = [
                await blob_values.open_output(self._store, graph, task)
                for task in await self._store.tasks(row.seq)
            ]
        conductor.put_head(await blob_values.open_values(self._store, row), rows)

    def _forget_graphs(self, conductor: Scheduler) -> None:
        used = {head.row.graph for head in conductor.ledger.heads.values()}
        used |= {run.row.graph for run in conductor.ledger.runs.values()}
        for digest in [digest for digest in conductor.graphs if digest not in used]:
            del conductor.graphs[digest]

    # -- large values ------------------------------------------------------------------------------

    async def value_of(self, conductor: Scheduler, task: int, output: bytes | None) -> bytes | None:
        """What a reference stands for, if somebody of its run looks into it; else None."""
        if output is None or not codec.is_blob(output):
            return None
        entry = conductor.lives.tasks.get(task)
        if entry is None or entry.node not in looked_into(entry.run.graph):
            return None
        return await blob_values.fetch(self._store, output)
