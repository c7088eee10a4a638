"""Explain: every gate that blocks a task *now*, by the very rules that decide.

Read-only over a scheduler, live or rebuilt from rows. It lists every block of
`AdmissionQueue.blocks`, of which deciding takes the first: an operator who
opens one gate wants to know of the next. Each kind of gate has its own text
(`TASK_TEXTS`; those of queued runs are in `explain_runs.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import ceil
from typing import Final

import msgspec

from locktender.base.durations import MAX_MICROSECONDS, clock_text, spoken
from locktender.base.ids import run_of
from locktender.base.model import Stubborn
from locktender.base.states import HOLDING, TaskState
from locktender.kernel.entries import QueuedRun, TaskEntry
from locktender.kernel.explain_workers import (
    bound_by_total,
    no_fitting_worker,
    no_room,
    seats,
    stubborn_by_token,
)
from locktender.kernel.gate_names import counted
from locktender.kernel.gates.pool import PoolGate
from locktender.kernel.gates.protocol import Block, Gate, Lane
from locktender.kernel.gates.rate import RateGate
from locktender.kernel.gates.worker import WorkerGate
from locktender.kernel.pauses import pause_texts
from locktender.kernel.placement import HOLD, Worker
from locktender.kernel.queue_position import Precision, QueueGroup, QueuePosition
from locktender.kernel.scheduler import Scheduler

MAX_HOLDERS_SHOWN = 20


class Holder(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who has what is waited for."""

    run: str
    task: int = 0
    node: str = ""
    slots: int = 1
    since: int = 0
    worker: str = ""
    dead: bool = False
    """Its worker is gone; the slots are kept until the pool's own lease has passed."""
    stop_reason: str = ""
    """Why it was asked to stop, where it was and still runs: `timeout`, `cancel` …"""
    stop_asked_at: int = 0
    waiting: bool = False
    """A run that sleeps or waits for an event, and keeps its place (`counts_while_waiting`)."""
    stalled: bool = False
    """The lease of its worker has passed, and the process lives: the slots stay taken."""


class Reason(msgspec.Struct, frozen=True, omit_defaults=True):
    """One gate that blocks, with its numbers."""

    gate: str
    text: str
    used: int = 0
    limit: int = -1
    need: int = 1
    ahead: int = 0
    """How many waiters go first at the same gate if nobody else comes."""
    ahead_is: Precision = "exact"
    """How `ahead` is meant: fair turns may not be known for certain, a long line not counted to its end."""
    holders: tuple[Holder, ...] = ()
    more_holders: int = 0
    estimate_us: int | None = None
    never: bool = False
    """As limits are now, this can never be passed."""


class Typical(msgspec.Struct, frozen=True):
    """How long things usually take, for estimates; empty where nothing has been seen yet."""

    step_us: dict[str, int] = {}
    run_us: int | None = None


def event_reason(name: str, since: int, until: int, now: int) -> Reason:
    """A wait for an event. It holds nothing, and nobody knows how long it lasts."""
    text = f"waits for event `{name}` since {spoken(max(0, now - since))}"
    if until - since < MAX_MICROSECONDS:
        text += f", times out {clock_text(until)} ({spoken(max(0, until - now))} left)"
    return Reason("event", text)


# -- tasks -----------------------------------------------------------------------------------------


