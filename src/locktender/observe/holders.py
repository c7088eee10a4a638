"""To whom time at a gate was lost: who held it, by the samples that the leader wrote (`kernel/wait_book.py`)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from locktender.base.events import NOBODY, Event, EventRow, unpack
from locktender.base.graph import Node
from locktender.base.model import RunRow
from locktender.kernel.gates.worker import Requirement
from locktender.store.protocol import EventFilter, RunFilter, Store

MAX_NAMED: Final = 5
"""Runs that are named per gate."""
PAGE: Final = 10_000
HOLD_FLOW: Final = "locktender:hold"
"""The flow of holds of slots (`slots()`)."""
WORKER_GATE: Final = "worker"
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


class Samples:
    """Who held which gate, from when on."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._at: dict[tuple[str, str], list[int]] = {}
        self._held: dict[tuple[str, str], list[Sequence[tuple[int, int]]]] = {}
        for event in events:
            if event.subject == "wait" and "held" in event.data:
                for of in event.data.get("of", ("",)):
                    self._at.setdefault((event.after, of), []).append(event.at)
                    self._held.setdefault((event.after, of), []).append(event.data["held"])

    def shares(self, gate: str, start: int, end: int, of: str = "") -> dict[int, float]:
        """Run → its share of the gate between two instants; they add up to 1. Empty: not known.

        Under `NOBODY` is what nobody is to blame for. `of`: of workers, the name of what was required of them;
        without it all that waited for workers count alike.
        """
        kinds = [each for each in self._at if each[0] == gate and each[1] in (of, "")]
        kinds = kinds or [each for each in self._at if each[0] == gate and not of]
        found: dict[int, float] = {}
        for kind in kinds:
            for run, share in self._shares(kind, start, end).items():
                found[run] = found.get(run, 0.0) + share / len(kinds)
        return found

    def _shares(self, kind: tuple[str, str], start: int, end: int) -> dict[int, float]:
        at, held = self._at[kind], self._held[kind]
        first = max(0, bisect_right(at, start) - 1)
        found: dict[int, float] = {}
        for number in range(first, len(at)):
            if at[number] >= end and number > first:
                break
            left = start if number == first else at[number]
            right = min(end, at[number + 1]) if number + 1 < len(at) else end
            several = held[number] or ((NOBODY, 1),)
            slots = sum(each for _, each in several)
            for run, own in several:
                found[run] = found.get(run, 0.0) + max(1, right - left) * own / slots
        whole = sum(found.values())
        return {run: share / whole for run, share in found.items()}


def required_by(nodes: Sequence[Node], node: int) -> str:
    """What a task of this node requires of a worker, as samples call it; empty: that is not known."""
    return Requirement.of(nodes[node]).name if 0 <= node < len(nodes) else ""


def charged(us: int, shares: Mapping[int, float]) -> dict[int, int]:
    """`us` by run, in whole microseconds; rounded so that nothing is left over but what nobody is to blame for."""
    found = {run: int(us * share) for run, share in shares.items()}
    if found:
        found[max(found, key=lambda run: found[run])] += us - sum(found.values())
    found.pop(NOBODY, None)
    return found


class HolderNames:
    """Ids and tags of runs that the history knows by number."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[int, RunRow | None] = {}

    async def of(self, lost: Mapping[int, int]) -> tuple[LostTo, ...]:
        most = sorted(lost.items(), key=lambda each: (-each[1], each[0]))
        found: list[LostTo] = []
        for seq, us in most[:MAX_NAMED]:
            row = await self._row(seq)
            found.append(
                LostTo(f"#{seq}", us) if row is None else LostTo(row.id, us, dict(row.tags))
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
    since = await store.now() - last_us
    events: list[Event] = []
    after = 0
    while rows := await store.events(EventFilter(run=NOBODY, after=after, limit=PAGE)):
        for row in rows:
            if row.at >= since and _tells(row):
                events += [each for each in unpack(row) if each.subject in ("cost", "wait")]
        after = rows[-1].seq
        if len(rows) < PAGE:
            break
    samples, names = Samples(events), HolderNames(store)
    costs: dict[str, tuple[int, int, dict[int, int]]] = {}
    for event in events:
        for gate, (us, waits) in event.data.get("gates", {}).items():
            before, count, to = costs.get(gate, (0, 0, {}))
            # Those waits ended in the second before: none of them began earlier than all of them last.
            shares = samples.shares(gate, max(since, event.at - us), event.at)
            for run, part in charged(us, shares).items():
                to[run] = to.get(run, 0) + part
            costs[gate] = before + us, count + waits, to
    found = [
        LimitCost(gate, us, waits, await names.of(to)) for gate, (us, waits, to) in costs.items()
    ]
    return sorted(found, key=lambda each: (-each.us, each.gate))


def _tells(row: EventRow) -> bool:
    """Without decoding each row: there are many."""
    return b'"cost"' in row.body or b'"held"' in row.body
