"""The admission ceiling: how many runs may be active, in total and per tag.

Counting rows would take as long as there are rows, so counters stand for them:
`admitted` is raised in the transaction that stores a run, `closed` in the one
that ends it. Every submitter reads both inside its own write transaction, so
two submitters can never both take the last place. The audit compares them with
the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headgate.base.clock import SECOND
from headgate.base.limits import Limits, TagRule
from headgate.base.names import UNLIMITED
from headgate.store.sqlite.session import Session, listed

TOTAL = ""
MAX_ACTIVE = "max_active"

_WINDOW_SECONDS = 60
_LEAST_US, _MOST_US = SECOND, 3_600 * SECOND


@dataclass(frozen=True, slots=True)
class Full:
    """The ceiling that refused a run."""

    ceiling: str
    active: int
    limit: int
    retry_after_us: int


def capped(limits: Limits) -> list[TagRule]:
    return [rule for rule in limits.tags if rule.max_active != UNLIMITED]


def counters(rules: Iterable[TagRule], tags: Mapping[str, str]) -> list[str]:
    """The names a run is counted under, besides the total."""
    return [name for rule in rules if (name := rule.counter(tags)) is not None]


class Ceilings:
    """The counters that concern some submissions, and what this transaction adds to them."""

    def __init__(self, tx: Session, limits: Limits, tag_sets: Iterable[Mapping[str, str]]) -> None:
        self._tx = tx
        self._limits = limits
        self._rules = capped(limits)
        names = {TOTAL}
        if self._rules:
            for tags in tag_sets:
                names.update(counters(self._rules, tags))
        self._active = {
            name: admitted - closed
            for name, admitted, closed in tx.all("counters_by_name", listed(names))
        }
        self._added: Counter[str] = Counter()

    def admit(self, tags: Mapping[str, str], now: int) -> Full | None:
        """Takes a place under every ceiling that concerns `tags`, or says which one is full."""
        names = [TOTAL]
        if self._full(TOTAL, self._limits.max_active):
            return self._refusal(TOTAL, MAX_ACTIVE, self._limits.max_active, now)
        for rule in self._rules:
            name = rule.counter(tags)
            if name is None:
                continue
            if self._full(name, rule.max_active):
                spoken = f"{rule.key}={tags[rule.key]}" if rule.per_value else rule.name
                return self._refusal(name, spoken, rule.max_active, now)
            names.append(name)
        self._added.update(names)
        return None

    def write(self) -> None:
        if self._added:
            self._tx.each("counter_admit", sorted(self._added.items()))

    def _now_active(self, name: str) -> int:
        return self._active.get(name, 0) + self._added[name]

    def _full(self, name: str, limit: int) -> bool:
        return limit != UNLIMITED and self._now_active(name) >= limit

    def _refusal(self, name: str, ceiling: str, limit: int, now: int) -> Full:
        active = self._now_active(name)
        share = active / max(1, self._now_active(TOTAL))
        return Full(ceiling, active, limit, retry_after(self._tx, now, share))


def closed(tx: Session, limits: Limits, ended: Iterable[Mapping[str, str]], now: int) -> None:
    """Counts runs that ended, given their tags."""
    rules = capped(limits)
    names: Counter[str] = Counter()
    for tags in ended:
        names[TOTAL] += 1
        names.update(counters(rules, tags))
    if names:
        tx.each("counter_close", sorted(names.items()))
        second = now // SECOND
        tx.run("drain_add", second % _WINDOW_SECONDS, second, names[TOTAL])


def retry_after(tx: Session, now: int, share: float) -> int:
    """How long until one more of these runs closes, at the pace of the last minute.

    `share` is how many of all active runs count under the full ceiling: that
    part of the closing runs makes room there. Where nothing closed, a minute:
    what is known is only that it took longer than that.
    """
    second = now // SECOND
    count, first = tx.row("drain_recent", second - _WINDOW_SECONDS)
    if not count:
        return _WINDOW_SECONDS * SECOND
    window = max(1, second - first + 1) * SECOND
    pace = window / (count * max(share, 1e-6))
    return int(min(_MOST_US, max(_LEAST_US, pace)))
