"""How many waiters start before a given one, if no new ones come.

Order is priority, then fair turn, then age. A value of the fair key takes its
turns at `max(present, its clock)`, one step of 1 / weight later each time; of
equal priority the lowest turn is served first. So the position follows from
counts per value and priority, without reading the waiters one by one. Serving
higher priorities moves the clocks too, one priority after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

from locktender.base.limits import Fair
from locktender.kernel.fair_turns import Turns

Precision = Literal["exact", "about", "at least"]
"""How a number is meant. Where turns are not known for certain, or not all who wait were counted, it is said."""


class QueueGroup(NamedTuple):
    """Waiters of one lane and one priority."""

    value: str | None
    """Of the fair key; None takes no turn."""
    rank: int
    """The first part of their rank: smaller goes first."""
    waiting: int
    older: int
    """How many of them stand before the waiter by rank and age."""
    counters: frozenset[str] = frozenset()
    """The tags' counters that concern them."""


class QueuePosition:
    """Who goes before one waiter of `value` and `rank`, that is counted in `groups` itself.

    known   the clocks of `turns` are those that decide
    cut     there are waiters that `groups` leaves out; it has all those of the waiter's own lane
    before  how many stand before it by rank and age, where that is known although `groups` is cut
    more    `before` is a bound: there may be more
    """

    def __init__(
        self,
        turns: Turns,
        value: str | None,
        rank: int,
        groups: Iterable[QueueGroup],
        *,
        known: bool = True,
        cut: bool = False,
        before: int | None = None,
        more: bool = False,
    ) -> None:
        self._turns = turns
        self._value = value
        self._rank = rank
        self._groups = [group for group in groups if group.rank <= rank]
        self._known = known
        self._cut = cut
        self._before = before
        self._more = more

    def behind(self, passed: Sequence[QueueGroup]) -> QueuePosition:
        """A place of the same priority with these waiters before it too. Without turns."""
        before = None if self._before is None else self._before + sum(each.older for each in passed)
        groups = [*self._groups, *passed]
        return QueuePosition(
            self._turns,
            self._value,
            self._rank,
            groups,
            cut=self._cut,
            before=before,
            more=self._more,
        )

    @property
    def fair(self) -> Fair | None:
        return None if self._value is None else self._turns.fair

    @cached_property
    def higher(self) -> int:
        """Waiters of higher priority."""
        return sum(group.waiting for group in self._groups if group.rank < self._rank)

    @cached_property
    def own(self) -> int:
        """Waiters of its own value and priority that are older."""
        return sum(group.older for group in self._level if group.value == self._value)

    @cached_property
    def others(self) -> Counter[str | None]:
        """Values it takes turns with → how many of its priority wait."""
        waiting: Counter[str | None] = Counter()
        for group in self._level:
            if group.value != self._value and group.waiting:
                waiting[group.value] += group.waiting
        return waiting

    @property
    def shared(self) -> bool:
        """It takes turns with other values."""
        return self.fair is not None and bool(self.others)

    @cached_property
    def ahead(self) -> int:
        """How many go first."""
        if self.fair is None:
            if self._before is not None:
                return self._before
            return self.higher + sum(group.older for group in self._level)
        # Of an incomplete count only what is certain.
        return self.higher + self.own + (0 if self._cut else sum(self._served.values()))

    @property
    def precision(self) -> Precision:
        if self._cut:
            # Whom a tag's limit holds up is not known of all of them.
            return "at least" if self._before is None or self._more else "about"
        return "about" if self.shared and not self._known else "exact"

    def ahead_with(self, counter: str) -> tuple[int, Precision]:
        """How many of them one of the tags' counters concerns, and how that number is meant."""
        found = sum(first for group, first in self._first if counter in group.counters)
        if self._cut:
            return found, "at least"
        precision = self.precision
        if precision == "exact" and any(
            len({counter in group.counters for group in self._level if group.value == value}) > 1
            for value in self._split
        ):
            precision = "about"
        return found, precision

    @cached_property
    def counters(self) -> Counter[str]:
        """The tags' counters that concern those before it → how many of them at most."""
        found: Counter[str] = Counter()
        for group, first in self._first:
            if self.fair is not None and group.rank == self._rank and group.value in self._split:
                first = min(group.waiting, self._served[group.value])
            if first:
                for counter in group.counters:
                    found[counter] += first
        return found

    def beside(self, counter: str) -> set[str]:
        """The counters that concern those before it which `counter` concerns."""
        return {
            each
            for group, first in self._first
            if first and counter in group.counters
            for each in group.counters
        }

    def has(self, counter: str) -> bool:
        """Anybody before it is concerned by this counter."""
        return any(first and counter in group.counters for group, first in self._first)

    def ahead_without(self, counters: Collection[str]) -> int:
        """How many of them none of these counters concerns."""
        return sum(first for group, first in self._first if group.counters.isdisjoint(counters))

    @property
    def text(self) -> str:
        """The turns it shares, in words."""
        fair = self._turns.fair
        if fair is None or self._value is None:
            return ""
        several = f"{len(self.others) + 1} values of {fair.key} wait and take turns"
        if self._cut:
            several = f"at least {several}"
        named = f"{self._value!r}" if self._value else f"no {fair.key}"
        share = f", {named} with weight {fair.weight(self._value)}" if fair.weights else ""
        whose = f"with {fair.key}={self._value}" if self._value else f"without {fair.key}"
        higher = f", {self.higher:,} of higher priority" if self.higher else ""
        return f"fair turn: {several}{share}; {self.own:,} {whose} before it{higher}"

    # -- turns -------------------------------------------------------------------------------------

    @cached_property
    def _level(self) -> list[QueueGroup]:
        return [group for group in self._groups if group.rank == self._rank]

    @cached_property
    def _split(self) -> set[str | None]:
        """Values of which some go first, and which of several lanes they are of is not known."""
        return {
            value
            for value, waiting in self.others.items()
            if 0 < self._served[value] < waiting
            and sum(group.value == value for group in self._level) > 1
        }

    @cached_property
    def _first(self) -> list[tuple[QueueGroup, int]]:
        """How many of each group go first."""
        found: list[tuple[QueueGroup, int]] = []
        counted: Counter[str | None] = Counter()
        for group in self._groups:
            if group.rank < self._rank:
                first = group.waiting
            elif group.value == self._value or self.fair is None:
                first = group.older
            elif self._cut:
                first = 0
            else:
                # Of several lanes of one value: each in proportion, and together all that are served.
                served, waiting = self._served[group.value], self.others[group.value]
                before = served * counted[group.value] // waiting
                counted[group.value] += group.waiting
                first = served * counted[group.value] // waiting - before
            found.append((group, first))
        return found

    @cached_property
    def _served(self) -> dict[str | None, int]:
        """Other values → how many of its priority are served before it."""
        begins = self._begins
        own = self._begin(begins, self._value) + self.own * self._step(self._value)
        older: Counter[str | None] = Counter()
        for group in self._level:
            older[group.value] += group.older
        served: dict[str | None, int] = {}
        for value, waiting in self.others.items():
            step = self._step(value)
            until, rest = divmod(own - self._begin(begins, value), step) if step else (0, 1)
            # A value with the same turn goes first if its run is older, and so are the first of its value.
            count = until + 1 if rest or 0 <= until < older[value] else until
            served[value] = min(waiting, max(0, count))
        return served

    @cached_property
    def _begins(self) -> tuple[int, dict[str | None, int]]:
        """The present and the clocks when its own priority is served: higher ones move them."""
        present = self._turns.present
        clocks: dict[str | None, int] = {**self._turns.clock}
        by_rank: dict[int, Counter[str | None]] = {}
        for group in self._groups:
            if group.rank < self._rank and group.value is not None:
                by_rank.setdefault(group.rank, Counter())[group.value] += group.waiting
        for _, counts in sorted(by_rank.items()):
            latest = present
            for value, count in counts.items():
                begin, step = max(present, clocks.get(value, 0)), self._step(value)
                clocks[value] = begin + count * step
                latest = max(latest, begin + (count - 1) * step)
            present = latest
        return present, clocks

    def _begin(self, begins: tuple[int, dict[str | None, int]], value: str | None) -> int:
        present, clocks = begins
        return max(present, clocks.get(value, 0))

    def _step(self, value: str | None) -> int:
        fair = self._turns.fair
        return 0 if fair is None or value is None else Turns.STEP // fair.weight(value)
