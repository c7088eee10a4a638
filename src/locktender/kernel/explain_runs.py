"""Why a queued run does not start: every gate that blocks it now, and how many runs start before it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Set
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from locktender.base.limits import Limits
from locktender.base.states import HOLDING
from locktender.kernel.dag import RunGraph
from locktender.kernel.entries import QueuedRun, RunEntry, TaskEntry
from locktender.kernel.estimates import Estimate, Holding, Line, wait_for
from locktender.kernel.estimates import estimate as estimated
from locktender.kernel.explain import turn_reason
from locktender.kernel.explain_waits import basis
from locktender.kernel.gates.protocol import UNBOUNDED, Block, Gate, Lane
from locktender.kernel.ledger import Ledger
from locktender.kernel.node_state import Phase
from locktender.kernel.pauses import pause_texts
from locktender.kernel.queue_position import Precision, QueuePosition
from locktender.kernel.reasons import (
    MAX_HOLDERS_SHOWN,
    GateOpening,
    Holder,
    Reason,
    Typical,
    ends_text,
)
from locktender.kernel.scheduler import Scheduler

MAX_BEFORE: Final = 1_000
"""Waiters of other runs in the same lane that are passed over to find the first of one run."""
DEFAULT_RUNS: Final = "a default; change it: locktender limits set max_concurrent_runs N"


def explain_queued(
    scheduler: Scheduler,
    head: QueuedRun,
    typical: Typical,
    line: QueuePosition,
    now: int,
    *,
    replaced: str | None = None,
) -> list[Reason]:
    """Empty when it starts with the next cycle.

    line        who goes before it
    replaced    the id of the run it waits for, where the caller knows it
    """
    ledger = scheduler.ledger
    row = head.row
    reasons: list[Reason] = []
    if row.waits_for is not None and head.lane is None:
        run = ledger.runs.get(row.waits_for)
        known = replaced if run is None else run.row.id
        other = known or f"number {row.waits_for}"
        text = f"key {row.key!r}: run {other}, which goes before it, has not ended"
        holders = (Holder(known),) if known else ()
        reasons.append(Reason("key", text, 1, 1, holders=holders))
    lane: Lane[QueuedRun] = head.lane or Lane(None, ledger.run_gates(row, ledger.keeps_of(head)))
    if ledger.is_paused(row):
        reasons += [Reason("pause", text) for text in pause_texts(ledger.limits, row, now)]
        lane = Lane(None, ledger.run_gates(row, ledger.keeps_of(head)))
    for block in ledger.run_queue.blocks(lane, head, now):
        if block.reason == "paused":
            text = f"{RUN_TEXTS[block.gate.kind](block.gate)} is paused"
            reasons.append(Reason(block.name, text, block.used, block.limit))
        else:
            reasons.append(_full(scheduler, head, block, lane.gates, typical, line, now))
    if not reasons:
        return []
    precision = place_precision(ledger, head, line)
    return reasons + [
        msgspec.structs.replace(each, ahead_is=precision) for each in turn_reason(line)
    ]


def runs_to_start(
    ledger: Ledger, head: QueuedRun, reasons: Iterable[Reason], line: QueuePosition
) -> tuple[GateOpening, ...]:
    """What has to happen for a queued run to start: all of it."""
    full = [gate.name for gate in ledger.tag_gates.values() if gate.used >= gate.cap]
    found: list[GateOpening] = []
    for reason in reasons:
        kind, _, name = reason.gate.partition(":")
        runs = tuple(holder.run for holder in reason.holders)
        if kind == "fair":
            continue
        if kind in ("pause", "paused"):
            found.append(
                GateOpening(reason.gate, f"{name or 'the run or its flow'} resumed", resume=True)
            )
        elif kind == "key":
            found.append(GateOpening("key", f"run {', '.join(runs)} to end", runs=runs, ends=1))
        else:
            others = [each for each in full if each not in {gate.name for gate in _gates(head)}]
            whole = kind == "runs"
            ahead = line.ahead_without(others) if whole and others else reason.ahead
            ends = reason.used + ahead + 1 - reason.limit
            every = ends <= len(runs) + reason.more_holders
            knob = _tag_text(name) if kind == "tag" else name
            text = f"{knob} {reason.limit} → {reason.limit + ends}"
            if runs:
                enough = ends if every else 0
                text += f", or {ends_text('run', runs, enough, reason.more_holders)}"
            found.append(
                GateOpening(
                    reason.gate,
                    text,
                    reason.limit + ends,
                    ends=ends if every else 0,
                    slots=ends,
                    runs=runs,
                    about=reason.ahead_is != "exact",
                )
            )
    return tuple(found)


def _tag_text(name: str) -> str:
    """`tag tenant=acme`, also of the counter of a limit for each value (`tenant=*acme`)."""
    return f"tag {name.replace('=*', '=')}"


def _gates(head: QueuedRun) -> tuple[Gate, ...]:
    return () if head.lane is None else head.lane.gates


def place_precision(ledger: Ledger, head: QueuedRun, line: QueuePosition) -> Precision:
    """How a run's place in `line` is meant: a run that is held up at a tag is overtaken by those behind."""
    if line.precision != "exact":
        return line.precision
    waits_for_another = head.row.waits_for is not None and head.lane is None
    return "about" if waits_for_another or _held_up(ledger, head, line) else "exact"


