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
from math import ceil
from typing import NamedTuple

from headgate.base.clock import SECOND
from headgate.base.limits import Limits, TagRule
from headgate.base.names import UNLIMITED

TOTAL = ""
MAX_ACTIVE = "max_active"
WINDOW_SECONDS = 60
"""The ring of seconds over which the pace of closing is measured."""

_LEAST_US, _MOST_US = SECOND, 3_600 * SECOND


class Drained(NamedTuple):
    """Runs closed in the last minute: how many, since which second, and in how many of its seconds."""

    closed: int
    first: int | None
    seconds: int


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
        self.refused: Counter[str] = Counter()
        """Of one submission: who is refused behind others needs more room than they do."""
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
        for name in names:
            self.added[name] += 1
        return None

    def _now_active(self, name: str) -> int:
        return self._active.get(name, 0) + self.added[name]

    def _full(self, name: str, limit: int) -> bool:
        return limit != UNLIMITED and self._now_active(name) >= limit

    def _refusal(self, name: str, ceiling: str, limit: int, now: int) -> Full:
        active = self._now_active(name)
        self.refused[name] += 1
        # All of `added` are to be let in too; what is counted closes at its share of the pace.
        wanted = active - limit + self.refused[name]
        total = self._active.get(TOTAL, 0)
        share = self._active.get(name, 0) / total if total else 1.0
        return Full(ceiling, active, limit, retry_after(self._drained(), now, share, wanted))


def closing(limits: Limits, ended: Iterable[Mapping[str, str]]) -> Counter[str]:
    """What runs that ended, given their tags, count under which name."""
    rules = capped(limits)
    names: Counter[str] = Counter()
    for tags in ended:
        names[TOTAL] += 1
        names.update(counters(rules, tags))
    return names


def retry_after(drained: Drained, now: int, share: float = 1.0, wanted: int = 1) -> int:
    """How long until `wanted` more of these runs have closed, at the pace of the last minute.

    `share` is how many of all active runs count under the full ceiling: that
    part of the closing runs makes room there. Runs that close together make
    room together, so it is counted in turns: from one second in which any
    closed to the next. Of a single such second nobody can tell what came
    before: the whole minute counts then. Where nothing closed, a minute: what
    is known is only that it took longer than that.
    """
    closed, first, seconds = drained
    if not closed or first is None:
        return WINDOW_SECONDS * SECOND
    makes_room = closed * max(share, 1e-6)
    if seconds == 1:
        wait = WINDOW_SECONDS * SECOND * wanted / makes_room
    else:
        turn = max(1, now // SECOND - first + 1) * SECOND / (seconds - 1)
        wait = turn * ceil(wanted * seconds / makes_room)
    return int(min(_MOST_US, max(_LEAST_US, wait)))


def recounted(limits: Limits, active_tags: Iterable[tuple[Mapping[str, str], int]]) -> Counter[str]:
    """Active runs under the name of every rule that has a ceiling."""
    rules = capped(limits)
    active: Counter[str] = Counter()
    for tags, count in active_tags:
        for name in counters(rules, tags):
            active[name] += count
    return active