def explain_task(
    scheduler: Scheduler, entry: TaskEntry, typical: Typical, now: int
) -> list[Reason]:
    """Every gate that blocks a requested task; empty when it starts with the next cycle."""
    if entry.state != TaskState.REQUESTED:
        return []
    texts = pause_texts(scheduler.ledger.limits, entry.run.row, now) if entry.run.paused else ()
    reasons = [Reason("pause", text) for text in texts]
    if entry.spec.wait is not None:
        if entry.spec.event is not None:
            name, since = entry.spec.event.name, entry.requested_at
            return [*reasons, event_reason(name, since, entry.not_before, now)]
        left = max(0, entry.not_before - now)
        return [*reasons, Reason("time", f"sleeps, {spoken(left)} left", estimate_us=left)]
    if entry.unread:
        return [*reasons, Reason("cache", "its result is looked up in the cache")]
    if entry.not_before > now:
        wait = entry.not_before - now
        text = f"back-off after attempt {entry.attempt}: {_seconds(wait)} left"
        reasons.append(Reason("back_off", text, estimate_us=wait))
    ledger = scheduler.ledger
    if (first := ledger.turn_of(entry)) is not entry:
        text = f"its flow is sequential: item {first.idx} has not ended"
        holder = Holder(first.run.row.id, first.id, first.spec.name, since=first.started_at)
        reasons.append(Reason("sequential", text, 1, 1, holders=(holder,)))
    if entry.run.returning is not None:
        return reasons + _returning(scheduler, entry.run.returning, now)
    lane = entry.lane if entry.in_line else ledger.lane_of(entry.run, entry.node, entry.pools)
    if lane is None:
        return reasons
    usual = typical.step_us.get(entry.spec.step)
    reasons += [
        TASK_TEXTS[block.gate.kind](scheduler, entry, block, usual, now)
        for block in ledger.task_queue.blocks(lane, entry, now)
    ]
    if reasons:
        reasons += turn_reason(_sharing(scheduler, entry, lane))
    return reasons


def _returning(scheduler: Scheduler, run: QueuedRun, now: int) -> list[Reason]:
    """Its run had no fitting worker, gave its place back, and stands at its gates again."""
    if run.lane is None:
        return []
    return [
        Reason(
            block.name,
            f"its run gave its place back while no worker fitted, and waits for one again:"
            f" {block.used} of {block.limit} runs execute",
            block.used,
            block.limit,
        )
        for block in scheduler.ledger.run_queue.blocks(run.lane, run, now)
    ]


def turn_reason(line: QueuePosition) -> list[Reason]:
    """A turn blocks nobody, but says who is next when a gate opens."""
    if line.fair is None or not line.shared:
        return []
    return [Reason(f"fair:{line.fair.key}", line.text, ahead=line.ahead, ahead_is=line.precision)]


def _sharing(scheduler: Scheduler, entry: TaskEntry, lane: Lane[TaskEntry]) -> QueuePosition:
    """Who takes turns with a task at any of its pools, or for a worker."""
    pools = {gate.name for gate, _ in lane.needs}
    return _line(
        scheduler,
        entry,
        lambda other: (
            other.worker_gate is lane.worker_gate
            or any(gate.name in pools for gate, _ in other.needs)
        ),
    )


def _line(
    scheduler: Scheduler, entry: TaskEntry, beside: Callable[[Lane[TaskEntry]], bool]
) -> QueuePosition:
    """Who goes before a task of those in lanes `beside` it.

    Turns move with every start, wherever it is, and are not stored: a number of tasks is only about right.
    """
    queue = scheduler.ledger.task_queue
    own = (entry.rank, entry.id)
    groups: list[QueueGroup] = []
    for lane in queue.lanes.values() if entry.lane is not None else ():
        if not beside(lane):
            continue
        waiting: Counter[int] = Counter()
        older: Counter[int] = Counter()
        for task in lane.live.values():
            waiting[task.rank[0]] += 1
            older[task.rank[0]] += (task.rank, task.id) < own
        groups += [QueueGroup(lane.fair, rank, waiting[rank], older[rank]) for rank in waiting]
    value = None if entry.lane is None else entry.lane.fair
    return QueuePosition(queue.turns, value, entry.rank[0], groups, known=False)


def _pool(
    scheduler: Scheduler, entry: TaskEntry, block: Block, usual: int | None, now: int
) -> Reason:
    pool, slots = block.gate, block.need
    if block.never:
        text = (
            f"pool {pool.name} has {counted(pool.limit, 'slot')} and {slots} are needed:"
            " never, as limits are now"
        )
    elif block.reason == "paused":
        text = f"pool {pool.name} is paused"
    elif block.reason == "reserved":
        text = _reserved(block)
    else:
        return _full(scheduler, entry, block, usual, now)
    return Reason(block.name, text, block.used, block.limit, slots, never=block.never)


def _reserved(block: Block) -> str:
    are = "is" if block.kept == 1 else "are"
    return (
        f"pool {block.gate.name}: {counted(block.kept, 'slot')} {are} reserved"
        " for tasks that were overtaken too often"
    )


