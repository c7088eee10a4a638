"""What the passing of time decides: back-offs that end, offers that lapse, waits and runs that took too long."""

from __future__ import annotations

from locktender.base.durations import spoken
from locktender.base.model import Failure, RunRow
from locktender.base.states import RunState, TaskState
from locktender.kernel.demand import Demand, WaitingTasks, demand_of, eligible
from locktender.kernel.entries import TaskEntry
from locktender.kernel.gate_names import counted
from locktender.kernel.gates.protocol import Lane
from locktender.kernel.gates.worker import Requirement, WorkerGate
from locktender.kernel.lifecycle import Lifecycle
from locktender.kernel.placement import HOLD
from locktender.kernel.timers import Kind

SWEEP_AGAIN_US = 1_000_000
QUEUED: Kind = "queued_deadline"
"""The timer of a queued run that has a deadline."""


def still_queued(row: RunRow, now: int) -> Failure:
    """What a run fails with whose deadline passed before it started."""
    waited = spoken((row.deadline_at or now) - row.queued_at)
    return Failure("deadline", f"deadline: the run was still queued after {waited}")


class Timeouts:
    def __init__(self, lives: Lifecycle) -> None:
        self._lives = lives
        self._timers = lives.timers
        self._ledger = lives.ledger
        self._journal = lives.journal

    def pass_time(self, now: int) -> list[RunRow]:
        """Returns queued runs whose own deadline has passed: they must not start any more."""
        overdue: list[RunRow] = []
        for _, kind, subject, detail in self._timers.due(now):
            if kind == "run_deadline":
                self._run_deadline(subject, now)
            elif kind == QUEUED:
                if (head := self._ledger.heads.get(subject)) is not None:
                    overdue.append(head.row)
            elif kind == "linger":
                self._ledger.end_lingering(subject, now)
            elif (entry := self._lives.tasks.get(subject)) is None:
                continue
            elif kind == "offer":
                if entry.state == TaskState.SCHEDULED and entry.token == detail:
                    self._journal.withdrawals.append((entry.id, entry.token, TaskState.REQUESTED))
            elif entry.state != TaskState.REQUESTED:
                continue
            elif kind == "back_off":
                if entry.not_before == detail and not entry.in_line:
                    self._ledger.request(entry)
            elif kind == "queue_timeout" and entry.requested_at == detail:
                self._queue_timeout(entry, now)
            elif kind == "dispatch_deadline" and entry.eligible_at == detail:
                self._dispatch_deadline(entry, now)
        return overdue

    def _run_deadline(self, seq: int, now: int) -> None:
        run = self._ledger.runs.get(seq)
        if run is not None and run.row.verdict is None:
            row = run.row
            after = spoken((row.deadline_at or now) - row.queued_at)
            began = spoken(row.started_at - row.queued_at)
            text = (
                f"deadline: the run did not end within {after} (it was queued for {began} of them)"
            )
            failure = Failure("deadline", text, retryable=False)
            self._lives.stop(run, RunState.TIMED_OUT, failure, now)
            self._lives.close_if_finished(run, now)

    def _queue_timeout(self, entry: TaskEntry, now: int) -> None:
        limit = self._lives.queue_timeout_of(entry) or 0
        gate = "sequential" if entry.aside else "back-off"
        if entry.lane is not None and entry.in_line:
            gate = self._in_the_way(entry, entry.lane, now)
        waited = spoken(now - entry.requested_at)
        text = f"queue_timeout: {gate} — waited {waited} of at most {spoken(limit)}"
        failure = Failure("queue_timeout", text, retryable=False)
        self._lives.end_waiting(entry, entry.state, TaskState.FAILED, failure, now)

    def _in_the_way(self, entry: TaskEntry, lane: Lane[TaskEntry], now: int) -> str:
        """Asked anew: where a new leader has decided nothing yet, no lane is parked anywhere."""
        block = next(self._ledger.board.blocks(lane, entry, now), None)
        return "its turn" if block is None else block.name

    def _dispatch_deadline(self, entry: TaskEntry, now: int) -> None:
        lane = entry.lane
        if (
            lane is None
            or lane.parked_at is not lane.worker_gate
            or not isinstance(lane.worker_gate, WorkerGate)
        ):
            # Another gate blocks it at the moment: only waiting for a worker counts.
            self._timers.set(now + SWEEP_AGAIN_US, "dispatch_deadline", entry.id, entry.eligible_at)
            return
        skill = lane.worker_gate.requirement
        floor = self._ledger.floor
        wanted = (
            ", ".join(f"{label}={value}" for label, value in skill.needs) or f"step {skill.step}"
        )
        matching = sum(1 for _ in floor.matching(skill))
        # Who only holds slots for code of its own is no worker to anybody else.
        workers = sum(HOLD not in worker.row.permits for worker in floor.workers.values())
        text = (
            f"capacity: no worker with {wanted} for {spoken(now - entry.eligible_at)}"
            f" ({counted(workers, 'worker')}, {matching} matching,"
            f" {counted(entry.offers, 'offer')} declined)"
        )
        failure = Failure("capacity", text, retryable=False)
        self._lives.end_waiting(entry, entry.state, TaskState.FAILED, failure, now)

    def sweep(self, now: int) -> Demand:
        """Once a second: start the dispatch clock of what lacks only a worker. Returns the demand."""
        waiting: dict[Requirement, WaitingTasks] = {}
        for entry in eligible(self._ledger.board):
            if entry.eligible_at == 0 and entry.requested_at < now:
                entry.eligible_at = now
                self._journal.save(entry)
                at = now + self._lives.dispatch_deadline_of(entry)
                self._timers.set(at, "dispatch_deadline", entry.id, now)
            if entry.lane is not None and isinstance(entry.lane.worker_gate, WorkerGate):
                skill = entry.lane.worker_gate.requirement
                since = entry.eligible_at or now
                tasks, first = waiting.get(skill, (0, since))
                waiting[skill] = WaitingTasks(tasks + 1, min(first, since))
        return demand_of(self._ledger.floor, waiting)
