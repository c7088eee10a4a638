"""Changing limits: what code declares and what operators set, apart, with a history."""

from __future__ import annotations

from collections import Counter

from headgate.base.events import NOBODY, Change
from headgate.base.limits import Limits
from headgate.base.model import LimitRow
from headgate.store.limit_rows import compose, parse
from headgate.store.protocol import SetLimit
from headgate.store.sqlite.admission import capped, counters
from headgate.store.sqlite.decode import decode_tags
from headgate.store.sqlite.history import CLIENT, record
from headgate.store.sqlite.session import Session, listed


def set_limits(tx: Session, changes: list[SetLimit]) -> None:
    for change in changes:
        if change.rule is not None:
            parse(change.kind, change.name, change.rule)
    now = tx.now()
    before = compose(tx.limit_rows())
    asked = [
        Change("limit", 0, "", "asked", 0, {"kind": change.kind, "name": change.name})
        for change in changes
        if _set(tx, change, now)
    ]
    if asked:
        tx.run("limits_changed")
        _recount(tx, before, compose(tx.limit_rows()))
        record(tx, now, CLIENT, [(NOBODY, asked)])


def _set(tx: Session, change: SetLimit, now: int) -> bool:
    """Whether anything changed: code declares the same limits at every start."""
    declared, live = tx.one("limit_get", change.kind, change.name) or (None, None)
    old = LimitRow(change.kind, change.name, declared, live)
    new = LimitRow(
        change.kind,
        change.name,
        change.rule if change.declared else declared,
        live if change.declared else change.rule,
    )
    if new == old:
        return False
    if new.declared is None and new.live is None:
        tx.run("limit_remove", new.kind, new.name)
    else:
        tx.run("limit_put", new.kind, new.name, new.declared, new.live)
    tx.run(
        "limit_history_add",
        now,
        change.who,
        change.kind,
        change.name,
        old.effective,
        new.effective,
        change.reason,
    )
    return True


def _recount(tx: Session, before: Limits, after: Limits) -> None:
    """Counters follow the rules: new ones start from the active runs, in the transaction that sets the rule."""
    old = {rule.name for rule in capped(before)}
    rules = capped(after)
    if {rule.name for rule in rules} == old:
        return
    active: Counter[str] = Counter()
    for tags, count in tx.all("active_tags"):
        for name in counters(rules, decode_tags(tags)):
            active[name] += count
    gone = [row[0] for row in tx.all("counter_names")]
    tx.run("counter_remove", listed(gone))
    tx.each("counter_put", sorted(active.items()))
