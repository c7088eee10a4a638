"""What happens when time passes: back-offs end, offers expire, waits and runs time out."""

from __future__ import annotations

from collections.abc import Iterator

from locktender.base.durations import spoken
from locktender.base.ids import run_of
from locktender.base.limits import DISPATCH_DEADLINE_US
from locktender.base.model import Failure, RunRow, WorkerRow
from locktender.base.states import RunState, TaskState
from locktender.base.text import counted
from locktender.kernel.deadlines import Until
from locktender.kernel.demand import (
    Demand,
    WaitingTasks,
    clock_of,
    demand_of,
    first_of,
    lacking,
)
from locktender.kernel.entries import RunEntry, TaskEntry
from locktender.kernel.gates.protocol import Lane
from locktender.kernel.gates.worker import Requirement, WorkerGate
from locktender.kernel.lifecycle import Lifecycle
from locktender.kernel.pauses import Pauses
from locktender.kernel.placement import HOLD, MAX_PAUSE_US
from locktender.kernel.timers import Kind
from locktender.kernel.waiting_runs import end_sleep

DISPATCH_RECHECK_US = 1_000_000
CHECKS_PER_DEADLINE = 8
"""How often within the shortest dispatch deadline of a run its tasks are looked through."""
SOON_US = CHECKS_PER_DEADLINE * 1_000_000
"""A deadline that is no longer gets its timer at the next sweep."""
FIRST_TASKS = 100
"""Tasks of a long lane whose clocks each sweep starts, the first in line; those behind share their lane's."""
STORED_AFTER_US = 60_000_000
"""A clock that a task shares with its lane is written when it has run for so long, for the next leader."""
MAX_CLOCKS_STORED = 2_000
"""Of those, per sweep: a commit must not grow with what waits."""
QUEUED: Kind = "queued_deadline"
"""The timer of a queued run that has a deadline."""
_OF_RUNS = ("run_deadline", QUEUED)
"""The subject of these timers is a run; of all others it is a task."""


def still_queued(row: RunRow, now: int) -> Failure:
    """What a run fails with whose deadline passed before it started."""
    waited = spoken((row.deadline_at or now) - row.queued_at)
    return Failure("deadline", f"deadline: the run was still queued after {waited}")


