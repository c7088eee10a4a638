"""Audit checkpoints: the history is checked as a whole before a part of it is forgotten.

What is known about the history is written into it, as events of the run
`HISTORY` that the checker passes over:

    checked   up to a seq, how many events, what was found, the peak of every limit, who asked
    pruned    how many whole runs went, and the checkpoint they went by
    thinned   up to a seq, how many rows of no run went
    summed    what the marks before it came to, but for the last checkpoint

So the newest marks say all that a later audit needs: how far the history was
checked while it was whole, what was found, and how much was removed.
Violations that an operator has seen and pruned all the same (`force`) are not
found anew by the next checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from locktender.base.clock import SECOND
from locktender.base.errors import LocktenderError
from locktender.base.events import HISTORY, Change, Event, EventRow, unpack
from locktender.observe.checker import Peak, Violation
from locktender.observe.history_reader import ROWS_PER_PAGE, AuditBegin, HistoryReading, pages
from locktender.store.protocol import EventFilter, Store

SLACK_US = 2 * SECOND
"""How long before its commit a leader may have read the clock on a busy machine."""
MAX_PEAKS_KEPT = 100
"""Of more limits than these, a checkpoint keeps the peaks that came nearest to their limit."""
_TRIES = 10


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was found in the history up to a seq."""

    seq: int
    at: int
    events: int
    violations: int
    """Those found then, but for the ones that an earlier checkpoint was forced to pass over."""
    rules: dict[str, int]
    peaks: tuple[Peak, ...]
    who: str
    forced: bool


@dataclass(frozen=True, slots=True)
class HistoryMarks:
    """What the history records about itself."""

    last: Checkpoint | None = None
    runs: int = 0
    """Runs that were pruned, in all."""
    batches: int = 0
    """How often something was removed."""
    until: int = 0
    """When the last of them ended."""
    checked: int = 0
    """The seq that the last of them were pruned by; 0: the history is whole."""
    passed_over: int = 0
    """Violations up to this seq have been seen."""
    forced: int = 0
    """How many those were."""
    peaks: tuple[Peak, ...] = ()
    """Of the last checkpoint before something was pruned."""
    thinned: int = 0
    """Up to this seq, events of no run are there only if they still count."""


NO_MARKS = HistoryMarks()


class HistorySums(msgspec.Struct, frozen=True):
    """What a mark *summed* says: see `HistoryMarks`."""

    runs: int
    batches: int
    until: int
    checked: int
    passed_over: int
    forced: int
    thinned: int
    peaks: tuple[Peak, ...]


class HistoryBroken(LocktenderError):
    """Promises were not kept in the part of the history that is to be forgotten."""

    code = "history_broken"


async def marks(store: Store) -> HistoryMarks:
    """All marks, added up."""
    found = HistoryMarks()
    async for rows in pages(store, EventFilter(run=HISTORY, limit=ROWS_PER_PAGE)):
        found = add_up(rows, found)
    return found


def add_up(rows: Iterable[EventRow], before: HistoryMarks = NO_MARKS) -> HistoryMarks:
    """What the events of the run `HISTORY` come to, with those before."""
    last, kept = before.last, before.peaks
    runs, batches, until, checked = before.runs, before.batches, before.until, before.checked
    passed_over, forced, thinned = before.passed_over, before.forced, before.thinned
    for event in (event for row in rows for event in unpack(row)):
        data = event.data
        if event.after == "checked":
            last = _checkpoint(event)
            if last.forced:
                passed_over, forced = last.seq, forced + last.violations
        elif event.after == "pruned":
            runs += data["runs"]
            batches += 1
            until = max(until, data["until"])
            checked = max(checked, data["checked"])
            kept = () if last is None else last.peaks
        elif event.after == "thinned":
            batches += 1
            thinned = max(thinned, data["thinned"])
        elif event.after == "summed":
            sums = msgspec.convert(data, HistorySums)
            runs, batches = runs + sums.runs, batches + sums.batches
            until, checked = max(until, sums.until), max(checked, sums.checked)
            passed_over, forced = max(passed_over, sums.passed_over), forced + sums.forced
            thinned, kept = max(thinned, sums.thinned), sums.peaks
    return HistoryMarks(last, runs, batches, until, checked, passed_over, forced, kept, thinned)


@dataclass(frozen=True, slots=True)
class Audited:
    """What was found in everything that is left of the history, and in what was there before."""

    events: int
    """Also those that earlier audits have read for this one."""
    seq: int
    """Of the last one."""
    violations: list[Violation]
    peaks: list[Peak]
    """Also of what was pruned."""
    most_active: int
    """Runs that were queued or executing at one time."""
    marks: HistoryMarks
    began: AuditBegin


