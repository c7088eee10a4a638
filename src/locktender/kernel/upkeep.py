"""Upkeep once a second: delete gates and timers that nothing uses any more, so that memory stays bounded."""

from __future__ import annotations

from locktender.kernel.ledger import Ledger
from locktender.kernel.lifecycle import Lifecycle

MAX_IDLE_GATES = 10_000
"""Up to this many pools and steps nothing is deleted."""
TIMERS_PER_TASK = 4
MIN_TIMERS = 10_000
"""Up to this many timers, and `TIMERS_PER_TASK` for each open task, none is deleted."""


def forget_unused_gates(ledger: Ledger, now: int) -> None:
    """Delete the gates of keyed pools and of steps that no lane and no task uses, once there are many."""
    if len(ledger.slot_gates) <= MAX_IDLE_GATES and len(ledger.workers.gates) <= MAX_IDLE_GATES:
        return
    lanes_in_use = list(ledger.task_queue.lanes.values())
    lanes_in_use += [
        task.lane
        for run in ledger.runs.values()
        for task in run.tasks.values()
        if task.lane is not None
    ]
    used = {pool.name for lane in lanes_in_use for pool, _ in lane.slots}
    used |= {pool for _, _, pool in ledger.lingering}
    used |= {
        name
        for name, gates in ledger.slot_gates.items()
        if not all(gate.idle(now) for gate in gates)
    }
    for name in [name for name in ledger.slot_gates if name not in used]:
        del ledger.slot_gates[name]
    waited_at = {id(lane.worker_gate) for lane in lanes_in_use}
    for key in [key for key, gate in ledger.workers.gates.items() if id(gate) not in waited_at]:
        del ledger.workers.gates[key]
    for run in ledger.runs.values():
        # A cached lane may point to a gate that was deleted.
        run.lanes.clear()


def forget_stale_timers(lifecycle: Lifecycle) -> None:
    """Delete the timers of tasks and runs that have ended, once they outnumber the tasks."""
    if len(lifecycle.timers) > TIMERS_PER_TASK * len(lifecycle.tasks) + MIN_TIMERS:
        lingering = {task for task, _, _ in lifecycle.ledger.lingering}
        lifecycle.timers.keep(
            lambda kind, subject: (
                subject in lifecycle.tasks
                or kind == "passed_over"
                or (kind == "run_deadline" and subject in lifecycle.ledger.runs)
                or subject in lifecycle.ledger.heads
                or subject in lingering
            )
        )
