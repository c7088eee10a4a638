"""The admission ceiling: how many runs may be active, in total and per tag.

Counting rows would take as long as there are rows, so counters stand for them:
`admitted` is raised in the transaction that stores a run, `closed` in the one
that ends it. Every submitter reads both inside its own write transaction, so
two submitters can never both take the last place. The audit compares them with
the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import NamedTuple

import msgspec

from locktender.base.clock import SECOND
from locktender.base.limits import Limits, TagRule
from locktender.base.names import UNLIMITED
from locktender.store.decode import Row, decode_tags, wrong
from locktender.store.protocol import Counts, Submitted

TOTAL = ""
MAX_ACTIVE = "max_active"
WAITING = "=waiting"
"""The counter of waiting runs. No tag's counter begins so."""
MAX_WAITING = "max_waiting"
WINDOW_SECONDS = 60
"""The ring of seconds over which the pace of closing is measured."""

_LEAST_US, _MAX_US = SECOND, 3_600 * SECOND


class Drained(NamedTuple):
    """Runs closed in the last minute: how many, since which second, and in how many of its seconds."""

    closed: int
    first: int | None
    seconds: int


class Full(msgspec.Struct, frozen=True):
    """The ceiling that refused a run."""

    ceiling: str
    rule: str
    """What sets it: `max_active`, or a tag rule's name."""
    active: int
    limit: int
    retry_after_us: int
    wanted: int = 1
    """How many of one submission count under it, all or none."""

    @property
    def never(self) -> bool:
        """However long they wait: together they are more than it allows."""
        return self.wanted > self.limit


class _Ceiling(NamedTuple):
    name: str
    """Of its counter."""
    spoken: str
    rule: str
    limit: int


def capped(limits: Limits) -> list[TagRule]:
    return [rule for rule in limits.tags if rule.max_active != UNLIMITED]


def counters(rules: Iterable[TagRule], tags: Mapping[str, str]) -> list[str]:
    """The names a run is counted under, besides the total."""
    return [name for rule in rules if (name := rule.counter(tags)) is not None]


def counter_names(
    limits: Limits, tag_sets: Iterable[Mapping[str, str]], *, waiting: bool = False
) -> set[str]:
    """The counters that concern runs with these tags. `waiting`: some of them wait for their time."""
    names = {TOTAL, WAITING} if waiting else {TOTAL}
    rules = capped(limits)
    if rules:
        for tags in tag_sets:
            names.update(counters(rules, tags))
    return names


def active_of(rows: Iterable[Row]) -> dict[str, int]:
    """Active runs by counter, from (name, admitted, closed). One that cannot be read refuses no run."""
    return {
        name: 0 if wrong(admitted) or wrong(closed) else admitted - closed
        for name, admitted, closed in rows
    }