def _rate(
    scheduler: Scheduler, entry: TaskEntry, block: Block, _usual: int | None, now: int
) -> Reason:
    """How much of the burst is spent, when it lets the next ones pass, and those before it first."""
    gate, slots = block.gate, block.need
    assert isinstance(gate, RateGate)  # noqa: S101
    rate = gate.rate
    if block.never:
        text = f"pool {gate.name} grants at most {rate.burst} at once and {slots} are needed: never"
        return Reason(block.name, text, need=slots, never=True)
    if block.reason == "reserved":
        return Reason(block.name, _reserved(block), block.used, block.limit, slots)
    wait = (block.until or now) - now
    line = _ahead(scheduler, entry, gate)
    text = (
        f"pool {gate.name}: rate {rate.count} per {spoken(rate.per_us)}, {block.used} of {rate.burst}"
        f" at once spent, the next goes in {_seconds(wait)}"
    )
    return Reason(
        block.name,
        text,
        block.used,
        block.limit,
        slots,
        line.ahead,
        line.precision,
        estimate_us=wait + line.ahead * slots * rate.per_us // rate.count,
    )


def _full(
    scheduler: Scheduler, entry: TaskEntry, block: Block, usual: int | None, now: int
) -> Reason:
    gate, need = block.gate, block.need
    tasks = [
        task
        for run in scheduler.ledger.runs.values()
        for task in run.tasks.values()
        if task.state in HOLDING and _uses(task, gate)
    ]
    tasks.sort(key=lambda task: task.started_at or task.scheduled_at)
    stubborn = stubborn_by_token(scheduler.ledger.workers.by_id.values())
    stalled = {each.id for each in scheduler.ledger.workers.by_id.values() if each.stalled_since}
    holders = [
        _holder(task, gate, stubborn.get(task.token), stalled=task.worker in stalled)
        for task in tasks
    ]
    dead = [
        Holder(_run_id(scheduler, run_of(task)), task, "", slots, until, worker, dead=True)
        for (task, _, pool), (slots, until, worker) in scheduler.ledger.lingering.items()
        if isinstance(gate, PoolGate) and pool == gate.name
    ]
    line = _ahead(scheduler, entry, gate)
    everyone = dead + holders
    return Reason(
        block.name,
        f"{_what(gate)}: {gate.used} of {gate.limit} in use, {need} needed",
        gate.used,
        gate.limit,
        need,
        line.ahead,
        line.precision,
        tuple(everyone[:MAX_HOLDERS_SHOWN]),
        max(0, len(everyone) - MAX_HOLDERS_SHOWN),
        wait_for(
            [now - each.since for each in holders], usual, line.ahead, (gate.used, gate.limit), need
        ),
    )


def _holder(task: TaskEntry, gate: Gate, stubborn: Stubborn | None, *, stalled: bool) -> Holder:
    return Holder(
        task.run.row.id,
        task.id,
        task.spec.name,
        _uses(task, gate),
        task.started_at or task.scheduled_at,
        task.worker or "",
        stop_reason="" if stubborn is None else stubborn.reason,
        stop_asked_at=0 if stubborn is None else stubborn.since,
        stalled=stalled,
    )


def _run_id(scheduler: Scheduler, seq: int) -> str:
    run = scheduler.ledger.runs.get(seq)
    return f"number {seq}" if run is None else run.row.id


def _what(gate: Gate) -> str:
    if isinstance(gate, PoolGate):
        return f"pool {gate.name}"
    if gate.kind == "window":
        return f"window of {gate.name}"
    return "the run's own parallelism" + (f" ({gate.name[9:]})" if ":" in gate.name else "")


def _uses(task: TaskEntry, gate: Gate) -> int:
    """How much of `gate` this task needs or holds."""
    if task.lane is None:
        return 0
    return sum(slots for pool, slots in task.lane.slots if pool is gate) or int(
        gate in task.lane.gates
    )


def _ahead(scheduler: Scheduler, entry: TaskEntry, gate: Gate) -> QueuePosition:
    return _line(
        scheduler,
        entry,
        lambda lane: (
            any(each is gate for each in lane.gates) or any(each is gate for each, _ in lane.needs)
        ),
    )


