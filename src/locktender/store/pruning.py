"""Pruning: remove runs that ended long ago, and graphs and blobs that no run refers to.

An operator (`locktender db prune`) or the leader (`retention`) runs this, beside
live engines and beside each other. Why that is safe:

    a run      is removed with all its rows in one transaction that checks its state. Only a submitter
               can revive an ended run (a retry) or wait for it (a replacement), and submitters and
               pruners exclude each other.
    events     of a run are removed only if all of them were checked before (`Prune.checked`).
    a graph    is removed when no run names it; a submission stores its graph and its run together.
    a blob     is stored before the row that refers to it. So a blob put within `BLOB_GRACE_US`
               stays; putting it again renews that time.

References to graphs and blobs have no index: they are found by reading all runs, page by page,
and not within the transactions that remove runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from locktender.base.clock import SECOND
from locktender.base.events import Change
from locktender.base.states import ENDED_RUNS
from locktender.store.protocol import Discard, Discarded, Prune, StoredContent, Upkeep

MAX_BATCH_TASKS = 20_000
"""A batch ends early once its runs have this many tasks: its transaction must stay short."""
BLOB_GRACE_US = 3_600 * SECOND
MAX_NAMES = 50_000
"""Of graphs, and of blobs, in memory at one time. All runs are read once for each so many."""
MARKER = b'"$locktender.blob'
"""Of values and of files (`stored_files.py`)."""
_DIGEST = re.compile(rb'"\$locktender\.blob(?:_file)?"\s*:\s*\{\s*"digest"\s*:\s*"([0-9a-f]{64})"')
PARTS = (
    *("tasks", "logs", "inputs", "mail", "mail_taken", "event_waits", "orders", "events", "runs"),
)
"""What a run consists of: each goes by its own statement, `prune_…`."""
TERMINAL: list[str] = sorted(ENDED_RUNS)


class PruneCandidate(NamedTuple):
    """A run that was looked at, as `prune_candidates` gives it."""

    seq: int
    queued_at: int
    ended_at: int
    generation: int
    goes: bool
    tasks: int


class Chosen(NamedTuple):
    runs: list[int]
    until: int
    """When the last of them ended."""
    after: int


def choose(prune: Prune, rows: Iterable[Sequence[Any]]) -> Chosen:
    """The runs of this batch, and where the next one goes on.

    Numbers follow submissions: where a run that was never retried was queued
    after the instant, so was everything behind it, and nothing there can have
    ended before.
    """
    looked_at = [PruneCandidate(*row) for row in rows]
    runs: list[int] = []
    until = tasks = 0
    for each in looked_at:
        if each.goes:
            runs.append(each.seq)
            until = max(until, each.ended_at)
            tasks += each.tasks
            if tasks >= MAX_BATCH_TASKS:
                return Chosen(runs, until, each.seq)
        elif not each.generation and each.queued_at >= prune.before:
            return Chosen(runs, until, 0)
    more = len(looked_at) == prune.batch
    return Chosen(runs, until, looked_at[-1].seq if more else 0)


def pruned_change(prune: Prune, chosen: Chosen, tasks: int, events: int) -> Change:
    """What the history says of a batch that went."""
    return Change(
        "audit",
        0,
        "",
        "pruned",
        0,
        {
            "runs": len(chosen.runs),
            "tasks": tasks,
            "events": events,
            "until": chosen.until,
            "checked": prune.checked,
            "who": prune.who,
        },
    )


def digests(values: Iterable[bytes | None]) -> set[str]:
    """The blobs that values refer to, wherever in them."""
    return {
        found.decode()
        for value in values
        if value is not None and MARKER in value
        for found in _DIGEST.findall(value)
    }


def stored_names(graphs: list[str], blobs: list[str], limit: int) -> StoredContent:
    """Both lists up to the same name, if there is more of one of them."""
    after = min((names[-1] for names in (graphs, blobs) if len(names) == limit), default="")
    return StoredContent(
        {name for name in graphs if not after or name <= after},
        {name for name in blobs if not after or name <= after},
        after,
    )


async def sweep(store: Upkeep, now: int, *, page: int = 2_000, names: int = MAX_NAMES) -> Discarded:
    """Removes graphs and blobs that no run refers to. Reads every run: for now and then, not for every batch.

    It is done for so many names at a time: the leader's process must not hold all of them.
    """
    put_before = now - BLOB_GRACE_US
    graphs = blobs = 0
    after = ""
    while True:
        kept = await store.stored_content(put_before, after, names)
        done = await _sweep_names(store, kept, put_before, page)
        graphs, blobs = graphs + done.graphs, blobs + done.blobs
        after = kept.after
        if not after:
            return Discarded(graphs, blobs)


async def _sweep_names(store: Upkeep, kept: StoredContent, put_before: int, page: int) -> Discarded:
    graphs, blobs = set(kept.graphs), set(kept.blobs)
    after, last = 0, 0
    while graphs or blobs:
        found = await store.references(after, page)
        graphs -= found.graphs
        blobs -= found.blobs
        last = max(last, found.last)
        after = found.after
        if not after:
            break
    if not graphs and not blobs:
        return Discarded(0, 0)
    return await store.discard(Discard(sorted(graphs), sorted(blobs), last, put_before))
