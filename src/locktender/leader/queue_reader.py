"""Brings the first runs of the queue's lanes, their graphs and their large values to the scheduler.

The queue stays in the store; here is only how much of each lane the scheduler holds. A lane is read again when
a run arrives in it that could go before the runs that are held, or when those have been started.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import msgspec

from locktender.base import codec
from locktender.base.changes import TaskRow
from locktender.base.errors import LocktenderError, UnreadableRow
from locktender.base.events import Event
from locktender.base.graph_check import checked_graph
from locktender.base.ids import run_of
from locktender.base.model import Mail, RunRow
from locktender.base.states import STORED_RUNS, RunState
from locktender.kernel.lanes import rank
from locktender.kernel.render import looked_into
from locktender.kernel.scheduler import Scheduler
from locktender.store import blob_values
from locktender.store.carried_runs import compared
from locktender.store.decode import task_fault
from locktender.store.protocol import Heads, ReassignLanes, Store, WokenRows
from locktender.store.readable import is_fault, reason_of

log: logging.Logger = logging.getLogger(__name__)
_STATES = STORED_RUNS
MAX_HEADS = 4_096
MAX_HEADS_PER_LANE = 512
MIN_HEADS_PER_LANE = 2
"""However many lanes there are: with one head each, every start would cost a read and a new lane."""
READ_BELOW = 64
"""With fewer heads left, or half of those that were read, a lane is read on, so that it does not run dry."""
MAX_GRAPHS = 1_000
MAX_CARRIED_ROWS = 256
"""Kept while the history is read; runs that are named beside them are read."""
BEGUN_AT_ONCE = 256
"""Runs that have begun whose tasks are read together."""


Rank = tuple[int, int]


class LaneCursor(msgspec.Struct, gc=False):
    held: int = 0
    """How many of its runs the scheduler has as heads."""
    more: bool = True
    """The store may have runs behind those."""
    last: Rank = (0, 0)
    """The rank of the last one held: with `more`, runs behind it are not read yet."""


class QueueReader:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._lanes: dict[int, LaneCursor] = {}
        self._lane_of: dict[int, int] = {}
        self._stale: set[int] = set()
        self._moved: set[int] = set()
        """Lanes in which the commit of this turn moves a run: they are read after it."""
        self._read_below = READ_BELOW
        self._new: list[int] = []
        self._named: list[int] = []
        """Runs that were submitted, as a notification says."""
        self._carried: dict[int, RunRow] = {}
        """Rows of some of them, as the notification has them."""
        self._newest = 0
        """The highest number of a run told of in this term. Numbers follow the order of submissions: a run
        with a higher one was certainly not started, nor ended, before its notification came."""
        self._unchecked: dict[int, RunRow] = {}
        """Such rows that the scheduler has, for one turn: the commit that starts or ends their runs compares them,
        and those of other runs are read in the next turn."""
        self._started: set[int] = set()
        """Runs that such commits start, which may be on their way."""
        self._known: set[int] = set()
        """Those of them that were read, and whose events were not yet."""
        self._rows: dict[int, RunRow] = {}
        """Rows that came with the events of their arrival."""
        self._woken: dict[int, RunRow] = {}
        """Rows that were read when their runs were woken, with the two below. Of this turn only."""
        self._woken_tasks: dict[int, list[TaskRow]] = {}
        self._woken_mails: list[Mail] = []
        self.faults: list[tuple[RunRow, str]] = []
        """Queued runs that cannot be read, and why: the leader holds them."""

    def begin(self, lanes: Iterable[int], last_run: int) -> None:
        """A term begins. `last_run`: the highest number of a run."""
        self.lanes(lanes)
        self._newest = last_run

    def lanes(self, lanes: Iterable[int]) -> None:
        """These lanes have queued runs."""
        for lane in lanes:
            self._lanes.setdefault(lane, LaneCursor())
            self._stale.add(lane)

    def moved(self, row: RunRow) -> None:
        """A run, whose row was read, gets another place in its lane, perhaps before those that are held."""
        self._lanes.setdefault(row.lane, LaneCursor())
        self._moved.add(row.lane)

    async def reassign_lanes(self, term: int, read: Callable[[], None]) -> None:
        """Queued runs get the lanes that new limits ask for, in small batches beside the cycles.

        `read` is called when there are lanes to read.
        """
        after = 0
        try:
            while after := await self._store.reassign_lanes(ReassignLanes(term, after)):
                pass
            self.lanes((await self._store.load(lost=False)).lanes)
            read()
        except LocktenderError as error:
            log.warning("failed to reassign queue lanes: %s", error)

    def notified(self, runs: Iterable[int], carried: Iterable[RunRow] = ()) -> None:
        """These runs were just submitted: their rows are read before the history tells of them.

        `carried`: rows of some of them, which are used unread.
        """
        self._named += runs
        for row in carried:
            if len(self._carried) < MAX_CARRIED_ROWS:
                self._carried.setdefault(row.seq, row)

    def history_read(self) -> None:
        """Everything was read of the history that was there when the last rows were."""
        self._known.clear()

    def arrived(self, event: Event) -> None:
        """A run was queued. It is read unless it stands behind the heads that its lane holds."""
        self._newest = max(self._newest, event.run)
        number, rank = event.data.get("lane"), event.data.get("rank")
        if not isinstance(number, int) or not isinstance(rank, list):
            return
        if event.run in self._known and not event.data.get("generation"):
            return
        first, second = cast("list[int]", rank)
        self.put(event.run, number, (first, second))

    def put(self, run: int, number: int, rank: Rank) -> None:
        """A run was queued in this lane. It is read if it is one of its heads."""
        if self._holds(run, number, rank):
            self._new.append(run)

    def _holds(self, run: int, number: int, place: Rank) -> bool:
        """Whether a run that has come is a head of its lane: from here on it is held as one."""
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = LaneCursor(more=False)
        elif lane.more and (number in self._stale or place > lane.last):
            return False
        elif lane.held >= MAX_HEADS_PER_LANE:
            # Enough is held: the lane is cut here, and read on when these have gone.
            lane.more = True
            return False
        lane.last = max(lane.last, place) if lane.held else place
        self._hold(run, number, lane)
        return True

    def _hold(self, run: int, number: int, lane: LaneCursor) -> None:
        if self._lane_of.get(run) != number:
            self.left(run)  # of the lane that it stood in before new limits
            self._lane_of[run] = number
            lane.held += 1

    def put_rows(self, rows: Iterable[RunRow]) -> None:
        """Rows of runs that are queued now: those need not be read when they arrive."""
        self._rows = {row.seq: row for row in rows}

    def put_woken(self, read: WokenRows) -> None:
        """Runs that were woken in this turn: what is needed of them need not be read again."""
        self._woken = {row.seq: row for row in read.runs}
        self._woken_tasks = {row.seq: [] for row in read.runs}
        for task in read.tasks:
            if (tasks := self._woken_tasks.get(run_of(task.id))) is not None:
                tasks.append(task)
        self._woken_mails = read.mails

    def left(self, run: int) -> None:
        """A run is queued no more: it was started, or ended without."""
        self._newest = max(self._newest, run)
        number = self._lane_of.pop(run, None)
        lane = None if number is None else self._lanes.get(number)
        if number is None or lane is None:
            return
        lane.held -= 1
        if lane.more and lane.held < self._read_below:
            self._stale.add(number)
        elif not lane.held:
            del self._lanes[number]

    def leave(self, runs: Iterable[int]) -> list[RunRow]:
        """These runs start or end now. Of those whose rows were not read: what notifications said of them."""
        unchecked: list[RunRow] = []
        for run in runs:
            self.left(run)
            if (row := self._unchecked.pop(run, None)) is not None:
                unchecked.append(row)
        self._started.update(row.seq for row in unchecked)
        return unchecked

    def has_read(self, run: int) -> bool:
        """Whether its row was read, or compared by a commit: else it is what a notification said."""
        return run not in self._unchecked and run not in self._started

    @property
    def needs_reading(self) -> bool:
        return bool(self._stale or self._new or self._named or self._unchecked)

    @property
    def behind(self) -> int:
        """How many lanes are to be read."""
        return len(self._stale)

    async def fill(self, scheduler: Scheduler, *, is_behind: bool) -> None:
        """Read heads of every lane that needs some; bounded, the rest comes with the next cycle.

        `is_behind`: the history has more to tell. Runs that notifications name wait for it: one that was
        submitted before them may stand in it. The history must be read up to what is visible, not up to the
        oldest open transaction: else the older run would be told of later.
        """
        self._started.clear()  # nothing is on its way
        if self._unchecked:
            await self._check(scheduler)
        named: list[int] = []
        if not is_behind:
            named, self._named = self._named, []
        if self._new:
            arrived, self._new = self._new[:MAX_HEADS], self._new[MAX_HEADS:]
            known = self._rows | self._woken
            rows = [known[run] for run in arrived if run in known]
            if unread := [run for run in arrived if run not in known]:
                rows += await self._store.arrivals(unread)
                for gone in set(unread).difference(row.seq for row in rows):
                    self.left(gone)
                    self._known.discard(gone)
            await self._put_all(scheduler, rows)
        if named:
            await self._fill_named(scheduler, named)
        if self._stale:
            await self._read_on(scheduler)
        self._stale |= self._moved
        self._moved = set()
        # What is left of them would be old in the next turn.
        self._rows, self._woken, self._woken_tasks, self._woken_mails = {}, {}, {}, []

    async def _check(self, scheduler: Scheduler) -> None:
        """Reads the rows of runs that did not start in the turn in which notifications told of them."""
        said, self._unchecked = self._unchecked, {}
        rows = {row.seq: row for row in await self._store.arrivals(list(said))}
        for run, told in said.items():
            row = rows.get(run)
            if row is not None and compared(row) == compared(told):
                continue
            scheduler.ledger.drop_head(run)
            self.left(run)
            self._known.discard(run)
            if row is not None:
                await self._put_named(scheduler, row)

    async def _fill_named(self, scheduler: Scheduler, named: list[int]) -> None:
        """Of a run that may have been told of before, the row is read: it may have been started since."""
        carried, self._carried = self._carried, {}
        fresh = {run: row for run, row in carried.items() if run > self._newest}
        if unread := [run for run in named if run not in fresh and run not in self._lane_of]:
            for row in await self._store.arrivals(unread):
                self._newest = max(self._newest, row.seq)
                await self._put_named(scheduler, row)
        for row in fresh.values():
            self._newest = max(self._newest, row.seq)
            await self._put_named(scheduler, row, unchecked=True)

    async def _put_named(
        self, scheduler: Scheduler, row: RunRow, *, unchecked: bool = False
    ) -> None:
        if row.seq in self._lane_of or row.generation:
            return  # the history was read before the notification came, or tells of more
        place = rank(scheduler.ledger.limits, row.priority, row.queued_at)
        held = self._holds(row.seq, row.lane, place)
        if held or not unchecked:
            self._known.add(row.seq)
        if held:
            if unchecked:
                self._unchecked[row.seq] = row
            await self._put(scheduler, row)

    async def _read_on(self, scheduler: Scheduler) -> None:
        heads = scheduler.ledger.heads
        share = MAX_HEADS // max(1, len(self._lanes))
        each = max(MIN_HEADS_PER_LANE, min(MAX_HEADS_PER_LANE, share))
        self._read_below = min(READ_BELOW, each // 2)
        wanted = sorted(self._stale)[: MAX_HEADS // each]
        self._stale.difference_update(wanted)
        found: dict[int, int] = {}
        rows: list[RunRow] = []
        for row in await self._store.heads(Heads(wanted, each, MAX_HEADS)):
            found[row.lane] = found.get(row.lane, 0) + 1
            lane = self._lanes.setdefault(row.lane, LaneCursor())
            lane.last = rank(scheduler.ledger.limits, row.priority, row.queued_at)
            self._hold(row.seq, row.lane, lane)
            self._newest = max(self._newest, row.seq)
            if row.seq not in heads or heads[row.seq].row.priority != row.priority:
                rows.append(row)
        await self._put_all(scheduler, rows)
        for number in wanted:
            lane = self._lanes.get(number)
            if lane is None:
                continue  # emptied since it was found stale, and nothing has come
            lane.more = found.get(number, 0) >= each
            if not lane.held:
                del self._lanes[number]

    async def _put_all(self, scheduler: Scheduler, rows: Sequence[RunRow]) -> None:
        """The tasks of those that have begun are read together, and so is what was sent to them."""
        for first in range(0, len(rows), BEGUN_AT_ONCE):
            several = rows[first : first + BEGUN_AT_ONCE]
            read = self._woken_tasks
            tasks = {row.seq: read[row.seq] for row in several if row.seq in read}
            unread = [row for row in several if row.seq not in read]
            if begun := [row.seq for row in unread if row.generation or row.started_at]:
                tasks |= {run: [] for run in begun}
                for task in await self._store.tasks_of(begun):
                    tasks[run_of(task.id)].append(task)
            if woken := [row.seq for row in several if row.started_at]:
                mails = [mail for mail in self._woken_mails if mail.run in tasks]
                if after := [row.seq for row in unread if row.started_at]:
                    mails += await self._store.mail_ready(after)
                scheduler.lifecycle.mail.put_ready(woken, mails)
            for row in several:
                await self._put(scheduler, row, tasks.get(row.seq))

    async def _put(
        self, scheduler: Scheduler, row: RunRow, tasks: list[TaskRow] | None = None
    ) -> None:
        if row.state in _STATES and row.state != RunState.QUEUED:
            log.warning("ignored run %s in the queue: its state is %s", row.id, row.state)
            return
        try:
            if row.unreadable:
                raise UnreadableRow(row.unreadable)
            await self._put_readable(scheduler, row, tasks)
        except Exception as error:
            if not is_fault(error):
                raise
            if self._unchecked.pop(row.seq, None) is not None:
                self._new.append(row.seq)  # it is read: the notification may be wrong, not the run
            # One that the commit to come ends must not be held before that.
            elif row.seq not in scheduler.commit_builder.ended_runs:
                self.fault(row, reason_of(error))

    async def put_begun(self, scheduler: Scheduler, row: RunRow) -> None:
        """A queued run that was woken, and is past its deadline."""
        await self._put(scheduler, row)

    def fault(self, row: RunRow, why: str) -> None:
        """A queued run that cannot be read."""
        if all(row.seq != known.seq for known, _ in self.faults):
            self.faults.append((row, why))

    async def _put_readable(
        self, scheduler: Scheduler, row: RunRow, tasks: list[TaskRow] | None
    ) -> None:
        await self._read_graph(scheduler, row)
        rows: list[TaskRow] | None = None
        if row.generation or row.started_at:
            rows = await self._stored_tasks(scheduler, row, tasks)
        scheduler.put_head(await blob_values.open_values(self._store, row), rows)

    async def take_up(self, scheduler: Scheduler, row: RunRow, now: int) -> None:
        """A run that has begun, and waits or is queued again, is to be ended."""
        await self._read_graph(scheduler, row)
        rows = await self._stored_tasks(scheduler, row)
        scheduler.take_up(await blob_values.open_values(self._store, row), rows, now)
        self.left(row.seq)

    async def _stored_tasks(
        self, scheduler: Scheduler, row: RunRow, tasks: list[TaskRow] | None = None
    ) -> list[TaskRow]:
        """The tasks of a run that was retried or woken. `tasks`: as they were read."""
        graph = scheduler.graphs[row.graph]
        rows = await self._store.tasks(row.seq) if tasks is None else tasks
        for task in rows:
            if fault := task_fault(task, len(graph.nodes)):
                raise UnreadableRow(fault)
        return [await blob_values.open_output(self._store, graph, task) for task in rows]

    async def _read_graph(self, scheduler: Scheduler, row: RunRow) -> None:
        if row.graph not in scheduler.graphs:
            if len(scheduler.graphs) >= MAX_GRAPHS:
                self._forget_graphs(scheduler)
            scheduler.graphs[row.graph] = checked_graph(await self._store.graph(row.graph))

    def _forget_graphs(self, scheduler: Scheduler) -> None:
        used = {head.row.graph for head in scheduler.ledger.heads.values()}
        used |= {run.row.graph for run in scheduler.ledger.runs.values()}
        for digest in [digest for digest in scheduler.graphs if digest not in used]:
            del scheduler.graphs[digest]

    # -- large values ------------------------------------------------------------------------------

    async def value_of(self, scheduler: Scheduler, task: int, output: bytes | None) -> bytes | None:
        """What a reference stands for, if a node of its run looks into it; else None."""
        if output is None or not codec.is_blob(output):
            return None
        entry = scheduler.lifecycle.tasks.get(task)
        if entry is None or entry.node not in looked_into(entry.run.graph):
            return None
        return await blob_values.fetch(self._store, output)
