"""Forgetting what is old: runs that ended long ago, and events of no run that nothing needs any more.

**Events of no run** (workers, leaders, limits). Such an event says what is so
from then on. It can go when a later one says otherwise and both were checked:
the leader before the last one, the limits that a leader restated, a worker
that has left. What is still so stays, however old: the limits in force, the
workers that live, the last leader. So a later audit knows at the end of the
thinned part what it knew before, whichever version of the checker reads it.
What happened *within* the thinned part cannot be judged by limits and workers
any more: it was, at a checkpoint, and those rules are silent up to there
(`History.thinned`).

Marks about the history are added up into one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from locktender.base.clock import SECOND
from locktender.base.events import HISTORY, NO_RUN, Change, Event, unpack
from locktender.observe.checkpoint import Checkpoint, HistorySums, add_up, write_checkpoint
from locktender.store.protocol import EventFilter, RunFilter, Store, Thin
from locktender.store.pruning import TERMINAL, Prune, sweep

MAX_ROWS = 10_000
"""That are looked at in one go."""
ROWS_PER_BATCH = 500
MIN_ROWS = 100
"""Fewer rows that may go stay for another time."""
MAX_MARKS = 50
KEPT_US = 3_600 * SECOND
"""A worker that left so short a time before the end of the thinned part stays known."""


def superseded(rows: Iterable[Sequence[Event]], first_of_a_run: int) -> list[int]:
    """The seqs of rows of no run that may go, if `rows` are all there are up to some seq.

    Changes of the clock stay from `first_of_a_run` on, the first event of a run that is kept.
    """
    facts = _Facts(first_of_a_run)
    looked_at = [row for row in rows if row]
    for row in looked_at:
        for event in row:
            facts.add(event)
    kept = facts.kept(looked_at[-1][0].at if looked_at else 0)
    more = True
    while more:
        # A row may say several things. A worker that one of them names again must be gone again.
        named = {
            (event.data.get("worker"), row[0].seq)
            for row in looked_at
            if row[0].seq in kept
            for event in row
            if event.subject == "worker"
        }
        back = {
            seq
            for name, (seq, _) in facts.gone.items()
            if seq not in kept and any(who == name and at < seq for who, at in named)
        }
        more, kept = bool(back), kept | back
    return [row[0].seq for row in looked_at if row[0].seq not in kept]


class _Facts:
    """The last event that states each fact still in force."""

    def __init__(self, first_of_a_run: int) -> None:
        self._first_of_a_run = first_of_a_run
        self._leader = self._last_of_a_worker = 0
        self._limits: dict[tuple[str, str], int] = {}
        self._asked: dict[tuple[str, str], int] = {}
        self._workers: dict[str, dict[str, int]] = {}
        self.gone: dict[str, tuple[int, int]] = {}
        """Worker → the seq and the time of its leaving."""
        self._clock: set[int] = set()

    def add(self, event: Event) -> None:
        match event.subject:
            case "leader":
                self._leader = event.seq
                # It restates the limits, and finds out anew who is stalled.
                self._limits.clear()
                for said in self._workers.values():
                    said.pop("stalled", None)
            case "limit":
                key = event.data.get("kind", ""), event.data.get("name", "")
                if event.after == "asked":
                    self._asked[key] = event.seq
                else:
                    self._limits[key] = event.seq
                    self._asked.pop(key, None)
            case "worker":
                self._last_of_a_worker = event.seq
                self._add_worker(event)
            case "clock":
                if event.seq >= self._first_of_a_run:
                    self._clock.add(event.seq)
            case _:
                pass

    def _add_worker(self, event: Event) -> None:
        name = event.data.get("worker") or event.actor.partition(":")[2]
        if event.after == "joined":
            self._workers[name] = {"joined": event.seq}
            self.gone.pop(name, None)
        elif event.after == "changed":
            self._workers.setdefault(name, {})["changed"] = event.seq
        elif event.after in {"stalled", "resumed"}:
            self._workers.setdefault(name, {})["stalled"] = event.seq
        else:
            self._workers.pop(name, None)
            self.gone[name] = event.seq, event.at

    def kept(self, until: int) -> set[int]:
        """The rows that say what is still so."""
        return {
            self._leader,
            self._last_of_a_worker,
            *self._limits.values(),
            *self._asked.values(),
            *(seq for said in self._workers.values() for seq in said.values()),
            *(seq for seq, at in self.gone.values() if at > until - KEPT_US),
            *self._clock,
        }


async def thin_out(store: Store, before: int, checked: int, who: str) -> int:
    """Removes rows of no run that are older than `before` and checked; how many."""
    rows = await store.events(EventFilter(run=NO_RUN, limit=MAX_ROWS))
    old = [row for row in rows if row.seq <= checked and row.at < before]
    goes = superseded(map(unpack, old), await _first_of_a_run(store))
    gone = 0
    if len(goes) >= MIN_ROWS:
        for start in range(0, len(goes), ROWS_PER_BATCH):
            # The oldest first: what a row takes back must not outlive it.
            several = goes[start : start + ROWS_PER_BATCH]
            data = {"rows": len(several), "thinned": old[-1].seq, "who": who}
            thin = Thin(NO_RUN, several, Change("audit", 0, "", "thinned", 0, data))
            if not await store.thin(thin):
                break  # another process removes them
            gone += len(several)
    await _add_up_marks(store)
    return gone


async def _first_of_a_run(store: Store) -> int:
    """The seq of the first event of a run; 0: not known, it may be any."""
    first = await store.events(EventFilter(limit=1_000))
    return next((row.seq for row in first if row.run > NO_RUN), 0)


async def _add_up_marks(store: Store) -> None:
    """One mark in the place of many. The last checkpoint stays as it is."""
    rows = await store.events(EventFilter(run=HISTORY, limit=MAX_ROWS))
    if len(rows) <= MAX_MARKS:
        return
    checkpoints = [row.seq for row in rows if any(e.after == "checked" for e in unpack(row))]
    goes = [row for row in rows if row.seq not in checkpoints[-1:]]
    whole, part = add_up(rows), add_up(goes)
    sums = HistorySums(
        part.runs,
        part.batches,
        part.until,
        part.checked,
        part.passed_over,
        part.forced,
        part.thinned,
        whole.peaks,
    )
    change = Change("audit", 0, "", "summed", 0, msgspec.to_builtins(sums))
    await store.thin(Thin(HISTORY, [row.seq for row in goes], change))


UNCHECKED = 2**62
_RUNS_PER_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Forget:
    before: int
    """Runs that ended before this instant go."""
    who: str
    keep: int = 0
    """The newest so many ended runs stay, however old."""
    batch: int = 500
    dry_run: bool = False
    force: bool = False
    """Also where the history breaks promises."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    runs: int = 0
    tasks: int = 0
    history: int = 0
    """Rows of it; one may hold several events."""
    graphs: int = 0
    blobs: int = 0
    checkpoint: Checkpoint | None = None
    """None where nothing was to be pruned, or nothing was to be done about it."""