def _held_up(ledger: Ledger, head: QueuedRun, line: QueuePosition) -> Set[str]:
    """Tags' counters that may be full for the run, or for one before it, while the run gate has room."""
    limit = ledger.run_gate.limit
    places = UNBOUNDED if limit < 0 else limit
    tags: Mapping[str, str] = head.row.tags
    own = {rule.counter(tags) for rule in ledger.limits.tags}
    found: set[str] = set()
    for counter in line.counters.keys() | {each for each in own if each is not None}:
        cap = _tag_cap(ledger.limits, counter)
        # As many of a tag as may execute at all: where it is full, so is the run gate.
        if cap >= places:
            continue
        gate = ledger.tag_gates.get(counter)
        used = 0 if gate is None else gate.used
        if used + line.counters[counter] + (counter in own) > cap:
            found.add(counter)
    return found


def _tag_cap(limits: Limits, counter: str) -> int:
    """How many runs may execute under one of the tags' counters."""
    for rule in limits.tags:
        if counter == rule.name or (rule.per_value and counter.startswith(rule.name)):
            return 0 if rule.paused else UNBOUNDED if rule.limit < 0 else rule.limit
    return UNBOUNDED


def _full(
    scheduler: Scheduler,
    head: QueuedRun,
    block: Block,
    gates: tuple[Gate, ...],
    typical: Typical,
    line: QueuePosition,
    now: int,
) -> Reason:
    ledger, gate = scheduler.ledger, block.gate
    holders = [
        Holder(run.row.id, since=run.row.started_at)
        for run in ledger.runs.values()
        if gate in (run.gates if run.placed else ledger.kept_gates(run.row.tags, run.keeps))
    ]
    waiting = [
        Holder(each.id, since=each.since, waiting=True)
        for each in ledger.kept.values()
        if gate in ledger.kept_gates(each.tags, each.rules)
    ]
    if gate is ledger.run_gate:
        ahead, precision = line.ahead, place_precision(ledger, head, line)
        turns = _turns(ledger, gates, line)
    else:
        ahead, precision = line.ahead_with(gate.name)
        beside = line.beside(gate.name) | {each.name for each in gates}
        if precision == "exact" and (_held_up(ledger, head, line) & beside) - {gate.name}:
            precision = "about"
        turns = ahead
    elapsed = [now - holder.since for holder in holders]
    by_default = gate is ledger.run_gate and ledger.default_runs
    estimate = wait_for(elapsed, typical.run_us, turns, (gate.used, gate.limit))
    holding = [Holding(each, typical.run_holds) for each in elapsed]
    line_before = Line(turns, typical.run_holds)
    played = _played(holding, line_before, gate, typical)
    return Reason(
        block.name,
        f"{RUN_TEXTS[gate.kind](gate)}: {gate.used} of {gate.limit} runs execute"
        + (f" or wait and keep their place ({_names(waiting)})" if waiting else "")
        + (f" ({DEFAULT_RUNS})" if by_default else ""),
        gate.used,
        gate.limit,
        ahead=ahead,
        ahead_is=precision,
        holders=tuple((waiting + holders)[:MAX_HOLDERS_SHOWN]),
        more_holders=max(0, len(waiting) + len(holders) - MAX_HOLDERS_SHOWN),
        # Of a line that was not counted to its end nobody knows how long it is, nor how long a run waits.
        **({} if precision == "at least" or waiting else _wait(estimate, played, ahead, gate)),
    )


def _played(holding: list[Holding], line: Line, gate: Gate, typical: Typical) -> Estimate | None:
    missing = 1 - max(0, gate.limit - gate.used)
    return estimated(holding, [line], gate.limit, missing, typical.draws, typical.plays)


def _wait(usual: int | None, played: Estimate | None, ahead: int, gate: Gate) -> dict[str, Any]:
    if played is None:
        return {"estimate_us": usual}
    what = RUN_TEXTS[gate.kind](gate)
    return {
        "estimate_us": played.us,
        "p90_us": played.p90_us,
        "basis": basis(played, ahead, 0, what).replace("hold", "run"),
    }