async def audit(store: Store, slack_us: int = SLACK_US, *, full: bool = False) -> Audited:
    """Checks the history against every promise, from where the last audit ended; all of it with `full`."""
    for _ in range(_TRIES):
        known = await marks(store)
        reading = HistoryReading(store, known.batches, known.checked, known.thinned, slack_us)
        if not full:
            await reading.resume()
        # A run that was pruned while its pages were read would look half done.
        if await reading.read() and await _batches_pruned(store) == known.batches:
            break
    else:
        raise LocktenderError("the history is being pruned while it is read.", hint="Try again.")
    if reading.began.events:
        await reading.keep()
    # Without a leader no commit can be on its way while this reads.
    counts = await store.counts()
    idle = (
        not (counts.queued or counts.executing or counts.waiting) and await store.leader() is None
    )
    # An open transaction of another program hides the end of the history: it is not complete then.
    idle = idle and not (await store.held_up()).lag_us
    done = reading.replaying.finish(complete=idle)
    return Audited(
        done.world.events,
        done.world.last_seq,
        done.violations,
        merged(known.peaks, done.peaks()),
        done.world.most_active,
        known,
        reading.began,
    )


@dataclass(frozen=True, slots=True)
class AuditScope:
    """Which violations are asked for; those without a bound are all."""

    since: int | None = None
    """At this instant or later."""
    run: int | None = None
    pool: str | None = None

    @property
    def bounded(self) -> bool:
        return self != AuditScope()

    async def select(self, store: Store, found: Iterable[Violation]) -> list[Violation]:
        """Of a pool: those that name it."""
        quoted = repr(self.pool)
        return [
            each
            for each in found
            if (self.run is None or each.run == self.run)
            and (self.pool is None or quoted in each.message)
            and (self.since is None or await _time_of(store, each.seq) >= self.since)
        ]


async def _time_of(store: Store, seq: int) -> int:
    rows = await store.events(EventFilter(after=seq - 1, limit=1))
    return rows[0].at if rows else await store.now()


async def _batches_pruned(store: Store) -> int:
    return (await marks(store)).batches


async def write_checkpoint(store: Store, who: str, *, force: bool = False) -> Checkpoint:
    """Checks the history and writes down what was found; `HistoryBroken` where it was not all kept.

    The finding is written either way. With `force` it counts as seen.
    """
    done = await audit(store)
    found = [each for each in done.violations if each.seq > done.marks.passed_over]
    rules = Counter(violation.rule for violation in found)
    data: dict[str, Any] = {
        "seq": done.seq,
        "events": done.events,
        "violations": len(found),
        "rules": dict(rules),
        "peaks": msgspec.to_builtins(nearest(done.peaks)),
        "who": who,
        "forced": force and bool(found),
    }
    await store.remark(Change("audit", 0, "", "checked", 0, data))
    if found and not force:
        raise _broken(found)
    return Checkpoint(
        done.seq,
        await store.now(),
        done.events,
        len(found),
        dict(rules),
        tuple(done.peaks),
        who,
        data["forced"],
    )


def merged(before: Sequence[Peak], now: Sequence[Peak]) -> list[Peak]:
    """The peaks of all that happened: of what is left, and of what was there before."""
    found = {peak.name: peak for peak in before}
    for peak in now:
        other = found.get(peak.name)
        if other is None:
            found[peak.name] = peak
            continue
        higher = peak if peak.peak >= other.peak else other
        kept = peak.never_exceeded and other.never_exceeded
        found[peak.name] = Peak(higher.name, higher.limit, higher.peak, kept)
    return sorted(found.values(), key=lambda peak: peak.name)


def nearest(several: Sequence[Peak]) -> list[Peak]:
    """Not more than fit a checkpoint."""

    def near(peak: Peak) -> tuple[bool, float, int]:
        share = peak.peak / peak.limit if peak.limit > 0 else 0.0
        return peak.never_exceeded, -share, -peak.peak

    return sorted(sorted(several, key=near)[:MAX_PEAKS_KEPT], key=lambda peak: peak.name)


def _checkpoint(event: Event) -> Checkpoint:
    data = event.data
    return Checkpoint(
        data["seq"],
        event.at,
        data["events"],
        data["violations"],
        data["rules"],
        tuple(msgspec.convert(data["peaks"], list[Peak])),
        data["who"],
        data["forced"],
    )


def _broken(found: Sequence[Violation]) -> HistoryBroken:
    return HistoryBroken(
        f"the history breaks {len(found)} promises, first {found[0]}",
        field="history",
        got=len(found),
        hint="locktender audit shows all. Nothing was pruned; --force prunes all the same.",
    )