def _worker(
    scheduler: Scheduler, entry: TaskEntry, block: Block, usual: int | None, now: int
) -> Reason:
    wanted = block.gate
    assert isinstance(wanted, WorkerGate)  # noqa: S101
    requirement = wanted.requirement
    # A process that holds slots for code of its own is a worker by its rows, but runs no step.
    workers = [
        worker
        for worker in scheduler.ledger.workers.by_id.values()
        if requirement.executor in worker.row.permits or HOLD not in worker.row.permits
    ]
    matching = {worker.id: worker for worker in workers if worker.fits(requirement)}
    several = list(matching.values())
    # Whoever is in its way: on the same workers, in the same kind of permit, or in any where the total bounds.
    by_total = {each.id for each in several if bound_by_total(each, requirement.executor)}
    running = [
        task
        for run in scheduler.ledger.runs.values()
        for task in run.tasks.values()
        if task.state == TaskState.RUNNING
        and task.worker in matching
        and (task.spec.executor == requirement.executor or task.worker in by_total)
    ]
    if not workers:
        text = "no worker is connected"
    elif not matching:
        text = no_fitting_worker(workers, requirement)
    else:
        stubborn = stubborn_by_token(scheduler.ledger.workers.by_id.values())
        text = no_room(
            several, requirement.executor, sum(task.token in stubborn for task in running), now=now
        )
    offers = f"; {counted(entry.offers, 'offer')} so far" if entry.offers else ""
    line = _line_for_worker(scheduler, entry, wanted, several, now)
    permits, busy = sum(seats(worker, requirement.executor) for worker in several), len(running)
    elapsed = [now - task.started_at for task in running]
    answering = any(not worker.unanswered for worker in several)
    estimate = wait_for(elapsed, usual, line.ahead, (busy, permits)) if answering else None
    return Reason(
        block.name,
        text + offers,
        busy,
        permits,
        1,
        line.ahead,
        line.precision,
        estimate_us=estimate,
    )


TASK_TEXTS: Final[dict[str, Callable[[Scheduler, TaskEntry, Block, int | None, int], Reason]]] = {
    "run": _full,
    "window": _full,
    "pool": _pool,
    "rate": _rate,
    "worker": _worker,
}
"""How `why` explains a block, by the kind of its gate."""


def _line_for_worker(
    scheduler: Scheduler, entry: TaskEntry, wanted: WorkerGate, matching: list[Worker], now: int
) -> QueuePosition:
    """Who waits for the same permits of the same workers, of whatever step, and for nothing else."""
    queue = scheduler.ledger.task_queue
    executor = wanted.requirement.executor
    known: dict[WorkerGate, bool] = {wanted: True}

    def shares(other: WorkerGate) -> bool:
        if other not in known:
            known[other] = other.requirement.executor == executor and any(
                worker.fits(other.requirement) for worker in matching
            )
        return known[other]

    def beside(lane: Lane[TaskEntry]) -> bool:
        if lane is entry.lane:
            return True
        gate = lane.worker_gate
        head = lane.head() if isinstance(gate, WorkerGate) and shares(gate) else None
        return head is not None and not any(queue.blocks(lane, head, now, worker=False))

    return _line(scheduler, entry, beside)


def wait_for(
    elapsed: list[int], usual: int | None, ahead: int, gate: tuple[int, int], need: int = 1
) -> int | None:
    """About how long until `need` are free for one with `ahead` before it.

    `gate` is how many are used, and the limit. Whoever holds is as old as `elapsed` says and lasts as
    long as `usual`; each place that comes free is taken by the next in line for as long again.
    """
    if usual is None or not elapsed:
        return None
    left = sorted(max(usual - each, usual // 10) for each in elapsed)
    used, limit = gate
    # Above a lowered limit the first places that come free are for nobody.
    places = left[max(0, len(left) - limit) :] if limit > 0 else left
    slots = (ahead + 1) * need - max(0, limit - used)
    each = max(1, used // len(elapsed))
    turns, place = divmod(max(1, ceil(slots / each)) - 1, len(places))
    return places[place] + turns * usual


def _seconds(microseconds: int) -> str:
    return f"{microseconds / 1_000_000:.3g}s" if microseconds < 60_000_000 else spoken(microseconds)
