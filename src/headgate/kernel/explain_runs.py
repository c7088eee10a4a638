"""Why a queued run does not start: every gate of the queue that blocks it now, and who goes before it."""

from __future__ import annotations

from headgate.kernel.conductor import Conductor
from headgate.kernel.entries import QueuedRun
from headgate.kernel.explain import MOST_HOLDERS, Holder, Reason, Typical, turn_reason, wait_for
from headgate.kernel.gates import Gate
from headgate.kernel.ledger import Ledger
from headgate.kernel.sharing import Line


def explain_queued(
    conductor: Conductor,
    head: QueuedRun,
    typical: Typical,
    line: Line,
    now: int,
    *,
    replaced: str | None = None,
) -> list[Reason]:
    """Empty when it starts with the next cycle.

    line        who goes before it
    replaced    the id of the run it waits for, where the caller knows it
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
    for gate in gates:
        if gate.paused:
            text = f"{_run_gate(gate)} is paused"
            reasons.append(Reason(f"paused:{gate.name}", text, gate.used, gate.limit))
        elif gate.used >= gate.cap:
            reasons.append(_full(conductor, gate, gates, typical, line, now))
    return reasons + turn_reason(line) if reasons else []


def _full(
    conductor: Conductor,
    gate: Gate,
    gates: tuple[Gate, ...],
    typical: Typical,
    line: Line,
    now: int,
) -> Reason:
    ledger = conductor.ledger
    holders = [
        Holder(run.row.id, since=run.row.started_at)
        for run in ledger.runs.values()
        if gate in run.gates
    ]
    if gate is ledger.run_gate:
        ahead, told = line.ahead, line.told
        turns = _turns(ledger, gates, line)
    else:
        ahead, told = line.ahead_with(gate.name)
        turns = ahead
    elapsed = [now - holder.since for holder in holders]
    estimate = wait_for(elapsed, typical.run_us, turns, (gate.used, gate.limit))
    return Reason(
        f"{gate.kind}:{gate.name}",
        f"{_run_gate(gate)}: {gate.used} of {gate.limit} runs execute",
        gate.used,
        gate.limit,
        ahead=ahead,
        ahead_is=told,
        holders=tuple(holders[:MOST_HOLDERS]),
        more_holders=max(0, len(holders) - MOST_HOLDERS),
        # Of a line that was not counted to its end nobody knows how long it is.
        estimate_us=None if told == "at least" else estimate,
    )


def _turns(ledger: Ledger, gates: tuple[Gate, ...], line: Line) -> int:
    """How many of those before a run take a place at the run gate in its stead.

    Whoever is held up at a tag that the run does not carry is overtaken, but takes the places that come
    free at that tag: the others have the rest.
    """
    full = [gate for gate in ledger.tag_gates.values() if gate.used >= gate.cap]
    held_up = {gate.name: gate.cap for gate in full if gate not in gates and line.has(gate.name)}
    limit = ledger.run_gate.limit
    rest = limit - sum(held_up.values())
    if rest <= 0:
        return line.ahead
    return min(line.ahead, line.ahead_without(held_up) * limit // rest)


def _run_gate(gate: Gate) -> str:
    return "the run queue" if gate.kind == "runs" else f"tag {gate.name.replace('=*', '=')}"
