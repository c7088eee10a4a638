"""Explain: every gate that blocks a task *now*, by the very rules that decide.

Read-only over a scheduler, live or rebuilt from rows. It lists every block of
`AdmissionQueue.blocks`, of which deciding takes the first: an operator who
opens one gate wants to know of the next. Each kind of gate has its own text
(`TASK_TEXTS`; those of queued runs are in `explain_runs.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Final

from locktender.base.durations import spoken
from locktender.base.ids import run_of
from locktender.base.states import TaskState
from locktender.base.text import counted
from locktender.kernel.entries import QueuedRun, TaskEntry
from locktender.kernel.explain_waits import WaitEstimate, wait_at
from locktender.kernel.explain_workers import no_fitting_worker, no_room, usable_permits
from locktender.kernel.gate_view import GateView, uses
from locktender.kernel.gates.pool import PoolGate
from locktender.kernel.gates.protocol import UNBOUNDED, Block, Gate, Lane
from locktender.kernel.gates.rate import RateGate
from locktender.kernel.gates.worker import WorkerGate
from locktender.kernel.ledger import Ledger
from locktender.kernel.openings import older, openings
from locktender.kernel.pauses import pause_texts
from locktender.kernel.placement import HOLD, bound_by_total
from locktender.kernel.queue_position import QueueGroup, QueuePosition
from locktender.kernel.reasons import (
    MAX_HOLDERS_SHOWN,
    GateOpening,
    Holder,
    Reason,
    Typical,
    event_reason,
)
from locktender.kernel.scheduler import Scheduler

# -- tasks -----------------------------------------------------------------------------------------


def explain_task(
    scheduler: Scheduler, entry: TaskEntry, typical: Typical, now: int, view: GateView | None = None
) -> list[Reason]:
    """Every gate that blocks a requested task; empty when it starts with the next cycle.

    `view`: what is the same for several tasks of one answer.
    """
    view = view or GateView(scheduler.ledger, now)
    blocks = list(blocking(scheduler, entry, now))
    typical = typical.shared(len(blocks))
    reasons = [
        each if isinstance(each, Reason) else TASK_TEXTS[each.gate.kind](view, entry, each, typical)
        for each in blocks
    ]
    lane = lane_of(scheduler, entry)
    fair = scheduler.ledger.task_queue.turns.fair is not None and entry.run.returning is None
    if reasons and fair and lane is not None and entry.spec.wait is None:
        reasons += turn_reason(_sharing(view, entry, lane))
    return reasons


def what_opens(
    scheduler: Scheduler, entry: TaskEntry, now: int, view: GateView | None = None
) -> tuple[GateOpening, ...]:
    """What has to happen for a requested task to start, all of it; it starts with the next cycle then."""
    view = view or GateView(scheduler.ledger, now)
    found: list[GateOpening] = []
    for each in blocking(scheduler, entry, now):
        if not isinstance(each, Reason):
            lane = lane_of(scheduler, entry)
            # Not `if lane`: an empty lane is false, and a task that is paused or backs off stands in one.
            return (*found, *(() if lane is None else openings(view, entry, lane)))
        at = entry.not_before if each.gate in ("time", "back_off") else None
        tasks = tuple(holder.task for holder in each.holders)
        found.append(
            GateOpening(
                each.gate,
                _OPENS.get(each.gate, "a place for its run").format(*tasks),
                tasks=tasks,
                ends=len(tasks),
                resume=each.gate == "pause",
                at=at,
            )
        )
    return tuple(found)


_OPENS: Final = {
    "pause": "the run or its flow resumed",
    "time": "its time to come",
    "back_off": "its back-off to end",
    "event": "its event to be sent",
    "sequential": "task {} to end, and those before it",
}


def lane_of(scheduler: Scheduler, entry: TaskEntry) -> Lane[TaskEntry] | None:
    """Where a task stands in line, or will."""
    if entry.in_line:
        return entry.lane
    return scheduler.ledger.lane_of(entry.run, entry.node, entry.pools)


def blocking(scheduler: Scheduler, entry: TaskEntry, now: int) -> Iterator[Reason | Block]:
    """What a requested task waits for, in the order of decision."""
    if entry.state != TaskState.REQUESTED:
        return
    ledger = scheduler.ledger
    if entry.run.paused:
        yield from (
            Reason("pause", each) for each in pause_texts(ledger.limits, entry.run.row, now)
        )
    if entry.spec.wait is not None:
        if entry.spec.event is not None:
            yield event_reason(entry.spec.event.name, entry.requested_at, entry.not_before, now)
        else:
            left = max(0, entry.not_before - now)
            yield Reason("time", f"sleeps, {spoken(left)} left", estimate_us=left)
        return
    if entry.unread:
        yield Reason("cache", "its result is looked up in the cache")
        return
    if entry.not_before > now:
        wait = entry.not_before - now
        text = f"back-off after attempt {entry.attempt}: {_seconds(wait)} left"
        yield Reason("back_off", text, estimate_us=wait)
    if (first := ledger.turn_of(entry)) is not entry:
        text = f"its flow is sequential: item {first.idx} has not ended"
        holder = Holder(first.run.row.id, first.id, first.spec.name, since=first.started_at)
        yield Reason("sequential", text, 1, 1, holders=(holder,))
    if entry.run.returning is not None:
        yield from _returning(scheduler, entry.run.returning, now)
    elif (lane := lane_of(scheduler, entry)) is not None:
        yield from ledger.task_queue.blocks(lane, entry, now)


def _returning(scheduler: Scheduler, run: QueuedRun, now: int) -> Iterator[Reason]:
    """Its run had no fitting worker, gave its place back, and stands at its gates again."""
    lane = run.lane
    for block in () if lane is None else scheduler.ledger.run_queue.blocks(lane, run, now):
        text = (
            "its run gave its place back while no worker fitted, and waits for one again:"
            f" {block.used} of {block.limit} runs execute"
        )
        yield Reason(block.name, text, block.used, block.limit)


def turn_reason(line: QueuePosition) -> list[Reason]:
    """A turn blocks nobody, but says who is next when a gate opens."""
    if line.fair is None or not line.shared:
        return []
    return [Reason(f"fair:{line.fair.key}", line.text, ahead=line.ahead, ahead_is=line.precision)]


def _sharing(view: GateView, entry: TaskEntry, lane: Lane[TaskEntry]) -> QueuePosition:
    """Who takes turns with a task at any of its pools, or for a worker."""
    pools = {gate.name for gate, _ in lane.needs}
    lanes = [
        other
        for other in view.ledger.task_queue.lanes.values()
        if other.worker_gate is lane.worker_gate
        or any(gate.name in pools for gate, _ in other.needs)
    ]
    return _line(view, entry, None, lanes)


def _line(
    view: GateView, entry: TaskEntry, key: Hashable, lanes: Sequence[Lane[TaskEntry]]
) -> QueuePosition:
    """Who goes before a task of those in `lanes`, beside its own. `key`: of these lanes.

    Turns move with every start, wherever it is, and are not stored: a number of tasks is only about right.
    """
    queue, own, rank = view.ledger.task_queue, (entry.rank, entry.id), entry.rank[0]
    groups: list[QueueGroup] = []
    if entry.lane is None:
        return QueuePosition(queue.turns, None, rank, groups, known=False)
    missing = [] if entry.lane in lanes else [entry.lane]
    if queue.turns.fair is None:
        before = view.ahead(key, lanes, entry) + sum(older(lane, entry) for lane in missing)
        groups.append(QueueGroup(None, rank, before, before))
        return QueuePosition(queue.turns, None, rank, groups, known=False)
    for lane in (*lanes, *missing):
        head = lane.head()
        if head is None or head.rank[0] > rank:
            continue  # all of lower priority
        if head.rank[0] == rank:
            before, level = older(lane, entry), lane.before((rank + 1, -UNBOUNDED), 0)
            groups.append(QueueGroup(lane.fair, rank, level, before))
            continue
        waiting: Counter[int] = Counter()
        first: Counter[int] = Counter()
        for task in lane.live.values():
            waiting[task.rank[0]] += 1
            first[task.rank[0]] += (task.rank, task.id) < own
        groups += [QueueGroup(lane.fair, each, waiting[each], first[each]) for each in waiting]
    return QueuePosition(queue.turns, entry.lane.fair, rank, groups, known=False)


def _pool(view: GateView, entry: TaskEntry, block: Block, typical: Typical) -> Reason:
    pool, slots = block.gate, block.need
    if block.never:
        text = (
            f"pool {pool.name} has {counted(pool.limit, 'slot')} and {slots} are needed:"
            f" never, as limits are now. Raise it: locktender pools set {pool.name} {slots}"
        )
    elif block.reason == "paused":
        text = f"pool {pool.name} is paused"
    elif block.reason == "reserved":
        text = _reserved(block)
    else:
        return _full(view, entry, block, typical)
    return Reason(block.name, text, block.used, block.limit, slots, never=block.never)


def _reserved(block: Block) -> str:
    are = "is" if block.kept == 1 else "are"
    return (
        f"pool {block.gate.name}: {counted(block.kept, 'slot')} {are} reserved"
        " for tasks that were overtaken too often"
    )


def _rate(view: GateView, entry: TaskEntry, block: Block, _typical: Typical) -> Reason:
    """How much of the burst is spent, when it lets the next ones pass, and those before it first."""
    gate, slots = block.gate, block.need
    assert isinstance(gate, RateGate)  # noqa: S101
    rate = gate.rate
    if block.never:
        text = (
            f"pool {gate.name} grants at most {rate.burst} at once and {slots} are needed:"
            f" never, as limits are now. Raise it: locktender pools set {gate.name} --burst {slots}"
        )
        return Reason(block.name, text, need=slots, never=True)
    if block.reason == "reserved":
        return Reason(block.name, _reserved(block), block.used, block.limit, slots)
    wait = (block.until or view.now) - view.now
    line = _line(view, entry, gate, view.lanes_at(gate))
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


def _full(view: GateView, entry: TaskEntry, block: Block, typical: Typical) -> Reason:
    gate, need, ledger = block.gate, block.need, view.ledger
    tasks = view.holders_of(gate)
    dead = [
        Holder(_run_id(ledger, run_of(task)), task, "", slots, 0, worker, dead=True, until=until)
        for (task, _, pool), (slots, until, worker) in ledger.lingering.items()
        if isinstance(gate, PoolGate) and pool == gate.name
    ]
    shown = max(0, MAX_HOLDERS_SHOWN - len(dead))
    lanes, what, places = view.lanes_at(gate), _what(gate), (gate.used, gate.limit)
    line = _line(view, entry, gate, lanes)

    def estimate() -> WaitEstimate:
        usual, at = view.spent(typical, gate, lanes, line.ahead), set(lanes).__contains__
        return wait_at(
            ledger, entry, gate, tasks, line.ahead, places, need, usual, view.now, at, what
        )

    return Reason(
        block.name,
        f"{what}: {gate.used} of {gate.limit} in use, {need} needed",
        gate.used,
        gate.limit,
        need,
        line.ahead,
        line.precision,
        (*dead[:MAX_HOLDERS_SHOWN], *(_holder(task, gate, view) for task in tasks[:shown])),
        max(0, len(dead) + len(tasks) - MAX_HOLDERS_SHOWN),
        *view.wait((gate, need), lanes, entry, line.ahead, what, typical, estimate),
    )


def _holder(task: TaskEntry, gate: Gate, view: GateView) -> Holder:
    unstopped = view.unstopped.get(task.token)
    return Holder(
        task.run.row.id,
        task.id,
        task.spec.name,
        uses(task, gate),
        task.started_at or task.scheduled_at,
        task.worker or "",
        stop_reason="" if unstopped is None else unstopped.reason,
        stop_asked_at=0 if unstopped is None else unstopped.since,
        stalled=task.worker in view.stalled,
    )


def _run_id(ledger: Ledger, seq: int) -> str:
    run = ledger.runs.get(seq)
    return f"number {seq}" if run is None else run.row.id


def _what(gate: Gate) -> str:
    if isinstance(gate, PoolGate):
        return f"pool {gate.name}"
    if gate.kind == "window":
        return f"window of {gate.name}"
    return "the run's own parallelism" + (f" ({gate.name[9:]})" if ":" in gate.name else "")


def _worker(view: GateView, entry: TaskEntry, block: Block, typical: Typical) -> Reason:
    wanted, ledger = block.gate, view.ledger
    assert isinstance(wanted, WorkerGate)  # noqa: S101
    requirement = wanted.requirement
    executor = requirement.executor
    # A process that holds slots for code of its own is a worker by its rows, but runs no step.
    workers = [
        worker
        for worker in ledger.workers.by_id.values()
        if executor in worker.row.permits or HOLD not in worker.row.permits
    ]
    matching = {worker.id: worker for worker in workers if worker.fits(requirement)}
    several = list(matching.values())
    key = view.key_of(wanted, several)
    # Tasks that are in its way: on the same workers, in the same kind of permit, or in any where the total bounds.
    by_total = {each.id for each in several if bound_by_total(each, executor)}
    running = view.in_flight(
        key,
        lambda task: (
            task.state == TaskState.RUNNING
            and task.worker in matching
            and (task.spec.executor == executor or task.worker in by_total)
        ),
    )
    if not workers:
        text = "no worker is connected"
    elif not matching:
        text = no_fitting_worker(workers, requirement)
    else:
        asked_to_stop = sum(task.token in view.unstopped for task in running)
        text = no_room(several, executor, asked_to_stop, now=view.now)
    offers = f"; {counted(entry.offers, 'offer')} so far" if entry.offers else ""
    beside = view.lanes_beside(wanted, several)
    line = _line(view, entry, key, beside)
    permits, busy = sum(usable_permits(worker, executor) for worker in several), len(running)
    what = f"{executor} permits"

    def estimate() -> WaitEstimate:
        usual, places = view.spent(typical, key, beside, line.ahead), (busy, permits)
        at = {*beside, entry.lane}.__contains__
        return wait_at(
            ledger, entry, wanted, running, line.ahead, places, 1, usual, view.now, at, what
        )

    wait = WaitEstimate()
    if any(not worker.unanswered for worker in several):
        wait = view.wait(key, beside, entry, line.ahead, what, typical, estimate)
    return Reason(
        block.name,
        text + offers,
        busy,
        permits,
        1,
        line.ahead,
        line.precision,
        (),
        0,
        *wait,
    )


TASK_TEXTS: Final[dict[str, Callable[[GateView, TaskEntry, Block, Typical], Reason]]] = {
    "run": _full,
    "window": _full,
    "pool": _pool,
    "rate": _rate,
    "worker": _worker,
}
"""How `why` explains a block, by the kind of its gate."""


def _seconds(microseconds: int) -> str:
    return f"{microseconds / 1_000_000:.3g}s" if microseconds < 60_000_000 else spoken(microseconds)