def _names(waiting: list[Holder]) -> str:
    names = ", ".join(each.run for each in waiting[:MAX_HOLDERS_SHOWN])
    return f"{names} …" if len(waiting) > MAX_HOLDERS_SHOWN else names


def _turns(ledger: Ledger, gates: tuple[Gate, ...], line: QueuePosition) -> int:
    """How many of those before a run take a place at the run gate in its stead.

    A run that is held up at a tag which this one does not carry is overtaken, but takes the places that come
    free at that tag: the others have the rest.
    """
    full = [gate for gate in ledger.tag_gates.values() if gate.used >= gate.cap]
    held_up = {gate.name: gate.cap for gate in full if gate not in gates and line.has(gate.name)}
    limit = ledger.run_gate.limit
    rest = limit - sum(held_up.values())
    if rest <= 0:
        return line.ahead
    return min(line.ahead, line.ahead_without(held_up) * limit // rest)


RUN_TEXTS: Final[dict[str, Callable[[Gate], str]]] = {
    "runs": lambda _gate: "the run queue",
    "tag": lambda gate: _tag_text(gate.name),
    "pause": lambda _gate: "the run or its flow",
}
"""What `why` calls a gate of the run queue, by its kind."""


# -- nodes that wait for others --------------------------------------------------------------------


def waiting_nodes(graph: RunGraph) -> Iterable[tuple[str, list[str]]]:
    """Nodes not yet asked for, and the nodes they wait for."""
    for step in graph.steps:
        if step.phase is not Phase.WAITING:
            continue
        names = [
            other.node.name
            for other in graph.steps
            if other.phase <= Phase.ACTIVE
            and (step.index in other.dependents or step.index in other.followers)
        ]
        yield step.node.name, names


# -- tasks of a run --------------------------------------------------------------------------------


class StandingTasks(NamedTuple):
    """Tasks of one node of a run that stand in one lane: all of them wait for the same."""

    first: TaskEntry
    waiting: int


class OpenTasks(NamedTuple):
    """What a run has open: as few of its tasks are looked at as can be."""

    in_flight: list[TaskEntry]
    standing: list[StandingTasks]
    aside: list[TaskEntry]
    """They wait, and stand at no gate: for their time, an event, an earlier item, the end of a pause."""

    def waiting(self, now: int) -> list[StandingTasks]:
        """All that wait, those that wait for the same together."""
        found: dict[tuple[int, int, int], list[TaskEntry]] = {}
        for task in self.aside:
            own = task.not_before if task.not_before > now else 0
            found.setdefault((task.node, id(task.lane), own), []).append(task)
        return [*self.standing, *(StandingTasks(each[0], len(each)) for each in found.values())]


def open_tasks(run: RunEntry) -> OpenTasks:
    """The tasks in flight, queued, and waiting outside queues; of 100,000 queued items only a few are read."""
    in_flight: list[TaskEntry] = []
    aside: list[TaskEntry] = []
    flying = run.in_flight
    apart = len(run.tasks) - flying - sum(run.waiting.values())
    for task in run.tasks.values() if flying or apart else ():
        if task.state in HOLDING:
            in_flight.append(task)
            flying -= 1
        elif not task.in_line:
            aside.append(task)
            apart -= 1
        if not flying and not apart:
            break
    standing: list[StandingTasks] = []
    lanes: dict[int, dict[int, Lane[TaskEntry]]] = {}
    for (node, _), lane in run.lanes.items():
        if lane.live:
            lanes.setdefault(node, {})[id(lane)] = lane
    for node, count in run.waiting.items():
        if count:
            standing += _standing(run, node, count, lanes.get(node, {}).values())
    return OpenTasks(in_flight, standing, aside)


def _standing(
    run: RunEntry, node: int, count: int, lanes: Collection[Lane[TaskEntry]]
) -> Iterable[StandingTasks]:
    """`lanes`: those in which tasks of the node may stand."""
    found: list[tuple[Lane[TaskEntry], TaskEntry]] = []
    for lane in lanes:
        several = islice(lane.in_order(), MAX_BEFORE)
        first = next((task for task in several if task.run is run and task.node == node), None)
        if first is not None:
            found.append((lane, first))
    if len(found) == 1 and len(lanes) == 1:
        return [StandingTasks(found[0][1], count)]
    # Items need different pools, or its first stands far behind those of other runs.
    counts: dict[int, list[TaskEntry]] = {}
    for task in run.tasks.values():
        if task.node == node and task.in_line:
            counts.setdefault(id(task.lane), []).append(task)
    return [
        StandingTasks(min(each, key=lambda task: (task.rank, task.id)), len(each))
        for each in counts.values()
    ]
