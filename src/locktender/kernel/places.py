"""Places: a run counts at the run gate and at its tags' limits only while a worker that lives could go on with it.

A run gives its place back when nothing of it is in flight and no live worker fits any of its open tasks: its
tasks then wait for a worker, and other runs use the place. When a worker comes that fits, the run passes those
gates again, with its first age and priority, before anything of it starts. Until then its tasks stand in no line.

A paused run gives its place back as soon as nothing of it is in flight, and passes its gates again when resumed.

While no worker lives at all, or all drain, no other run could use the place: runs keep theirs, and the others
stay queued, which costs neither rows nor memory.

Runs are looked at only when something of theirs changed while some gate of workers matches no live worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from locktender.base.events import Change
from locktender.base.states import TaskState
from locktender.kernel.entries import QueuedRun, RunEntry, TaskEntry
from locktender.kernel.gates.protocol import Lane
from locktender.kernel.gates.worker import WorkerGate
from locktender.kernel.lifecycle import Lifecycle
from locktender.kernel.wait_times import add_waits

MAX_UNPLACED: Final = 10_000
MAX_OPEN_TASKS: Final = 200_000
"""Runs without a place are kept in memory: beyond so many of them, or so many open tasks in all, they keep it."""
NO_WORKER: Final = "no worker that lives can go on with it"
PAUSED: Final = "paused"


class Places:
    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._ledger = lifecycle.ledger
        self._commit_builder = lifecycle.commit_builder
        self._anybody = False

    def follow_workers(self) -> None:
        """Before a decision: workers came or went since the last one."""
        ledger = self._ledger
        changed, ledger.workers.refitted = ledger.workers.refitted, []
        takes_tasks = any(not worker.row.draining for worker in ledger.workers.by_id.values())
        first, self._anybody = not self._anybody, takes_tasks
        first = first and self._anybody
        if not changed and not first:
            return
        unfit = {id(gate) for gate in changed if gate.unfit}
        for lane in ledger.task_queue.lanes.values() if unfit or first else ():
            gate = lane.worker_gate
            if id(gate) in unfit or (first and isinstance(gate, WorkerGate) and gate.unfit):
                for task in lane.live.values():
                    ledger.look_at[task.run.seq] = task.run
        fit = {id(gate) for gate in changed if not gate.unfit}
        for run in list(ledger.unplaced.values()) if fit else ():
            if (
                run.returning is None
                and not run.paused
                and any(id(lane.worker_gate) in fit for lane in _lanes(run.tasks.values()))
            ):
                ledger.return_run(run)

    def take_again(self, head: QueuedRun, run: RunEntry, now: int) -> None:
        """A run has passed its gates again: its tasks go to theirs."""
        self._ledger.place(run)
        commit = self._commit_builder.commit
        commit.placed.append(run.seq)
        if run.seq in commit.unplaced:  # it was taken up in this cycle, without a place
            commit.unplaced.remove(run.seq)
        data: dict[str, object] = {"priority": head.row.priority}
        add_waits(self._ledger, head, data, now)
        self._commit_builder.record(run.seq, Change("place", 0, "given_back", "held", 0, data))
        for task in list(run.tasks.values()):
            if task.is_due(now):
                self._ledger.request(task)

    def give_back(self) -> None:
        """After a decision: runs that no worker can go on with."""
        ledger = self._ledger
        if not ledger.look_at:
            return
        runs, ledger.look_at = ledger.look_at, {}
        few = self._anybody and len(self._lifecycle.tasks) <= MAX_OPEN_TASKS
        for run in runs.values():
            if len(ledger.unplaced) >= MAX_UNPLACED:
                return
            if self._idles(run) and (run.paused or (few and self._stranded(run))):
                ledger.leave_place(run)
                if run.keeps:
                    self._commit_builder.commit.kept.append((run.seq, run.keeps))
                else:
                    self._commit_builder.commit.unplaced.append(run.seq)
                data: dict[str, object] = {"reason": PAUSED if run.paused else NO_WORKER}
                change = Change("place", 0, "held", "given_back", 0, data)
                self._commit_builder.record(run.seq, change)

    def _idles(self, run: RunEntry) -> bool:
        """Whether it has a place and uses it for nothing at the moment."""
        return (
            run.placed
            and not run.in_flight
            and run.row.kind == "flow"
            and bool(run.tasks)
            and self._ledger.runs.get(run.seq) is run
        )

    def _stranded(self, run: RunEntry) -> bool:
        return all(self._lacks(task) for task in run.tasks.values())

    def _lacks(self, task: TaskEntry) -> bool:
        if task.state != TaskState.REQUESTED or task.unread:
            return False
        lane = task.lane or self._ledger.lane_of(task.run, task.node, task.pools)
        return isinstance(lane.worker_gate, WorkerGate) and lane.worker_gate.unfit


def _lanes(tasks: Iterable[TaskEntry]) -> Iterator[Lane[TaskEntry]]:
    return (task.lane for task in tasks if task.lane is not None)
