"""For how long a waiter waited at which gate, and the events that say where waits begin.

All waiters of a lane are blocked by what blocks its head. So a lane has one clock: the gate it waits at, since
when, and what it waited at other gates before. It changes when the gate does; the event *wait* says so for all
waiters of the lane. A task that joins a blocked lane has the lane and its gate in its event *requested*. When a
waiter starts, the difference of two clocks is what it waited at each gate; its event *scheduled* or *running*
carries it.

An instant at which several gates block counts for the first in the order of decision, as it was decided last.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from locktender.base.events import NO_RUN, Change
from locktender.kernel.gates.protocol import Block, Lane, WaitClock
from locktender.kernel.gates.worker import WorkerGate

if TYPE_CHECKING:
    from locktender.kernel.commit_builder import CommitBuilder
    from locktender.kernel.entries import QueuedRun, TaskEntry
    from locktender.kernel.ledger import Ledger


def waits_of(waiter: TaskEntry | QueuedRun, lane: Lane[Any], now: int) -> dict[str, int] | None:
    """Microseconds at each gate since it joined `lane`, and before; None: it has waited at none."""
    clock, mark, before = lane.clock, waiter.mark, waiter.waits
    if clock is mark:
        # Nothing has changed since it joined: most waits are of this kind.
        if not clock.gate or now <= waiter.joined:
            return before
        if not before:
            return {clock.gate: now - waiter.joined}
        found = {clock.gate: now - waiter.joined}
    else:
        found = dict(clock.totals)
        found[clock.gate] = found.get(clock.gate, 0) + now - clock.since
        for gate, us in mark.totals.items():
            found[gate] = found.get(gate, 0) - us
        if mark.gate:
            found[mark.gate] = found.get(mark.gate, 0) - (waiter.joined - mark.since)
    for gate, us in (before or {}).items():
        found[gate] = found.get(gate, 0) + us
    return {gate: us for gate, us in found.items() if us > 0 and gate} or None


def with_waits(ledger: Ledger, entry: TaskEntry, data: dict[str, object]) -> dict[str, object]:
    """A task ends without having started: its event carries what it waited for."""
    if not entry.waits:
        return data
    ledger.wait_book.add(entry.waits)
    return {**data, "waits": entry.waits}


def add_waits(ledger: Ledger, head: QueuedRun | None, data: dict[str, object], now: int) -> None:
    """A run starts, has its place again, or ends in the queue: its event carries what it waited for."""
    if head is None or head.lane is None:
        return
    waits = waits_of(head, head.lane, now) if head.in_line else head.waits
    if waits:
        data["waits"] = waits
        ledger.wait_book.add(waits)


def _move_to(lane: Lane[Any], gate: str, now: int) -> bool:
    """The lane waits at `gate` from now on; False: as it did before."""
    clock = lane.clock
    if clock.gate == gate:
        return False
    totals = clock.totals
    if clock.gate:
        totals = {**totals, clock.gate: totals.get(clock.gate, 0) + now - clock.since}
    lane.clock = WaitClock(totals, gate, now)
    return True


def move_clocks(ledger: Ledger, by_us: int) -> None:
    """The store's clock was set: since when lanes wait moves with it."""
    for queue in (ledger.task_queue, ledger.run_queue):
        for lane in queue.lanes.values():
            if lane.clock.gate:
                lane.clock = replace(lane.clock, since=lane.clock.since + by_us)


def lane_name(lane: Lane[Any]) -> str:
    """The same in every term: made of what its waiters need."""
    if not lane.name:
        lane.name = blake2b(repr(lane.key).encode(), digest_size=6).hexdigest()
    return lane.name


def record_waits(ledger: Ledger, builder: CommitBuilder, now: int) -> dict[str, int]:
    """Record each lane that waits at another gate than before, with the numbers after this commit.

    Returns how many lanes of tasks were found at each gate.
    """
    found: dict[str, int] = {}
    book = ledger.wait_book
    for lane, head, block in ledger.task_queue.found_blocked:
        name = block.name
        found[name] = found.get(name, 0) + 1
        if lane.clock.gate != name and head.in_line and _move_to(lane, name, now):
            data = _numbers(lane, block, name) | {"task": head.id}
            # Runs without gates of their own share their lanes.
            own = cast("tuple[int, object]", lane.key)[0]
            run, task = (head.run.seq, head.id) if own else (NO_RUN, 0)
            builder.record_wait(run, Change("wait", task, "", name, 0, data))
        book.joined[lane] = None
    for lane, head, block in ledger.run_queue.found_blocked:
        name = block.name
        if lane.clock.gate != name and lane.live.get(head.id) is head and _move_to(lane, name, now):
            data = _numbers(lane, block, name) | {"run": head.id}
            builder.record_wait(NO_RUN, Change("wait", 0, "", name, 0, data))
        book.joined[lane] = None
    last: Lane[Any] | None = None
    for entry, data in builder.still_requested():
        # It was requested in this cycle and stands in a blocked lane: its event says where.
        lane = entry.lane
        if lane is None or not (gate := lane.clock.gate) or not entry.in_line:
            continue
        data["lane"] = lane.name or lane_name(lane)
        data["gate"] = gate
        if lane is not last:
            book.joined[lane] = None
            last = lane
    for change in book.changes(ledger, now):
        builder.record_wait(NO_RUN, change)
    return found


def _numbers(lane: Lane[Any], block: Block, name: str) -> dict[str, Any]:
    gate = block.gate
    data: dict[str, Any] = {"gate": name, "lane": lane_name(lane), "behind": len(lane) - 1}
    if not isinstance(gate, WorkerGate):
        used = block.used if gate.timed else gate.used
        data |= {"used": used, "limit": gate.limit, "need": block.need}
    return data
