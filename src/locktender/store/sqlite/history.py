"""Writing the history: one event row per run and commit."""

from __future__ import annotations

from collections.abc import Iterable

from locktender.store.history import RunChanges, event_rows
from locktender.store.sqlite.session import SqliteSession


def record(
    tx: SqliteSession,
    now: int,
    actor: str,
    changes: Iterable[RunChanges],
    *,
    term: int = 0,
    cycle: int = 0,
) -> int:
    """Stores (run, its changes) pairs; the last seq given, 0 if there were none."""
    return tx.each("event_add", event_rows(now, actor, changes, term=term, cycle=cycle))
