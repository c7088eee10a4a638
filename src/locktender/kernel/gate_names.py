"""The names under which events, messages and `why` speak of gates."""

from __future__ import annotations

from locktender.base.clock import SECOND
from locktender.base.durations import spoken
from locktender.kernel.gates import Gate, PoolGate
from locktender.kernel.placement import WorkerGate


def gate_name(gate: Gate | None, reason: str = "full") -> str:
    """The name under which events, messages and `why` speak of a gate."""
    if gate is None:
        return "its turn"
    if isinstance(gate, PoolGate):
        prefix = reason if reason in ("rate", "paused", "reserved") else "pool"
        return f"{prefix}:{gate.name}"
    return "worker" if isinstance(gate, WorkerGate) else f"{gate.kind}:{gate.name}"


def counted(count: int, noun: str) -> str:
    """`1 worker`, `3 workers`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def told_to_stop(reason: str, since: int, now: int) -> str:
    """Of an attempt that was and still runs; in whole seconds, for its instant is not known better."""
    return f"told to stop {spoken(max(0, now - since) // SECOND * SECOND)} ago: {reason}"
