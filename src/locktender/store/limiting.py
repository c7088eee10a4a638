"""Changes of limits judged: what code declares and what operators set, apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from locktender.base.events import Change
from locktender.base.limits import Limits
from locktender.base.model import LimitRow
from locktender.store.admission import capped
from locktender.store.limit_rows import check_patch, compose, parse, patched
from locktender.store.protocol import SetLimit


@dataclass(slots=True)
class Changed:
    """What a list of changes comes to."""

    before: Limits
    after: Limits
    rows: list[LimitRow] = field(default_factory=list[LimitRow])
    """As they are now; one with neither a declared nor a live rule is gone."""
    history: list[tuple[str, str, str, bytes | None, bytes | None, str]] = field(
        default_factory=list[tuple[str, str, str, bytes | None, bytes | None, str]]
    )
    """(who, kind, name, before, after, reason)"""
    asked: list[Change] = field(default_factory=list[Change])

    @property
    def recount(self) -> bool:
        """Whether the ceilings that runs are counted under are others now."""
        return {rule.name for rule in capped(self.before)} != {
            rule.name for rule in capped(self.after)
        }


def check(changes: Sequence[SetLimit]) -> None:
    """Raises `InvalidInput` for the first rule that can never be right."""
    for change in changes:
        if change.rule is not None:
            parse(change.kind, change.name, change.rule)
        if change.patch is not None:
            check_patch(change.kind, change.name, change.patch)


def judge_limit(changes: Sequence[SetLimit], rows: Sequence[LimitRow]) -> Changed:
    """Code declares the same limits at every start: what changes nothing leaves no trace."""
    known = {(row.kind, row.name): row for row in rows}
    before = compose(rows)
    changed = Changed(before, before)
    touched: dict[tuple[str, str], LimitRow] = {}
    for change in changes:
        place = change.kind, change.name
        old = known.get(place) or LimitRow(*place, None, None)
        rule = change.rule
        if change.patch is not None:
            # Over what is in force now, not what its sender last saw: nobody's change is lost.
            base = old.declared if change.declared else old.effective
            rule = patched(*place, base or rule, change.patch)
        new = LimitRow(
            *place,
            rule if change.declared else old.declared,
            old.live if change.declared else rule,
        )
        if new == old:
            continue
        known[place] = touched[place] = new
        changed.history.append(
            (change.who, *place, old.effective, new.effective, change.reason),
        )
        effective = new.effective
        value = None if effective is None else msgspec.json.decode(effective)
        data = {"kind": change.kind, "name": change.name, "rule": value}
        changed.asked.append(Change("limit", 0, "", "asked", 0, data))
    changed.rows = [touched[place] for place in sorted(touched)]
    changed.after = compose(known.values())
    return changed