class Ceilings:
    """The counters that concern some submissions, and what this transaction adds to them."""

    def __init__(
        self, limits: Limits, active: Mapping[str, int], drained: Callable[[], Drained]
    ) -> None:
        self.added: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._turned_away: Counter[_Ceiling] = Counter()
        self._before: Counter[str] = Counter()
        self._limits = limits
        self._rules = capped(limits)
        self._active = active
        self._drained = drained

    def open(self) -> None:
        """Another submission: who is refused behind others of it needs more room than they do."""
        self._refused.clear()
        self._turned_away.clear()
        self._before = Counter(self.added)

    def admit(self, tags: Mapping[str, str], now: int) -> Full | None:
        """Takes a place under every ceiling that concerns `tags`, or says which one is full."""
        names = [TOTAL]
        if self._full(TOTAL, self._limits.max_active):
            return self._refuse(TOTAL, tags, now)
        for rule in self._rules:
            name = rule.counter(tags)
            if name is None:
                continue
            if self._full(name, rule.max_active):
                return self._refuse(name, tags, now)
            names.append(name)
        for name in names:
            self.added[name] += 1
        return None

    def admit_waiting(self, now: int) -> Full | None:
        """Takes a place among the waiting runs, or says that there is none."""
        limit = self._limits.max_waiting
        if not self._full(WAITING, limit):
            self.added[WAITING] += 1
            return None
        ceiling = _Ceiling(WAITING, MAX_WAITING, MAX_WAITING, limit)
        self._turned_away[ceiling] += 1
        self._refused[WAITING] += 1
        active = self._now_active(WAITING)
        return self._refusal(ceiling, active, 1, active - limit + self._refused[WAITING], now)

    def count_woken(self, tags: Mapping[str, str]) -> None:
        """A woken run counts as active. No ceiling refuses it."""
        self.added.update([TOTAL, *counters(self._rules, tags)])

    def hardest(self, now: int) -> Full | None:
        """The ceiling that keeps this submission out for the longest, where all or none of it is to be let in.

        A refused run was checked only up to its first full ceiling; here all its ceilings count.
        """
        found: list[Full] = []
        for ceiling, turned_away in self._turned_away.items():
            name = ceiling.name
            active = self._active.get(name, 0) + self._before[name]
            wanted = self.added[name] - self._before[name] + turned_away
            room = ceiling.limit - active
            if ceiling.limit != UNLIMITED and wanted > room:
                found.append(self._refusal(ceiling, active, wanted, wanted - room, now))
        return max(found, key=lambda full: (full.never, full.retry_after_us), default=None)

    def _now_active(self, name: str) -> int:
        return self._active.get(name, 0) + self.added[name]

    def _full(self, name: str, limit: int) -> bool:
        return limit != UNLIMITED and self._now_active(name) >= limit

    def _refuse(self, name: str, tags: Mapping[str, str], now: int) -> Full:
        concerned = {each.name: each for each in self._concerning(tags)}
        self._turned_away.update(concerned.values())
        self._refused[name] += 1
        active = self._now_active(name)
        # All of `added` are to be let in too.
        closing = active - concerned[name].limit + self._refused[name]
        return self._refusal(concerned[name], active, 1, closing, now)

    def _concerning(self, tags: Mapping[str, str]) -> Iterator[_Ceiling]:
        yield _Ceiling(TOTAL, MAX_ACTIVE, MAX_ACTIVE, self._limits.max_active)
        for rule in self._rules:
            name = rule.counter(tags)
            if name is not None:
                spoken = f"{rule.key}={tags[rule.key]}" if rule.per_value else rule.name
                yield _Ceiling(name, spoken, rule.name, rule.max_active)

    def _refusal(self, ceiling: _Ceiling, active: int, wanted: int, closing: int, now: int) -> Full:
        """`closing`: how many have to close first. What is counted closes at its share of the pace."""
        total = self._active.get(TOTAL, 0)
        share = self._active.get(ceiling.name, 0) / total if total else 1.0
        never = wanted > ceiling.limit
        wait = 0 if never else retry_after(self._drained(), now, share, closing)
        return Full(ceiling.spoken, ceiling.rule, active, ceiling.limit, wait, wanted)


def rejected(run_id: str, seq: int, full: Full, as_of: int) -> Submitted:
    """The answer to a run that `full` keeps out."""
    return Submitted(
        id=run_id,
        seq=seq,
        outcome="rejected",
        ceiling=full.ceiling,
        rule=full.rule,
        active=full.active,
        limit=full.limit,
        wanted=full.wanted,
        retry_after_us=full.retry_after_us,
        as_of=as_of,
    )


def closing(limits: Limits, ended: Iterable[Mapping[str, str]], waiting: int = 0) -> Counter[str]:
    """What runs that ended, given their tags, count under which name. `waiting`: so many more had waited."""
    rules = capped(limits)
    names: Counter[str] = Counter({WAITING: waiting} if waiting else {})
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
    return int(min(_MAX_US, max(_LEAST_US, wait)))


def recounted(limits: Limits, active_tags: Iterable[tuple[Mapping[str, str], int]]) -> Counter[str]:
    """Active runs under the name of every rule that has a ceiling."""
    rules = capped(limits)
    active: Counter[str] = Counter()
    for tags, count in active_tags:
        for name in counters(rules, tags):
            active[name] += count
    return active


def tally(
    limits: Limits,
    rows: Sequence[tuple[str, int, int]],
    active_tags: Iterable[tuple[str, int]],
    held: Mapping[str, int],
    queued: int,
    executing: int,
    waiting: int,
) -> Counts:
    """`rows` are (name, admitted, closed); `active_tags` how many active runs carry which tags."""
    rules = capped(limits)
    active: Counter[str] = Counter(dict.fromkeys([TOTAL, *(name for name, *_ in rows)], 0))
    for tags, count in active_tags:
        active[TOTAL] += count
        for name in counters(rules, decode_tags(tags)):
            active[name] += count
    if waiting:
        active[WAITING] = waiting
    return Counts(
        admitted={name: admitted for name, admitted, _ in rows},
        closed={name: closed for name, _, closed in rows},
        active=dict(active),
        held=dict(held),
        queued=queued,
        executing=executing,
        waiting=waiting,
    )
