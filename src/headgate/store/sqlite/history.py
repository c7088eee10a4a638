"""Writing the history: one event row per run and commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headgate.base.events import NOBODY, Change, pack
from headgate.base.ids import run_of
from headgate.store.sqlite.session import Session

CLIENT = "client"


def record(
    tx: Session,
    now: int,
    actor: str,
    changes: Iterable[tuple[int, list[Change]]],
    *,
    term: int = 0,
    cycle: int = 0,
) -> int:
    """Stores (run, its changes) pairs; the last seq given, 0 if there were none."""
    return tx.each(
        "event_add", [(now, term, cycle, actor, run, pack(several)) for run, several in changes]
    )


def by_run(changes: Iterable[Change]) -> Mapping[int, list[Change]]:
    """Changes of tasks under the runs they belong to; those of no task under nobody."""
    found: dict[int, list[Change]] = {}
    for change in changes:
        run = run_of(change.task) if change.task else NOBODY
        found.setdefault(run, []).append(change)
    return found
