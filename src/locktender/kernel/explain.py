"""Explain: every gate that blocks a run or a task *now*, by the very rules that decide.

Read-only over a conductor, live or rebuilt from rows. Unlike deciding, it does
not stop at the first gate: an operator who opens one wants to know of the next.

How long a waiter is waited for: when it fails if nothing lets it go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from math import ceil

import msgspec

from locktender.base.durations import spoken
from locktender.base.ids import run_of
from locktender.base.limits import Rate
from locktender.base.model import Stubborn
from locktender.base.states import HOLDING, TaskState
from locktender.kernel.dag import RunGraph
from locktender.kernel.entries import TaskEntry
from locktender.kernel.explain_workers import bound_by_total, misfit, no_room, seats
from locktender.kernel.gate_names import counted, gate_name
from locktender.kernel.gates import Gate, Lane, PoolGate
from locktender.kernel.lifecycle import Lifecycle
from locktender.kernel.node_state import Phase
from locktender.kernel.placement import HOLD, Worker, WorkerGate
from locktender.kernel.queue_position import QueueGroup, QueuePosition, Told
from locktender.kernel.scheduler import Scheduler

MOST_HOLDERS = 20


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
    told: str = ""
    """Why it was told to stop, where it was and still runs: `timeout`, `cancel` …"""
    told_at: int = 0


class Reason(msgspec.Struct, frozen=True, omit_defaults=True):
    """One gate that blocks, with its numbers."""

    gate: str
    text: str
    used: int = 0
    limit: int = -1
    need: int = 1
    ahead: int = 0
    """How many waiters go first at the same gate if nobody else comes."""
    ahead_is: Told = "exact"
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


# -- tasks -----------------------------------------------------------------------------------------


def explain_task(
    conductor: Scheduler, entry: TaskEntry, typical: Typical, now: int
) -> list[Reason]:
    """Every gate that blocks a requested task; empty when it starts with the next cycle."""
    if entry.state != TaskState.REQUESTED:
        return []
    reasons: list[Reason] = []
    if entry.not_before > now:
        wait = entry.not_before - now
        text = f"back-off after attempt {entry.attempt}: {_seconds(wait)} left"
        reasons.append(Reason("back_off", text, estimate_us=wait))
    ledger = conductor.ledger
    if (first := ledger.turn_of(entry)) is not entry:
        text = f"its flow is sequential: item {first.idx} has not ended"
        holder = Holder(first.run.row.id, first.id, first.spec.name, since=first.started_at)
        reasons.append(Reason("sequential", text, 1, 1, holders=(holder,)))
    lane = entry.lane if entry.in_line else ledger.lane_of(entry.run, entry.node, entry.pools)
    if lane is None:
        return reasons
    usual = typical.step_us.get(entry.spec.step)
    reasons += [
        _full(conductor, entry, gate, 1, usual, now) for gate in lane.gates if gate.used >= gate.cap
    ]
    for pool, slots in lane.pools:
        reasons += _pool(conductor, entry, pool, slots, usual, now)
    if isinstance(lane.station, WorkerGate) and ledger.floor.pick(lane.station.skill) is None:
        reasons.append(_worker(conductor, entry, lane.station, usual, now))
    if reasons:
        reasons += turn_reason(_sharing(conductor, entry, lane))
    return reasons


def turn_reason(line: QueuePosition) -> list[Reason]:
    """A turn blocks nobody, but says who is next when a gate opens."""
    if line.fair is None or not line.shared:
        return []
    return [Reason(f"fair:{line.fair.key}", line.text, ahead=line.ahead, ahead_is=line.told)]


def _sharing(conductor: Scheduler, entry: TaskEntry, lane: Lane[TaskEntry]) -> QueuePosition:
    """Who takes turns with a task at any of its pools, or for a worker."""
    pools = {pool.name for pool, _ in lane.pools}
    return _line(
        conductor,
        entry,
        lambda other: (
            other.station is lane.station or any(pool.name in pools for pool, _ in other.pools)
        ),
    )


def _line(
    conductor: Scheduler, entry: TaskEntry, beside: Callable[[Lane[TaskEntry]], bool]
) -> QueuePosition:
    """Who goes before a task of those in lanes `beside` it.

    Turns move with every start, wherever it is, and are not stored: a number of tasks is only about right.
    """
    board = conductor.ledger.board
    own = (entry.rank, entry.id)
    groups: list[QueueGroup] = []
    for lane in board.lanes.values() if entry.lane is not None else ():
        if not beside(lane):
            continue
        waiting: Counter[int] = Counter()
        older: Counter[int] = Counter()
        for task in lane.live.values():
            waiting[task.rank[0]] += 1
            older[task.rank[0]] += (task.rank, task.id) < own
        groups += [QueueGroup(lane.fair, rank, waiting[rank], older[rank]) for rank in waiting]
    value = None if entry.lane is None else entry.lane.fair
    return QueuePosition(board.turns, value, entry.rank[0], groups, known=False)


def _pool(
    conductor: Scheduler, entry: TaskEntry, pool: PoolGate, slots: int, usual: int | None, now: int
) -> list[Reason]:
    reasons: list[Reason] = []
    if 0 <= pool.limit < slots:
        text = (
            f"pool {pool.name} has {counted(pool.limit, 'slot')} and {slots} are needed:"
            " never, as limits are now"
        )
        return [Reason(f"pool:{pool.name}", text, pool.used, pool.limit, slots, never=True)]
    if pool.rate is not None and pool.rate.burst < slots:
        text = f"pool {pool.name} grants at most {pool.rate.burst} at once and {slots} are needed: never"
        return [Reason(f"rate:{pool.name}", text, need=slots, never=True)]
    if pool.paused:
        text = f"pool {pool.name} is paused"
        reasons.append(Reason(f"paused:{pool.name}", text, pool.used, pool.limit, slots))
    elif pool.used + slots > pool.cap:
        reasons.append(_full(conductor, entry, pool, slots, usual, now))
    if pool.rate is not None and pool.granted_at(slots) > now:
        reasons.append(_rate(conductor, entry, pool, pool.rate, slots, now))
    board = conductor.ledger.board
    lane = entry.lane
    if pool.kept and lane is not None and not reasons:
        kept = board.kept_from(pool, lane, entry, slots, now)
        if kept:
            are = "is" if kept == 1 else "are"
            text = (
                f"pool {pool.name}: {counted(kept, 'slot')} {are} reserved"
                " for tasks that were overtaken too often"
            )
            reasons.append(Reason(f"reserved:{pool.name}", text, pool.used, pool.limit, slots))
    return reasons


def _rate(
    conductor: Scheduler, entry: TaskEntry, pool: PoolGate, rate: Rate, slots: int, now: int
) -> Reason:
    """How much of the burst is spent, when it lets the next ones go, and those before it first."""
    spent, wait = min(pool.owed(now), rate.burst), pool.granted_at(slots) - now
    line = _ahead(conductor, entry, pool)
    text = (
        f"pool {pool.name}: rate {rate.count} per {spoken(rate.per_us)}, {spent} of {rate.burst} at once"
        f" spent, the next goes in {_seconds(wait)}"
    )
    return Reason(
        f"rate:{pool.name}",
        text,
        spent,
        rate.burst,
        slots,
        line.ahead,
        line.told,
        estimate_us=wait + line.ahead * slots * rate.per_us // rate.count,
    )


def _full(
    conductor: Scheduler, entry: TaskEntry, gate: Gate, need: int, usual: int | None, now: int
) -> Reason:
    tasks = [
        task
        for run in conductor.ledger.runs.values()
        for task in run.tasks.values()
        if task.state in HOLDING and _uses(task, gate)
    ]
    tasks.sort(key=lambda task: task.started_at or task.scheduled_at)
    stubborn = stubborn_by_token(conductor)
    holders = [_holder(task, gate, stubborn.get(task.token)) for task in tasks]
    dead = [
        Holder(_run_id(conductor, run_of(task)), task, "", slots, until, worker, dead=True)
        for (task, _, pool), (slots, until, worker) in conductor.ledger.lingering.items()
        if isinstance(gate, PoolGate) and pool == gate.name
    ]
    line = _ahead(conductor, entry, gate)
    everyone = dead + holders
    return Reason(
        gate_name(gate),
        f"{_what(gate)}: {gate.used} of {gate.limit} in use, {need} needed",
        gate.used,
        gate.limit,
        need,
        line.ahead,
        line.told,
        tuple(everyone[:MOST_HOLDERS]),
        max(0, len(everyone) - MOST_HOLDERS),
        wait_for(
            [now - each.since for each in holders], usual, line.ahead, (gate.used, gate.limit), need
        ),
    )


def _holder(task: TaskEntry, gate: Gate, stubborn: Stubborn | None) -> Holder:
    return Holder(
        task.run.row.id,
        task.id,
        task.spec.name,
        _uses(task, gate),
        task.started_at or task.scheduled_at,
        task.worker or "",
        told="" if stubborn is None else stubborn.reason,
        told_at=0 if stubborn is None else stubborn.since,
    )


def _run_id(conductor: Scheduler, seq: int) -> str:
    run = conductor.ledger.runs.get(seq)
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
    if isinstance(gate, PoolGate):
        return sum(slots for pool, slots in task.lane.pools if pool is gate)
    return int(gate in task.lane.gates)


def _ahead(conductor: Scheduler, entry: TaskEntry, gate: Gate) -> QueuePosition:
    return _line(
        conductor,
        entry,
        lambda lane: (
            any(each is gate for each in lane.gates) or any(pool is gate for pool, _ in lane.pools)
        ),
    )


def _worker(
    conductor: Scheduler, entry: TaskEntry, station: WorkerGate, usual: int | None, now: int
) -> Reason:
    skill = station.skill
    # Who holds slots for code of its own is a worker by its rows, but runs no step.
    workers = [
        worker
        for worker in conductor.ledger.floor.workers.values()
        if skill.executor in worker.row.permits or HOLD not in worker.row.permits
    ]
    matching = {worker.id: worker for worker in workers if worker.fits(skill)}
    several = list(matching.values())
    # Whoever is in its way: on the same workers, in the same kind of permit, or in any where the total bounds.
    by_total = {each.id for each in several if bound_by_total(each, skill.executor)}
    running = [
        task
        for run in conductor.ledger.runs.values()
        for task in run.tasks.values()
        if task.state == TaskState.RUNNING
        and task.worker in matching
        and (task.spec.executor == skill.executor or task.worker in by_total)
    ]
    if not workers:
        text = "no worker is connected"
    elif not matching:
        text = misfit(workers, skill)
    else:
        told = stubborn_by_token(conductor)
        text = no_room(several, skill.executor, sum(task.token in told for task in running))
    offers = f"; {counted(entry.offers, 'offer')} so far" if entry.offers else ""
    line = _line_for_worker(conductor, entry, station, several, now)
    permits, busy = sum(seats(worker, skill.executor) for worker in several), len(running)
    elapsed = [now - task.started_at for task in running]
    estimate = wait_for(elapsed, usual, line.ahead, (busy, permits)) if matching else None
    return Reason(
        "worker", text + offers, busy, permits, 1, line.ahead, line.told, estimate_us=estimate
    )


def stubborn_by_token(conductor: Scheduler) -> dict[int, Stubborn]:
    """Attempts that were told to stop and still run, as their workers said last."""
    workers = conductor.ledger.floor.workers.values()
    return {each.token: each for worker in workers for each in worker.row.stubborn}


def _line_for_worker(
    conductor: Scheduler, entry: TaskEntry, station: WorkerGate, matching: list[Worker], now: int
) -> QueuePosition:
    """Who waits for the same permits of the same workers, of whatever step, and for nothing else."""
    board = conductor.ledger.board
    executor = station.skill.executor
    known: dict[WorkerGate, bool] = {station: True}

    def shares(other: WorkerGate) -> bool:
        if other not in known:
            known[other] = other.skill.executor == executor and any(
                worker.fits(other.skill) for worker in matching
            )
        return known[other]

    def beside(lane: Lane[TaskEntry]) -> bool:
        if lane is entry.lane:
            return True
        head = (
            lane.head() if isinstance(lane.station, WorkerGate) and shares(lane.station) else None
        )
        return head is not None and board.blocked_by(lane, head, now)[0] is None

    return _line(conductor, entry, beside)


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


# -- nodes that wait for others --------------------------------------------------------------------


def waiting_nodes(progress: RunGraph) -> Iterable[tuple[str, list[str]]]:
    """Nodes not yet asked for, and the nodes they wait for."""
    for step in progress.steps:
        if step.phase is not Phase.WAITING:
            continue
        names = [
            other.node.name
            for other in progress.steps
            if other.phase <= Phase.ACTIVE
            and (step.index in other.dependents or step.index in other.followers)
        ]
        yield step.node.name, names


UNKNOWN_US = 0
"""The dispatch deadline of a step that has none of its own: whoever leads has that setting."""


class Until(msgspec.Struct, frozen=True):
    """When a waiter ends without having started, and as what."""

    kind: str
    """`queue_timeout`, `capacity` (the dispatch deadline), or `deadline` of the whole run."""
    at: int

    def text(self, now: int) -> str:
        left = spoken(max(0, self.at - now))
        match self.kind:
            case "capacity":
                return f"fails with capacity in {left} unless a worker takes it"
            case "deadline":
                return f"ends timed_out in {left} unless it has ended by then"
            case _:
                return f"fails with {self.kind} in {left} unless it has started"


def patience(lives: Lifecycle, entry: TaskEntry) -> list[Until]:
    """What ends the wait of a requested task. The clock for a worker runs once all other gates were passed."""
    found: list[Until] = []
    timeout, deadline = lives.queue_timeout_of(entry), lives.dispatch_deadline_of(entry)
    if timeout is not None:
        found.append(Until("queue_timeout", entry.requested_at + timeout))
    if entry.eligible_at and deadline != UNKNOWN_US:
        found.append(Until("capacity", entry.eligible_at + deadline))
    return found
