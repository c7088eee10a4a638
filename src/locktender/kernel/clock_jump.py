"""The store's clock was set: instants that were made by it before move with it.

Instants are the store's time, and that clock can be set, ahead or back. The leader compares how far it has come
with its own clock that never jumps. Without a correction a clock set back by an hour would stop rates, back-offs
and time-outs for an hour, and one set ahead would grant an hour's worth of a rate at once. So what is still to
come is moved by the jump. The jump is recorded: the checker moves the same instants.

A new leader reads instants that may be older than the jump. A row that was requested in the future shows how far
the clock was set back since. A rate can never owe more than its burst.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from locktender.base.changes import Bucket, KeptPlace, Linger, TaskRow
from locktender.base.clock import SECOND
from locktender.base.events import NO_RUN, Change
from locktender.base.graph import Graph
from locktender.base.ids import run_of
from locktender.base.model import RunRow, WorkerRow
from locktender.base.states import TaskState
from locktender.kernel.node_state import SLICE
from locktender.kernel.pauses import Pauses
from locktender.kernel.rebuild import restore_runs
from locktender.kernel.scheduler import Scheduler
from locktender.kernel.wait_times import move_clocks

MIN_JUMP_US = 2 * SECOND
"""A smaller difference between two clocks may be drift."""


class ClockWatch:
    """Compares the store's clock with the leader's steady one."""

    def __init__(self) -> None:
        self._seen: tuple[int, int, int] | None = None

    def observe(self, store_us: int, before_us: int, after_us: int) -> int:
        """How far the store's clock has jumped; 0 where it has not.

        It was read between two instants of the steady clock. Only what is certain counts: a leader that was
        paused between question and answer must not take its own delay for a jump.
        """
        seen, self._seen = self._seen, (store_us, before_us, after_us)
        if seen is None:
            return 0
        passed = store_us - seen[0]
        if (ahead := passed - (after_us - seen[1])) > MIN_JUMP_US:
            return ahead
        if (behind := (before_us - seen[2]) - passed) > MIN_JUMP_US:
            return -behind
        return 0


def move_instants(scheduler: Scheduler, by_us: int) -> None:
    """The clock jumped by `by_us` within a term: what is still to come moves with it."""
    ledger = scheduler.ledger
    scheduler.lifecycle.timers.move(by_us)
    scheduler.held.timers.move(by_us)
    _move_waiting(scheduler, by_us)
    ledger.workers.move_pauses(by_us)
    scheduler.timeouts.move(by_us)
    move_clocks(ledger, by_us)
    for held, (slots, until, worker) in ledger.lingering.items():
        ledger.lingering[held] = (slots, until + by_us, worker)
        ledger.lingering_changed = True
    for gates in ledger.slot_gates.values():
        for gate in gates:
            if gate.timed:
                gate.move(by_us)
                if (bucket := gate.dump()) is not None:
                    scheduler.commit_builder.commit.buckets.append(bucket)
                ledger.task_queue.opened(gate)
    _record_jump(scheduler, {"by_us": by_us})


def _move_waiting(scheduler: Scheduler, by_us: int) -> None:
    """Also in their rows, from which the next leader reckons. Tasks requested after the jump stand behind them."""
    for entry in scheduler.lifecycle.tasks.values():
        if entry.state not in (TaskState.REQUESTED, TaskState.SCHEDULED):
            continue
        entry.requested_at += by_us
        if entry.spec.wait is None:
            entry.not_before += by_us if entry.not_before else 0
        entry.eligible_at += by_us if entry.eligible_at else 0
        # The row of an offer may be its worker's by now.
        if entry.state == TaskState.REQUESTED:
            scheduler.commit_builder.save(entry)
    for run in scheduler.ledger.runs.values():
        for node in run.opened:
            run.opened[node] += by_us
    scheduler.ledger.moved_us += by_us


def _record_jump(scheduler: Scheduler, data: dict[str, object]) -> None:
    scheduler.commit_builder.record(NO_RUN, Change("clock", 0, "", "jumped", 0, data))


def _restore_gates(
    scheduler: Scheduler,
    workers: Iterable[WorkerRow],
    buckets: Iterable[Bucket],
    now: int,
    local: str | None,
    lingers: Iterable[Linger],
) -> None:
    for row in workers:
        scheduler.put_worker(row, local=row.id == local)
        if row.unanswered:
            scheduler.timeouts.restore_silence(row, now)
    for bucket in buckets:
        for gate in scheduler.ledger.gates_of(bucket.pool):
            gate.restore(bucket)
    for linger in lingers:
        scheduler.ledger.linger(linger)
        scheduler.lifecycle.timers.set(linger.until, "linger", linger.task)


def restore(
    scheduler: Scheduler,
    runs: Iterable[RunRow],
    tasks: Iterable[TaskRow],
    workers: Iterable[WorkerRow],
    buckets: Iterable[Bucket],
    now: int,
    local: str | None = None,
    lingers: Iterable[Linger] = (),
    unplaced: Iterable[int] = (),
    kept: Iterable[KeptPlace] = (),
) -> Iterator[None]:
    """Rebuild the ledger from rows, as if the clock had not been set back since they were written.

    A break after every `SLICE` rows.
    """
    behind = 0
    runs_in_time: list[RunRow] = []
    for run in runs:
        moved_run, late = _run_in_time(run, now)
        runs_in_time.append(moved_run)
        behind = max(behind, late)
    tasks_in_time: list[TaskRow] = []
    for number, task in enumerate(tasks, 1):
        if not number % SLICE:
            yield
        moved_task, late = _task_in_time(task, now)
        if late and _sleeps(scheduler, runs_in_time, task):
            # Until a time of that clock: it stays.
            moved_task = moved_task._replace(not_before=task.not_before)
        tasks_in_time.append(moved_task)
        behind = max(behind, late)
    _restore_gates(scheduler, workers, buckets, now, local, lingers)
    scheduler.ledger.keep_places(kept)
    yield from restore_runs(
        scheduler.lifecycle, scheduler.graphs, runs_in_time, tasks_in_time, now, unplaced
    )
    for gates in scheduler.ledger.slot_gates.values():
        for gate in gates:
            gate.bound_debt(now)
    Pauses(scheduler.ledger, scheduler.commit_builder).record_lifted()
    if behind:
        # By no less than that: how long there was no leader is not known.
        _record_jump(scheduler, {"by_us": -behind, "about": True})


def restore_held(
    scheduler: Scheduler,
    runs: Iterable[RunRow],
    tasks: Iterable[TaskRow],
    graphs: Mapping[str, Graph],
    now: int,
) -> None:
    """The same for held runs: their deadlines."""
    scheduler.held.restore([_run_in_time(run, now)[0] for run in runs], tasks, graphs, now)


def _sleeps(scheduler: Scheduler, runs: Iterable[RunRow], task: TaskRow) -> bool:
    run = next((each for each in runs if each.seq == run_of(task.id)), None)
    return run is not None and scheduler.graphs[run.graph].nodes[task.node].wait is not None


def _task_in_time(row: TaskRow, now: int) -> tuple[TaskRow, int]:
    late = row.requested_at - now
    if late <= MIN_JUMP_US:
        return row, 0
    # Its place in line is by `requested_at`: that stays.
    moved = row._replace(
        not_before=max(0, row.not_before - late),
        eligible_at=max(0, row.eligible_at - late),
    )
    return moved, late


def _run_in_time(row: RunRow, now: int) -> tuple[RunRow, int]:
    late = max(row.queued_at, row.started_at) - now
    if late <= MIN_JUMP_US:
        return row, 0
    if row.deadline_at is not None:
        row = msgspec.structs.replace(row, deadline_at=row.deadline_at - late)
    return row, late
