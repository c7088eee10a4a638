"""Changing limits: what code declares and what operators set, apart, with a history."""

from __future__ import annotations

from locktender.base.events import NOBODY
from locktender.base.limits import Limits
from locktender.store.admission import recounted
from locktender.store.decode import decode_tags
from locktender.store.history import CLIENT
from locktender.store.limiting import check, judge
from locktender.store.protocol import SetLimit
from locktender.store.sqlite.history import record
from locktender.store.sqlite.session import Session, listed


def set_limits(tx: Session, changes: list[SetLimit]) -> None:
    check(changes)
    changed = judge(changes, tx.limit_rows())
    if not changed.asked:
        return
    now = tx.now()
    for row in changed.rows:
        if row.effective is None:
            tx.run("limit_remove", row.kind, row.name)
        else:
            tx.run("limit_put", row.kind, row.name, row.declared, row.live)
    for entry in changed.history:
        tx.run("limit_history_add", now, *entry)
    tx.run("limits_changed")
    if changed.recount:
        _recount(tx, changed.after)
    record(tx, now, CLIENT, [(NOBODY, changed.asked)])


def _recount(tx: Session, limits: Limits) -> None:
    """Counters follow the rules: new ones start from the active runs, in the transaction that sets the rule."""
    active = recounted(limits, ((decode_tags(tags), n) for tags, n in tx.all("active_tags")))
    tx.run("counter_remove", listed(row[0] for row in tx.all("counter_names")))
    tx.each("counter_put", sorted(active.items()))
