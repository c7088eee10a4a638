"""Explain: every gate that blocks a run or a task *now*, by the very rules that decide.

Read-only over a conductor, live or rebuilt from rows. Unlike deciding, it does
not stop at the first gate: an operator who opens one wants to know of the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import ceil

import msgspec

from headgate.base.durations import spoken
from headgate.base.ids import run_of
from headgate.base.limits import Rate
from headgate.base.states import HOLDING, TaskState
from headgate.kernel.advance import Progress
from headgate.kernel.conductor import Conductor
from headgate.kernel.entries import QueuedRun, TaskEntry
from headgate.kernel.gates import Gate, Lane, PoolGate
from headgate.kernel.ledger import Ledger
from headgate.kernel.misfit import misfit
from headgate.kernel.naming import gate_name
from headgate.kernel.place import HOLD, Station
from headgate.kernel.sharing import Sharing
from headgate.kernel.steps import Phase

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


class Reason(msgspec.Struct, frozen=True, omit_defaults=True):
    """One gate that blocks, with its numbers."""

    gate: str
    text: str
    used: int = 0
    limit: int = -1
    need: int = 1
    ahead: int = 0
    """How many waiters stand before this one at the same gate."""
    holders: tuple[Holder, ...] = ()
    more_holders: int = 0
    estimate_us: int | None = None
    never: bool = False
    """As limits are now, this can never be passed."""


class Typical(msgspec.Struct, frozen=True):
    """How long things usually take, for estimates; empty where nothing has been seen yet."""

    step_us: dict[str, int] = {}
    run_us: int | None = None


# -- runs ------------------------------------------------------------------------------------------


def explain_queued(
    conductor: Conductor,
    head: QueuedRun,
    typical: Typical,
    ahead: int,
    now: int,
    *,
    before: Sequence[Mapping[str, str]] | None = None,
    replaced: str | None = None,
    sharing: Sharing | None = None,
) -> list[Reason]:
    """Why a queued run does not start. `ahead`: queued runs before it in global order.

    before      the tags of all of those; None: not all are known, and at tags nothing is estimated
    replaced    the id of the run it waits for, where the caller knows it
    sharing     who it takes turns with, where there is a fair key
    """
    ledger = conductor.ledger
    row = head.row
    reasons: list[Reason] = []
    if row.waits_for is not None and head.lane is None:
        run = ledger.runs.get(row.waits_for)
        known = replaced if run is None else run.row.id
        other = known or f"number {row.waits_for}"
        text = f"key {row.key!r}: run {other}, which it replaces, has not ended"
        holders = (Holder(known),) if known else ()
        reasons.append(Reason("key", text, 1, 1, holders=holders))
    gates = head.lane.gates if head.lane is not None else ledger.run_gates(row)
    line = _Line(ledger, head, gates, ahead if sharing is None else sharing.ahead, before)
    for gate in gates:
        if gate.used < gate.cap:
            continue
        holders = [
            Holder(run.row.id, since=run.row.started_at)
            for run in ledger.runs.values()
            if gate in run.gates
        ]
        if gate.paused:
            text = f"{_run_gate(gate)} is paused"
            reasons.append(Reason(f"paused:{gate.name}", text, gate.used, gate.limit))
            continue
        text = f"{_run_gate(gate)}: {gate.used} of {gate.limit} runs execute"
        elapsed = [now - holder.since for holder in holders]
        reasons.append(
            Reason(
                f"{gate.kind}:{gate.name}",
                text,
                gate.used,
                gate.limit,
                ahead=line.ahead(gate),
                holders=tuple(holders[:MOST_HOLDERS]),
                more_holders=max(0, len(holders) - MOST_HOLDERS),
                estimate_us=_run_wait(elapsed, typical.run_us, line.turns(gate), gate.limit),
            )
        )
    if reasons and sharing is not None:
        reasons.append(Reason(f"fair:{sharing.fair.key}", sharing.text))
    return reasons


class _Line:
    """Who stands before a queued run, as far as it is known."""

    def __init__(
        self,
        ledger: Ledger,
        head: QueuedRun,
        gates: tuple[Gate, ...],
        total: int,
        before: Sequence[Mapping[str, str]] | None,
    ) -> None:
        self._ledger = ledger
        self._total = total
        self._known = before is not None
        self._own = {gate.name for gate in gates if gate is not ledger.run_gate}
        tags = self._heads_before(head) if before is None else before
        self._counters = [self._counters_of(each) for each in tags]

    def ahead(self, gate: Gate) -> int:
        """At a tag only those count that carry it; of a line not known in full, those at hand."""
        if gate is self._ledger.run_gate:
            return self._total
        return sum(1 for counters in self._counters if gate.name in counters)

    def turns(self, gate: Gate) -> int | None:
        """How many of them go first; None where that is not known."""
        ledger = self._ledger
        if gate is ledger.run_gate and not ledger.limits.tags:
            return self._total
        if not self._known:
            return None
        if gate is not ledger.run_gate:
            return self.ahead(gate)
        # Whoever is held up at a tag that this run does not carry is overtaken.
        full = {name for name, each in ledger.tag_gates.items() if each.used >= each.cap}
        others = full - self._own
        return sum(1 for counters in self._counters if counters.isdisjoint(others))

    def _heads_before(self, head: QueuedRun) -> list[Mapping[str, str]]:
        own = (head.rank, head.id)
        return [
            other.row.tags
            for other in self._ledger.heads.values()
            if other.row.kind == "flow" and (other.rank, other.id) < own
        ]

    def _counters_of(self, tags: Mapping[str, str]) -> set[str]:
        found = (rule.counter(tags) for rule in self._ledger.limits.tags)
        return {counter for counter in found if counter is not None}


def _run_wait(elapsed: list[int], usual: int | None, turns: int | None, limit: int) -> int | None:
    return None if turns is None else _wait(elapsed, usual, turns, 1, limit)


def _run_id(conductor: Conductor, seq: int) -> str:
    run = conductor.ledger.runs.get(seq)
    return f"number {seq}" if run is None else run.row.id


def _run_gate(gate: Gate) -> str:
    return "the run queue" if gate.kind == "runs" else f"tag {gate.name.replace('=*', '=')}"


# -- tasks -----------------------------------------------------------------------------------------


def explain_task(
    conductor: Conductor, entry: TaskEntry, typical: Typical, now: int
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
    if isinstance(lane.station, Station) and ledger.floor.pick(lane.station.skill) is None:
        reasons.append(_worker(conductor, entry, lane.station, usual, now))
    if reasons and (shared := _task_sharing(conductor, entry, lane)) is not None:
        reasons.append(Reason(f"fair:{shared.fair.key}", shared.text))
    return reasons


def _task_sharing(conductor: Conductor, entry: TaskEntry, lane: Lane[TaskEntry]) -> Sharing | None:
    """With whom a task takes turns at its pools, or for a worker; None where no turn is shared."""
    ledger = conductor.ledger
    fair = ledger.limits.fair
    if fair is None or lane.fair is None or entry.lane is None:
        return None
    pools = {pool.name for pool, _ in lane.pools}
    waiting: Counter[str] = Counter()
    own = 0
    for other in ledger.board.lanes.values():
        shared = other.station is lane.station or any(p.name in pools for p, _ in other.pools)
        if other.fair == lane.fair and shared:
            own += sum(
                1 for each in other.live.values() if (each.rank, each.id) < (entry.rank, entry.id)
            )
        elif other.fair is not None and shared:
            waiting[other.fair] += len(other)
    return Sharing(fair, lane.fair, own, waiting) if waiting else None


def _pool(
    conductor: Conductor, entry: TaskEntry, pool: PoolGate, slots: int, usual: int | None, now: int
) -> list[Reason]:
    reasons: list[Reason] = []
    if 0 <= pool.limit < slots:
        text = f"pool {pool.name} has {pool.limit} slots and {slots} are needed: never, as limits are now"
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
            text = f"pool {pool.name}: {kept} slots are reserved for tasks that were overtaken too often"
            reasons.append(Reason(f"reserved:{pool.name}", text, pool.used, pool.limit, slots))
    return reasons


def _rate(
    conductor: Conductor, entry: TaskEntry, pool: PoolGate, rate: Rate, slots: int, now: int
) -> Reason:
    """How much of the burst is spent, when it lets the next ones go, and those before it first."""
    spent, wait = min(pool.owed(now), rate.burst), pool.granted_at(slots) - now
    ahead = _ahead(conductor, entry, pool)
    text = (
        f"pool {pool.name}: rate {rate.count} per {spoken(rate.per_us)}, {spent} of {rate.burst} at once"
        f" spent, the next goes in {_seconds(wait)}"
    )
    estimate = wait + ahead * slots * rate.per_us // rate.count
    return Reason(f"rate:{pool.name}", text, spent, rate.burst, slots, ahead, estimate_us=estimate)


def _full(
    conductor: Conductor, entry: TaskEntry, gate: Gate, need: int, usual: int | None, now: int
) -> Reason:
    tasks = [
        task
        for run in conductor.ledger.runs.values()
        for task in run.tasks.values()
        if task.state in HOLDING and _uses(task, gate)
    ]
    tasks.sort(key=lambda task: task.started_at or task.scheduled_at)
    holders = [
        Holder(
            task.run.row.id,
            task.id,
            task.spec.name,
            _uses(task, gate),
            task.started_at or task.scheduled_at,
            task.worker or "",
        )
        for task in tasks
    ]
    dead = [
        Holder(_run_id(conductor, run_of(task)), task, "", slots, until, worker, dead=True)
        for (task, _, pool), (slots, until, worker) in conductor.ledger.lingering.items()
        if isinstance(gate, PoolGate) and pool == gate.name
    ]
    ahead = _ahead(conductor, entry, gate)
    everyone = dead + holders
    return Reason(
        gate_name(gate),
        f"{_what(gate)}: {gate.used} of {gate.limit} in use, {need} needed",
        gate.used,
        gate.limit,
        need,
        ahead,
        tuple(everyone[:MOST_HOLDERS]),
        max(0, len(everyone) - MOST_HOLDERS),
        _wait([now - holder.since for holder in holders], usual, ahead, need, gate.limit),
    )


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


def _ahead(conductor: Conductor, entry: TaskEntry, gate: Gate) -> int:
    board = conductor.ledger.board
    if entry.lane is None:
        return 0
    own = board.key(entry.lane, entry)
    return sum(
        1
        for lane in board.lanes.values()
        if any(each is gate for each in lane.gates) or any(pool is gate for pool, _ in lane.pools)
        for task in lane.live.values()
        if board.key(lane, task) < own
    )


def _worker(
    conductor: Conductor, entry: TaskEntry, station: Station, usual: int | None, now: int
) -> Reason:
    skill = station.skill
    # Who holds slots for code of its own is a worker by its rows, but runs no step.
    workers = [
        worker
        for worker in conductor.ledger.floor.workers.values()
        if skill.executor in worker.row.permits or HOLD not in worker.row.permits
    ]
    matching = [worker for worker in workers if worker.fits(skill)]
    offers = f"; {entry.offers} offers so far" if entry.offers else ""
    ahead = _ahead_for_worker(conductor, entry, station)
    if not workers:
        text = "no worker is connected"
    elif not matching:
        text = misfit(workers, skill)
    elif all(worker.row.draining for worker in matching):
        text = f"all {len(matching)} workers that could take it are draining"
    else:
        busy = sum(worker.used_by.get(skill.executor, 0) for worker in matching)
        text = f"all {skill.executor} permits of {len(matching)} workers are in use ({busy} tasks)"
    permits = sum(max(0, worker.row.permits.get(skill.executor, 0)) for worker in matching)
    elapsed = [
        now - task.started_at
        for run in conductor.ledger.runs.values()
        for task in run.tasks.values()
        if task.state == TaskState.RUNNING and task.spec.executor == skill.executor
    ]
    estimate = _wait(elapsed, usual, ahead, 1, permits) if matching else None
    return Reason("worker", text + offers, len(elapsed), permits, ahead=ahead, estimate_us=estimate)


def _ahead_for_worker(conductor: Conductor, entry: TaskEntry, station: Station) -> int:
    board = conductor.ledger.board
    if entry.lane is None:
        return 0
    own = board.key(entry.lane, entry)
    return sum(
        1
        for lane in board.lanes.values()
        if lane.station is station
        for task in lane.live.values()
        if board.key(lane, task) < own
    )


def _wait(elapsed: list[int], usual: int | None, ahead: int, need: int, limit: int) -> int | None:
    """About how long until `need` of `limit` are free: what holders have left, then one turn per batch ahead."""
    if usual is None or not elapsed:
        return None
    left = sorted(max(usual - each, usual // 10) for each in elapsed)
    first = left[min(len(left), max(1, need)) - 1]
    if limit <= 0:
        return first
    return first + ceil(ahead * need / limit) * usual


def _seconds(microseconds: int) -> str:
    return f"{microseconds / 1_000_000:.3g}s" if microseconds < 60_000_000 else spoken(microseconds)


# -- nodes that wait for others --------------------------------------------------------------------


def waiting_nodes(progress: Progress) -> Iterable[tuple[str, list[str]]]:
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
