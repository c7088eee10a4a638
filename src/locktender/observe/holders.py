"""Which runs held a gate while others waited there, by the samples of the leader (`kernel/wait_book.py`)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import nsmallest
from typing import Final, NamedTuple

import msgspec

from locktender.base.clock import SECOND
from locktender.base.events import NO_RUN, Event, EventRow, unpack
from locktender.base.graph import Node
from locktender.base.model import RunRow
from locktender.base.text import gate_word
from locktender.kernel.gates.worker import Requirement
from locktender.store.protocol import EventFilter, RunFilter, Store

MAX_NAMED: Final = 5
"""Runs that are named per gate."""
PAGE: Final = 10_000
OVERLAP: Final = 1_000
"""Numbers of events within which one may become visible after those behind it."""
MAX_SAMPLES: Final = 64
"""Of one gate that are looked at to charge the waits of one second."""
MINUTE: Final = 60 * SECOND
HOLD_FLOW: Final = "locktender:hold"
"""The flow of holds of slots (`slots()`)."""
OWN_GATES: Final = ("window:", "run:", "sequential")
"""Gates of one run: it waits for itself."""


class LostTo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run that held a gate, and how much of the wait is charged to it."""

    run: str
    us: int
    tags: dict[str, str] = {}


class LimitCost(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a limit cost in waiting: waits that were over in the time asked for."""

    gate: str
    us: int
    waits: int
    """How many tasks and runs waited there."""
    to: tuple[LostTo, ...] = ()
    """Who held it meanwhile, the most first."""


class MinuteCost(NamedTuple):
    """Waits that were over within one minute."""

    at: int
    us: int
    waits: int


class Samples:
    """Who held which gate, from when on."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._at: dict[tuple[str, str], list[int]] = {}
        self._held: dict[tuple[str, str], list[Sequence[tuple[int, int]]]] = {}
        for event in events:
            self.add(event)

    def add(self, event: Event) -> None:
        if event.subject == "wait" and "held" in event.data:
            for of in event.data.get("of", ("",)):
                self._at.setdefault((event.after, of), []).append(event.at)
                self._held.setdefault((event.after, of), []).append(event.data["held"])

    def forget(self, before: int) -> None:
        """Samples that say nothing of the time from `before` on."""
        for kind, at in self._at.items():
            old = max(0, bisect_right(at, before) - 1)
            del at[:old], self._held[kind][:old]

    def shares(
        self, gate: str, start: int, end: int, of: str = "", most: int | None = None
    ) -> dict[int, float]:
        """Run → its share of the gate between two instants; they add up to 1. Empty: not known.

        Under `NO_RUN` is time not attributed to any run. `of`: of workers, the name of what was required of them;
        without it all that waited for workers count alike. `most`: about so many samples are looked at, each
        for as long as the next one is away; None: all.
        """
        kinds = [each for each in self._at if each[0] == gate and each[1] in (of, "")]
        kinds = kinds or [each for each in self._at if each[0] == gate and not of]
        found: dict[int, float] = {}
        for kind in kinds:
            for run, share in self._shares(kind, start, end, most).items():
                found[run] = found.get(run, 0.0) + share / len(kinds)
        return found

    def _shares(
        self, kind: tuple[str, str], start: int, end: int, most: int | None
    ) -> dict[int, float]:
        at, held = self._at[kind], self._held[kind]
        first = max(0, bisect_right(at, start) - 1)
        last = max(first + 1, bisect_left(at, end))
        numbers = range(first, last, max(1, (last - first) // most) if most else 1)
        found: dict[int, float] = {}
        for number in numbers:
            following = number + numbers.step
            left = start if number == first else at[number]
            right = min(end, at[following]) if following < last else end
            several = held[number] or ((NO_RUN, 1),)
            slots = sum(each for _, each in several)
            for run, own in several:
                found[run] = found.get(run, 0.0) + max(1, right - left) * own / slots
        whole = sum(found.values())
        return {run: share / whole for run, share in found.items()}


def required_by(nodes: Sequence[Node], node: int) -> str:
    """What a task of this node requires of a worker, as samples call it; empty: that is not known."""
    return Requirement.of(nodes[node]).name if 0 <= node < len(nodes) else ""


def charged(us: int, shares: Mapping[int, float]) -> dict[int, int]:
    """`us` by run, in whole microseconds; rounded so that only time not attributed to any run is left over."""
    found = {run: int(us * share) for run, share in shares.items()}
    if found:
        found[max(found, key=lambda run: found[run])] += us - sum(found.values())
    return {run: part for run, part in found.items() if part and run != NO_RUN}


class HolderNames:
    """Ids and tags of runs that the history knows by number."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[int, RunRow | None] = {}

    async def of(self, lost: Mapping[int, int]) -> tuple[LostTo, ...]:
        found: list[LostTo] = []
        for us, seq in nsmallest(MAX_NAMED, ((-us, seq) for seq, us in lost.items())):
            row = await self._row(seq)
            found.append(
                LostTo(f"#{seq}", -us) if row is None else LostTo(row.id, -us, dict(row.tags))
            )
        return tuple(found)

    async def _row(self, seq: int) -> RunRow | None:
        if seq not in self._known:
            self._known[seq] = None
            for flow in (None, HOLD_FLOW):
                where = RunFilter(flow=flow, before=seq + 1, limit=1)
                for row in await self._store.runs(where):
                    if row.seq == seq:
                        self._known[seq] = row
        return self._known[seq]


async def limit_costs(store: Store, last_us: int) -> list[LimitCost]:
    """What each gate cost in waiting within the last so many microseconds, the most expensive first."""
    return await CostBook(store, last_us).read()


Costs = dict[str, tuple[int, int, dict[int, int]]]
"""Gate → microseconds, waits, and run → what is charged to it."""


class CostBook:
    """The same for a process that asks again and again: each reads what has been written since."""

    def __init__(self, store: Store, last_us: int) -> None:
        self._store = store
        self._last_us = last_us
        self._after: int | None = None
        self._read: set[int] = set()
        """Numbers of events that will be read again: one with a smaller number may become visible later."""
        self._samples = Samples(())
        self._by_minute: dict[int, Costs] = {}
        self._total: Costs = {}
        """Of all these minutes: of a day with many runs they are too many to be added up for each question."""
        self._found: list[LimitCost] | None = None
        """What the total came to; None: it has changed since."""

    async def read(self) -> list[LimitCost]:
        since = await self._store.now() - self._last_us
        if self._after is None:
            self._after = await last_before(self._store, since)
        while rows := await self._store.events(
            EventFilter(run=NO_RUN, after=self._after, limit=PAGE)
        ):
            self._add([row for row in rows if row.seq not in self._read], since)
            self._after = rows[-1].seq
            self._read = {row.seq for row in rows if row.seq > self._after - OVERLAP}
            if len(rows) < PAGE:
                self._after = max(rows[0].seq - 1, self._after - OVERLAP)
                break
        self._forget(since)
        if self._found is None:
            self._found = await self._named_costs()
        return self._found

    def passed(self, now: int) -> dict[str, float]:
        """Gate → how many of those that had waited there went on within the last minute, about."""
        minute, part = divmod(now, MINUTE)
        found: dict[str, float] = {}
        for at, weight in ((minute, 1.0), (minute - 1, 1 - part / MINUTE)):
            for gate, (_, waits, _) in self._by_minute.get(at, {}).items():
                found[gate] = found.get(gate, 0.0) + waits * weight
        return found

    def history(self, gates: Collection[str], now: int, minutes: int) -> list[MinuteCost]:
        """What waits at these gates cost in each of the last minutes; the last one is not over."""
        found: list[MinuteCost] = []
        for minute in range(now // MINUTE - minutes + 1, now // MINUTE + 1):
            costs = self._by_minute.get(minute, {})
            own = [costs[gate] for gate in gates if gate in costs]
            found.append(
                MinuteCost(
                    minute * MINUTE, sum(us for us, _, _ in own), sum(waits for _, waits, _ in own)
                )
            )
        return found

    def _add(self, rows: Sequence[EventRow], since: int) -> None:
        told = [row for row in rows if row.at >= since and _tells(row)]
        events = [each for row in told for each in unpack(row) if each.subject in ("cost", "wait")]
        for event in events:
            self._samples.add(event)
        for event in events:
            costs = self._by_minute.setdefault(event.at // MINUTE, {})
            for gate, (us, waits) in event.data.get("gates", {}).items():
                # Those waits ended in the second before: none of them began earlier than all of them last.
                began = max(since, event.at - us)
                shares = self._samples.shares(gate, began, event.at, most=MAX_SAMPLES)
                more = us, waits, charged(us, shares)
                _add_cost(costs, gate, more)
                _add_cost(self._total, gate, more)
                self._found = None

    def _forget(self, since: int) -> None:
        for minute in [each for each in self._by_minute if (each + 1) * MINUTE <= since]:
            for gate, cost in self._by_minute.pop(minute).items():
                _take_cost(self._total, gate, cost)
            self._found = None
        self._samples.forget(since)

    async def _named_costs(self) -> list[LimitCost]:
        names = HolderNames(self._store)
        found = [
            LimitCost(gate_word(gate), us, waits, await names.of(to))
            for gate, (us, waits, to) in self._total.items()
        ]
        return sorted(found, key=lambda each: (-each.us, each.gate))


def _add_cost(costs: Costs, gate: str, more: tuple[int, int, Mapping[int, int]]) -> None:
    us, waits, to = costs.get(gate, (0, 0, {}))
    for run, part in more[2].items():
        to[run] = to.get(run, 0) + part
    costs[gate] = us + more[0], waits + more[1], to


def _take_cost(costs: Costs, gate: str, less: tuple[int, int, Mapping[int, int]]) -> None:
    us, waits, to = costs[gate]
    for run, part in less[2].items():
        to[run] -= part
        if not to[run]:
            del to[run]  # parts are never 0: none of its minutes is left
    costs[gate] = us - less[0], waits - less[1], to
    if costs[gate] == (0, 0, {}):
        del costs[gate]


async def last_before(store: Store, at: int) -> int:
    """The number of an event before `at`, close to it: found by halving, without reading what lies between."""
    newest = await store.events(EventFilter(limit=1, newest=True))
    low, high = 0, newest[-1].seq if newest else 0
    while high - low > PAGE:
        middle = (low + high) // 2
        rows = await store.events(EventFilter(after=middle, limit=1))
        if rows and rows[0].at < at:
            low = middle
        else:
            high = middle
    return low


def _tells(row: EventRow) -> bool:
    """Without decoding each row: there are many."""
    return b'"cost"' in row.body or b'"held"' in row.body
