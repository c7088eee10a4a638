"""The admission ceiling: how many runs may be active, in total and per tag.

Counting rows would take as long as there are rows, so counters stand for them:
`admitted` is raised in the transaction that stores a run, `closed` in the one
that ends it. Every submitter reads both inside its own write transaction, so
two submitters can never both take the last place. The audit compares them with
the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from headgate.base.clock import SECOND
from headgate.base.limits import Limits, TagRule
from headgate.base.names import UNLIMITED

TOTAL = ""
MAX_ACTIVE = "max_active"
WINDOW_SECONDS = 60
"""The ring of seconds over which the pace of closing is measured."""

_LEAST_US, _MOST_US = SECOND, 3_600 * SECOND

Drained = tuple[int, int | None]
"""Runs closed in the last minute, and the first second in which any was."""


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


def counter_names(limits: Limits, tag_sets: Iterable[Mapping[str, str]]) -> set[str]:
    """The counters that concern runs with these tags."""
    names = {TOTAL}
    rules = capped(limits)
    if rules:
        for tags in tag_sets:
            names.update(counters(rules, tags))
    return names


class Ceilings:
    """The counters that concern some submissions, and what this transaction adds to them."""

    def __init__(
        self, limits: Limits, active: Mapping[str, int], drained: Callable[[], Drained]
    ) -> None:
        self.added: Counter[str] = Counter()
        self._limits = limits
        self._rules = capped(limits)
        self._active = active
        self._drained = drained

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
        self.added.update(names)
        return None

    def _now_active(self, name: str) -> int:
        return self._active.get(name, 0) + self.added[name]

    def _full(self, name: str, limit: int) -> bool:
        return limit != UNLIMITED and self._now_active(name) >= limit

    def _refusal(self, name: str, ceiling: str, limit: int, now: int) -> Full:
        active = self._now_active(name)
        share = active / max(1, self._now_active(TOTAL))
        return Full(ceiling, active, limit, retry_after(self._drained(), now, share))


def closing(limits: Limits, ended: Iterable[Mapping[str, str]]) -> Counter[str]:
    """What runs that ended, given their tags, count under which name."""
    rules = capped(limits)
    names: Counter[str] = Counter()
    for tags in ended:
        names[TOTAL] += 1
        names.update(counters(rules, tags))
    return names


def retry_after(drained: Drained, now: int, share: float) -> int:
    """How long until one more of these runs closes, at the pace of the last minute.

    `share` is how many of all active runs count under the full ceiling: that
    part of the closing runs makes room there. Where nothing closed, a minute:
    what is known is only that it took longer than that.
    """
    count, first = drained
    if not count or first is None:
        return WINDOW_SECONDS * SECOND
    window = max(1, now // SECOND - first + 1) * SECOND
    pace = window / (count * max(share, 1e-6))
    return int(min(_MOST_US, max(_LEAST_US, pace)))


def recounted(limits: Limits, active_tags: Iterable[tuple[Mapping[str, str], int]]) -> Counter[str]:
    """Active runs under the name of every rule that has a ceiling."""
    rules = capped(limits)
    active: Counter[str] = Counter()
    for tags, count in active_tags:
        for name in counters(rules, tags):
            active[name] += count
    return active