async def forget(
    store: Store, forget: Forget, progress: Callable[[int], None] = lambda _runs: None
) -> Forgotten:
    """Removes what is to be forgotten; `HistoryBroken` where that would hide a broken promise."""
    below = await _below(store, forget.keep)
    would = await _batches(store, forget, UNCHECKED, below, lambda _: None, dry_run=True)
    if forget.dry_run or not would.runs:
        return would
    checkpoint = await write_checkpoint(store, forget.who, force=forget.force)
    done = await _batches(store, forget, checkpoint.seq, below, progress)
    while await thin_out(store, forget.before, checkpoint.seq, forget.who):
        pass
    swept = await sweep(store, await store.now())
    return Forgotten(done.runs, done.tasks, done.history, swept.graphs, swept.blobs, checkpoint)


async def _batches(
    store: Store,
    forget: Forget,
    checked: int,
    below: int,
    progress: Callable[[int], None],
    *,
    dry_run: bool = False,
) -> Forgotten:
    after = runs = tasks = rows = 0
    while True:
        prune = Prune(
            forget.before, checked, forget.who, after, below, forget.batch, dry_run=dry_run
        )
        done = await store.prune(prune)
        runs, tasks, rows = runs + done.runs, tasks + done.tasks, rows + done.events
        after = done.after
        progress(runs)
        if not after:
            return Forgotten(runs, tasks, rows)


async def _below(store: Store, keep: int) -> int:
    """The number from which on the newest `keep` ended runs are."""
    below = UNCHECKED
    while keep > 0:
        wanted = min(keep, _RUNS_PER_PAGE)
        page = await store.runs(RunFilter(states=TERMINAL, limit=wanted, before=below))
        if not page:
            return below
        below, keep = page[-1].seq, keep - len(page)
        if len(page) < wanted:
            return 0
    return below
