"""Pruning a store: the history is checked first, then ended runs go batch by batch, then what they left behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from locktender.observe.checkpoint import Checkpoint, take
from locktender.store.protocol import RunFilter, Store
from locktender.store.pruning import TERMINAL, Prune, sweep

UNCHECKED = 2**62
_PAGE = 1_000


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
    events: int = 0
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
    checkpoint = await take(store, forget.who, force=forget.force)
    done = await _batches(store, forget, checkpoint.seq, below, progress)
    swept = await sweep(store, await store.now())
    return Forgotten(done.runs, done.tasks, done.events, swept.graphs, swept.blobs, checkpoint)


async def _batches(
    store: Store,
    forget: Forget,
    checked: int,
    below: int,
    progress: Callable[[int], None],
    *,
    dry_run: bool = False,
) -> Forgotten:
    after = runs = tasks = events = 0
    while True:
        prune = Prune(
            forget.before, checked, forget.who, after, below, forget.batch, dry_run=dry_run
        )
        done = await store.prune(prune)
        runs, tasks, events = runs + done.runs, tasks + done.tasks, events + done.events
        after = done.after
        progress(runs)
        if not after:
            return Forgotten(runs, tasks, events)


async def _below(store: Store, keep: int) -> int:
    """The number from which on the newest `keep` ended runs are."""
    below = UNCHECKED
    while keep > 0:
        wanted = min(keep, _PAGE)
        page = await store.runs(RunFilter(states=TERMINAL, limit=wanted, before=below))
        if not page:
            return below
        below, keep = page[-1].seq, keep - len(page)
        if len(page) < wanted:
            return 0
    return below