class Timeouts:
    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._timers = lifecycle.timers
        self._ledger = lifecycle.ledger
        self._commit_builder = lifecycle.commit_builder
        self._parked_since: dict[Lane[TaskEntry], int] = {}
        """Lanes that came to wait for a worker since the last sweep, and when."""
        self._lacking_since: dict[Lane[TaskEntry], int] = {}
        """Long lanes of which every task has lacked only a worker at each sweep, and since when."""
        self._swept_at = 0
        self._next_checks: dict[int, int] = {}
        """Runs → when they are looked through for tasks whose deadline is near."""

    def pass_time(self, now: int) -> list[RunRow]:
        """Returns queued runs whose own deadline has passed: they must not start any more."""
        self._ledger.now = now
        overdue: list[RunRow] = []
        for _, kind, subject, detail in self._timers.due(now):
            self._lifecycle.at_run = subject if kind in _OF_RUNS else run_of(subject)
            if kind == "run_deadline":
                run = self._ledger.runs.get(subject)
                if run is not None and run.row.deadline_at == detail:
                    self._run_deadline(run, now)
            elif kind == QUEUED:
                head = self._ledger.heads.get(subject)
                if head is not None and head.row.deadline_at == detail:
                    overdue.append(head.row)
            elif kind == "linger":
                self._ledger.end_lingering(subject, now)
            elif kind == "passed_over":
                self._ledger.end_pauses(now)
            elif (entry := self._lifecycle.tasks.get(subject)) is None:
                continue
            elif kind == "offer":
                if entry.state == TaskState.SCHEDULED and entry.token == detail:
                    self._commit_builder.withdrawals.append(
                        (entry.id, entry.token, TaskState.REQUESTED)
                    )
            elif entry.state != TaskState.REQUESTED:
                continue
            elif kind == "back_off":
                if entry.not_before == detail and not entry.in_line:
                    self._ledger.request(entry)
            elif kind == "sleep":
                if entry.not_before == detail:
                    end_sleep(self._lifecycle, entry, now)
            elif kind == "queue_timeout" and entry.requested_at == detail:
                self._queue_timeout(entry, now)
            elif kind == "dispatch_deadline" and entry.eligible_at == detail:
                self._dispatch_deadline(entry, now)
        self._lifecycle.at_run = 0
        return overdue

    def _run_deadline(self, run: RunEntry, now: int) -> None:
        if run.row.verdict is None:
            row = run.row
            after = spoken((row.deadline_at or now) - row.queued_at)
            began = spoken(row.started_at - row.queued_at)
            text = (
                f"deadline: the run did not end within {after} (it was queued for {began} of them)"
            )
            failure = Failure("deadline", text, retryable=False)
            self._lifecycle.stop(run, RunState.TIMED_OUT, failure, now)
            Pauses(self._ledger, self._commit_builder).lift(run, "deadline", now)
            self._lifecycle.close_if_finished(run, now)

    def _queue_timeout(self, entry: TaskEntry, now: int) -> None:
        limit = entry.queue_timeout(self._lifecycle.defaults) or 0
        gate = "sequential" if entry.aside else "back-off"
        if entry.run.paused:
            gate = "paused"
        if entry.lane is not None and entry.in_line:
            gate = self._in_the_way(entry, entry.lane, now)
        waited = spoken(now - entry.requested_at)
        text = f"queue_timeout: {gate} — waited {waited} of at most {spoken(limit)}"
        failure = Failure("queue_timeout", text, retryable=False)
        self._lifecycle.end_waiting(entry, entry.state, TaskState.FAILED, failure, now)

    def _in_the_way(self, entry: TaskEntry, lane: Lane[TaskEntry], now: int) -> str:
        """Asked anew: where a new leader has decided nothing yet, no lane is parked anywhere."""
        block = next(self._ledger.task_queue.blocks(lane, entry, now), None)
        return "its turn" if block is None else block.name

    def _dispatch_deadline(self, entry: TaskEntry, now: int) -> None:
        lane = entry.lane
        if entry.dispatch_deadline(self._lifecycle.defaults) == UNKNOWN_US:
            return
        if lane is not None and entry.in_line and self._lacks_worker(lane, entry, now):
            self._fail_undispatched(entry, lane, now)
            return
        # Another gate blocks it at the moment: only waiting for a worker counts.
        self._timers.set(
            now + DISPATCH_RECHECK_US, "dispatch_deadline", entry.id, entry.eligible_at
        )

    def _lacks_worker(self, lane: Lane[TaskEntry], entry: TaskEntry, now: int) -> bool:
        gate = lane.worker_gate
        if gate is None or lane.parked_at is gate:
            return gate is not None
        blocks = self._ledger.task_queue.blocks(lane, entry, now)
        return next((block.gate is gate for block in blocks), False)

    def move(self, by: int) -> None:
        """The clock was set by so much: since when lanes wait for a worker moves with it."""
        self._parked_since = {lane: since + by for lane, since in self._parked_since.items()}
        self._lacking_since = {lane: since + by for lane, since in self._lacking_since.items()}
        self._swept_at += by if self._swept_at else 0
        self._next_checks.clear()

    def left_unanswered(self, entry: TaskEntry, now: int) -> None:
        """Where the worker had the whole time of an offer and did not answer, it is passed over for a while."""
        if now - entry.scheduled_at >= self._lifecycle.defaults.offer_ttl_us:
            workers = self._ledger.workers
            until = workers.left_unanswered(entry.worker or "", entry.scheduled_at, now)
            if until is not None:
                self._timers.set(until, "passed_over", 0)

    def restore_silence(self, row: WorkerRow, now: int) -> None:
        """As the last leader counted it."""
        workers = self._ledger.workers
        worker = workers.by_id[row.id]
        # The clock may have been set back since: no pause is longer than the longest.
        until = min(row.asked_again_at, now + MAX_PAUSE_US)
        workers.pass_over(worker, row.unanswered, until)
        worker.passed_over = until > now
        self._timers.set(until, "passed_over", 0)

    def ends_undispatched(self, entry: TaskEntry, now: int) -> bool:
        """An offer of it came back unanswered: whether its dispatch deadline has passed, and it fails."""
        lane = entry.lane
        if (
            lane is None
            or not entry.eligible_at
            or now < entry.eligible_at + entry.dispatch_deadline(self._lifecycle.defaults)
        ):
            return False
        self._fail_undispatched(entry, lane, now)
        return True

    def _fail_undispatched(self, entry: TaskEntry, lane: Lane[TaskEntry], now: int) -> None:
        assert isinstance(lane.worker_gate, WorkerGate)  # noqa: S101
        requirement = lane.worker_gate.requirement
        worker_set = self._ledger.workers
        wanted = (
            ", ".join(f"{label}={value}" for label, value in requirement.needs)
            or f"step {requirement.step}"
        )
        matching = list(worker_set.matching(requirement))
        silent = sum(worker.unanswered > 0 for worker in matching)
        # A slot worker only holds slots for its own process and runs no tasks of others.
        workers = sum(HOLD not in worker.row.permits for worker in worker_set.by_id.values())
        text = (
            f"capacity: no worker with {wanted} for {spoken(now - entry.eligible_at)}"
            f" ({counted(workers, 'worker')}, {len(matching)} matching"
            f"{f', {silent} not answering' if silent else ''},"
            f" {counted(entry.offers, 'offer')} not accepted)"
        )
        if entry.dispatch_deadline(self._lifecycle.defaults) == DISPATCH_DEADLINE_US:
            text += (
                f"; {spoken(DISPATCH_DEADLINE_US)} is the default of dispatch_deadline:"
                " a step, flow, submission or server can set it"
            )
        failure = Failure("capacity", text, retryable=False)
        self._lifecycle.end_waiting(entry, entry.state, TaskState.FAILED, failure, now)

    def note_blocked(self, now: int) -> None:
        """After a decision: when lanes came to wait for a worker, so that the sweep dates clocks right."""
        for lane, _, block in self._ledger.task_queue.found_blocked:
            if block.gate is not lane.worker_gate:
                self._parked_since.pop(lane, None)
            elif lane not in self._parked_since:
                self._parked_since[lane] = now

    def sweep(self, now: int) -> Demand:
        """Once a second: start the dispatch clock of what lacks only a worker. Returns the demand."""
        waiting: dict[Requirement, WaitingTasks] = {}
        lacking_since: dict[Lane[TaskEntry], int] = {}
        for lane, count in lacking(self._ledger.task_queue):
            gate, head = lane.worker_gate, lane.head()
            if head is None or not isinstance(gate, WorkerGate):
                continue
            if not lane.gates and not lane.needs:
                # A map of 100,000 items is one lane: the clock of each is in its row already.
                _count(waiting, gate.requirement, clock_of(head) or now, count)
                continue
            first = count
            if FIRST_TASKS < count == len(lane):
                # All of them lack it alike: one instant serves those behind the first.
                first = FIRST_TASKS
                lacking_since[lane] = self._lacking_since.get(lane) or self._parked(lane, now)
            for entry in first_of(lane, first):
                if entry.eligible_at == 0 and entry.requested_at < now:
                    self._start_clock(entry, lane, now)
                _count(waiting, gate.requirement, entry.eligible_at or now)
            if first < count:
                _count(waiting, gate.requirement, now, count - first)
        self._lacking_since = lacking_since
        for entry in self._on_trial():
            if entry.lane is not None and isinstance(entry.lane.worker_gate, WorkerGate):
                _count(waiting, entry.lane.worker_gate.requirement, entry.eligible_at or now)
        self._watch_clocks(now)
        self._parked_since.clear()
        self._swept_at = now
        return demand_of(self._ledger.workers, waiting)

    def _parked(self, lane: Lane[TaskEntry], now: int) -> int:
        """Since when it waits for a worker, where the last sweep did not find it so."""
        return self._parked_since.get(lane, self._swept_at or now)

    def _start_clock(self, entry: TaskEntry, lane: Lane[TaskEntry], now: int) -> None:
        since = self._shared_clock(entry) or self._parked(lane, now)
        self._set_clock(entry, max(since, entry.requested_at, entry.not_before))

    def _shared_clock(self, entry: TaskEntry) -> int:
        """Since when it lacks only a worker, as all of its lane do; 0: it shares no clock."""
        since = 0 if entry.lane is None else self._lacking_since.get(entry.lane, 0)
        # It may stand in line for a shorter time than the others: its run was paused, or waited for a place.
        return since and max(since, entry.joined, entry.requested_at, entry.not_before)

    def _set_clock(self, entry: TaskEntry, since: int) -> None:
        entry.eligible_at = since
        self._commit_builder.save(entry)
        at = since + entry.dispatch_deadline(self._lifecycle.defaults)
        self._timers.set(at, "dispatch_deadline", entry.id, since)

    def _watch_clocks(self, now: int) -> None:
        """Clocks that tasks have by their rows or share with their lane: each gets its timer in good time.

        A run is looked through a few times within its shortest deadline, and no more often.
        """
        next_checks: dict[int, int] = {}
        left = MAX_CLOCKS_STORED
        for seq, run in self._ledger.runs.items():
            for node in run.files:
                first = run.first_in_file(node)
                if first is not None and first.in_line and not first.eligible_at:
                    lane = first.lane
                    if lane is not None and lane.parked_at is lane.worker_gate:
                        self._start_clock(first, lane, now)
            at = self._next_checks.get(seq)
            if at is None:
                at = run.row.started_at + self._check_interval(run)
            if at <= now:
                left = self._start_due_clocks(run, now, left)
                at = now + self._check_interval(run) if left > 0 else now
            next_checks[seq] = at
        self._next_checks = next_checks

    def _check_interval(self, run: RunEntry) -> int:
        return min(self._shortest_deadline(run) // CHECKS_PER_DEADLINE, STORED_AFTER_US)

    def _start_due_clocks(self, run: RunEntry, now: int, most: int) -> int:
        """Starts the timers of clocks, and stores those of lanes, `most` of them. How many more may be stored."""
        shortest = self._shortest_deadline(run)
        all_early = shortest > SOON_US and 2 * (now - run.row.started_at) < shortest
        for entry in run.tasks.values():
            if all_early and most <= 0:
                break
            if entry.eligible_at or entry.state != TaskState.REQUESTED or not entry.in_line:
                continue
            own = clock_of(entry)
            since = own or self._shared_clock(entry)
            if not since:
                continue
            waited, deadline = now - since, entry.dispatch_deadline(self._lifecycle.defaults)
            if deadline <= SOON_US or 2 * waited >= deadline:
                self._set_clock(entry, since)
            elif (
                not own
                and most > 0
                and waited >= min(STORED_AFTER_US, deadline // CHECKS_PER_DEADLINE)
            ):
                self._set_clock(entry, since)
                most -= 1
        return most

    def _shortest_deadline(self, run: RunEntry) -> int:
        of_run = (run.row.dispatch_deadline_us, run.graph.dispatch_deadline_us)
        whole = next((each for each in of_run if each is not None), None)
        if whole is None:
            whole = self._lifecycle.defaults.dispatch_deadline_us
        own = [node.dispatch_deadline_us for node in run.graph.nodes]
        return min([whole, *(each for each in own if each is not None)])

    def _on_trial(self) -> Iterator[TaskEntry]:
        """Tasks offered to workers that left earlier offers unanswered: they may well lack a worker still."""
        for worker in self._ledger.workers.by_id.values():
            entry = self._lifecycle.tasks.get(worker.trial) if worker.unanswered else None
            if (
                entry is not None
                and entry.state == TaskState.SCHEDULED
                and entry.worker == worker.id
            ):
                yield entry


def _count(
    waiting: dict[Requirement, WaitingTasks], requirement: Requirement, since: int, count: int = 1
) -> None:
    tasks, first = waiting.get(requirement, (0, since))
    waiting[requirement] = WaitingTasks(tasks + count, min(first, since))


UNKNOWN_US = 0
"""Stands for the dispatch deadline where only the leader knows that setting."""


def wait_limits(lifecycle: Lifecycle, entry: TaskEntry) -> list[Until]:
    """What ends the wait of a requested task. The clock for a worker runs once all other gates were passed."""
    found: list[Until] = []
    timeout, deadline = (
        entry.queue_timeout(lifecycle.defaults),
        entry.dispatch_deadline(lifecycle.defaults),
    )
    if timeout is not None:
        found.append(Until("queue_timeout", entry.requested_at + timeout))
    since = clock_of(entry)
    if since and deadline != UNKNOWN_US:
        found.append(Until("capacity", since + deadline))
    elif since:
        # Another process leads: its own default counts, and is not stored.
        found.append(Until("default_capacity", since + DISPATCH_DEADLINE_US))
    return found
