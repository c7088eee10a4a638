"""How long a task will probably wait at one gate, and what that is from."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import groupby, islice
from typing import NamedTuple

from locktender.base.durations import spoken
from locktender.base.text import nth
from locktender.kernel.entries import TaskEntry
from locktender.kernel.estimates import MIN_PLAYS, Estimate, Holding, Line, estimate, wait_for
from locktender.kernel.gates.protocol import Gate, Lane
from locktender.kernel.gates.worker import WorkerGate
from locktender.kernel.ledger import Ledger
from locktender.kernel.openings import older
from locktender.kernel.reasons import Typical


class WaitEstimate(NamedTuple):
    """The last fields of a reason."""

    us: int | None = None
    p90_us: int | None = None
    basis: str = ""
    waiters: int = 0


class _Known(dict[str, tuple[int, ...]]):
    """Durations by step, each sorted once."""

    def __init__(self, typical: Typical) -> None:
        super().__init__()
        self._typical = typical

    def __missing__(self, step: str) -> tuple[int, ...]:
        found = self[step] = self._typical.holds.get(step, ())
        return found


def wait_at(
    ledger: Ledger,
    entry: TaskEntry,
    gate: Gate,
    holders: Iterable[TaskEntry],
    ahead: int,
    places: tuple[int, int],
    need: int,
    typical: Typical,
    now: int,
    beside: Callable[[Lane[TaskEntry]], bool],
    what: str,
) -> WaitEstimate:
    """
    holders  tasks in flight that hold what it waits for
    places   how many are used, and the limit
    beside   lanes that wait for the same
    """
    lanes = [lane for lane in ledger.task_queue.lanes.values() if beside(lane)]
    waiters = sum(len(lane) for lane in lanes)
    tasks = list(holders)
    used, limit = places
    usual = typical.step_us.get(entry.spec.step)
    each = max(1.0, used / len(tasks)) if tasks else 1.0
    holds = _Known(typical)
    holding = [
        Holding(now - (task.started_at or task.scheduled_at), holds[task.spec.step])
        for task in tasks
    ]
    before = _before(ledger, entry, lanes, gate, ahead, each, holds, typical.draws)
    missing = (need - max(0, limit - used)) / each
    found = estimate(holding, before, limit / each, missing, typical.draws)
    if found is None:
        elapsed = [one.elapsed_us for one in holding]
        return WaitEstimate(wait_for(elapsed, usual, ahead, places, need), waiters=waiters)
    return WaitEstimate(found.us, found.p90_us, basis(found, ahead, waiters, what), waiters)


def basis(found: Estimate, ahead: int, waiters: int, what: str) -> str:
    """`3rd of 7 for pool db, median hold 26s over the last 50`."""
    place = f"{nth(ahead + 1)} of {max(waiters, ahead + 1):,} for {what}"
    return f"{place}, median hold {spoken(found.median_us)} over the last {found.seen}"


def _before(
    ledger: Ledger,
    entry: TaskEntry,
    lanes: Iterable[Lane[TaskEntry]],
    gate: Gate,
    ahead: int,
    each: float,
    holds: _Known,
    draws: int,
) -> list[Line]:
    """Who goes first, in order. Where turns are taken their number is known, and their steps are its own."""
    own = holds[entry.spec.step]
    if ledger.task_queue.turns.fair is not None:
        return [Line(ahead, own)]
    found = [(lane, count) for lane in lanes if (count := older(lane, entry))]
    kinds: list[tuple[float, tuple[int, ...]]] = []
    for lane, _ in found:
        needs = next((slots for pool, slots in lane.needs if pool is gate), 1)
        step = lane.worker_gate
        kind = holds[step.requirement.step] if isinstance(step, WorkerGate) else ()
        kinds.append((needs / each, kind or own))
    if len(found) < 2 or sum(count for _, count in found) * MIN_PLAYS > draws:
        order = [(number, count) for number, (_, count) in enumerate(found)]
    else:
        waiters = sorted(
            (task.rank, task.id, number)
            for number, (lane, count) in enumerate(found)
            # In order each costs more: that is for the first of many.
            for task in (
                lane.live.values() if len(lane) < 4 * count else islice(lane.in_order(), count)
            )
        )
        first = waiters[: bisect_left(waiters, (entry.rank, entry.id))]
        steps = groupby(number for _, _, number in first)
        order = [(number, sum(1 for _ in several)) for number, several in steps]
    lines: list[Line] = []
    taken, told = [0.0] * len(found), [0] * len(found)
    for number, count in order:
        places, kind = kinds[number]
        taken[number] += count * places
        # The parts of a place that one waiter leaves over count with the next of its lane.
        lines.append(Line(round(taken[number]) - told[number], kind))
        told[number] = round(taken[number])
    return lines
