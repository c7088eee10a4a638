"""The scheduler: all decisions of a leader, without I/O. Facts in, one commit out.

The leader (or the simulator, with a virtual clock) reports what happened: ended attempts, queued runs,
workers, limits. `cycle` returns one commit and the actions to take after it is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from locktender.base.changes import End, Order, TaskRow
from locktender.base.commits import RunEnd, RunStart
from locktender.base.events import NO_RUN, Change
from locktender.base.graph import Graph
from locktender.base.limits import Limits
from locktender.base.model import Failure, LimitRow, Mail, RunRow, WorkerRow
from locktender.base.states import HOLDING, RunState, TaskState
from locktender.kernel.commit_builder import CommitBuilder, Cycle
from locktender.kernel.demand import Demand
from locktender.kernel.entries import QueuedRun, TaskEntry
from locktender.kernel.grants import Calls, GrantWriter, write_sets
from locktender.kernel.held_runs import HeldRuns, check_failure
from locktender.kernel.ledger import Ledger
from locktender.kernel.lifecycle import Defaults, Lifecycle, failure_of, short
from locktender.kernel.map_slices import MapSlices
from locktender.kernel.pauses import Pauses
from locktender.kernel.places import Places
from locktender.kernel.rebuild import start_again
from locktender.kernel.timeouts import QUEUED, Timeouts, still_queued
from locktender.kernel.upkeep import forget_stale_timers, forget_unused_gates
from locktender.kernel.wait_times import add_waits, record_waits
from locktender.kernel.waiting_runs import WaitsOfRuns, deliver_all

_dump = msgspec.json.Encoder().encode
MAX_NEW_TASKS = 10_000
"""Of one cycle: behind the run that exceeds it none starts. A cycle may not outlast the leader's lease."""


class Scheduler:
    def __init__(
        self, limits: Limits, term: int, owner: str, defaults: Defaults | None = None, seed: int = 0
    ) -> None:
        self.term = term
        self.owner = owner
        self.ledger: Ledger = Ledger(limits)
        self.commit_builder: CommitBuilder = CommitBuilder(term, f"leader:{owner}")
        settings = defaults or Defaults()
        self.lifecycle: Lifecycle = Lifecycle(self.ledger, self.commit_builder, settings, seed)
        self.timeouts: Timeouts = Timeouts(self.lifecycle)
        self.held: HeldRuns = HeldRuns(self.lifecycle)
        self.graphs: dict[str, Graph] = {}
        self.stale_facts: int = 0
        self._grants = GrantWriter(term, self.lifecycle)
        self._places, self._waits = Places(self.lifecycle), WaitsOfRuns(self.lifecycle)
        self._slices = MapSlices(self.lifecycle)
        self._pauses = Pauses(self.ledger, self.commit_builder)
        self.calls: Calls = Calls(self.lifecycle)
        self._swept = False
        self._rules: dict[tuple[str, str], bytes] = {}
        self._retried: dict[int, list[TaskRow]] = {}
        self._ended_queued: dict[int, int | None] = {}
        """Queued runs ended by the commit to come, and what they waited for: the queue still shows them."""
        self._reprioritised: dict[int, int] = {}
        """Decided in this cycle: rows that are read meanwhile do not know yet."""

    # -- beginning a term --------------------------------------------------------------------------

    def begin(self, rows: Sequence[LimitRow]) -> None:
        """Records every limit in force as the first events of a term."""
        self.ledger.task_queue.reservations_changed = True
        self.set_limits(self.ledger.limits, rows)

    # -- facts: limits and workers -----------------------------------------------------------------

    def set_limits(self, limits: Limits, rows: Sequence[LimitRow], now: int = 0) -> None:
        """In force from this cycle on: the event stands before what is decided under it."""
        rules: dict[tuple[str, str], bytes] = {}
        for row in rows:
            if row.effective is not None:
                rules[row.kind, row.name] = row.effective
        for kind, name in sorted(self._rules.keys() | rules.keys()):
            rule = rules.get((kind, name))
            if rule != self._rules.get((kind, name)):
                value = None if rule is None else msgspec.json.decode(rule)
                data = {"kind": kind, "name": name, "rule": value}
                self.commit_builder.record(NO_RUN, Change("limit", 0, "", "in_force", 0, data))
        self._rules = rules
        self.ledger.default_runs = ("runs", "") not in rules
        before = self.ledger.limits
        if limits != before:
            self.commit_builder.commit.buckets += self.ledger.set_limits(limits, now)
            self._pauses.follow(before, now)

    def put_worker(self, row: WorkerRow, *, local: bool = False) -> None:
        known = self.ledger.workers.by_id.get(row.id)
        before = None if known is None else (known.row.permits, known.row.total)
        self.ledger.put_worker(row, local=local)
        if before != (row.permits, row.total):
            data = {
                "worker": row.id,
                "permits": row.permits,
                "total": row.total,
                "labels": row.labels,
            }
            after = "joined" if known is None else "changed"
            self.commit_builder.record(NO_RUN, Change("worker", 0, "", after, 0, data))

    def order_drain(self, worker: str, request: int, kind: str) -> None:
        """Orders the worker to drain or to take tasks again; from now on tasks are placed accordingly."""
        if (known := self.ledger.workers.by_id.get(worker)) is None:
            return
        if not known.local and not known.row.ending:
            self.ledger.put_worker(msgspec.structs.replace(known.row, draining=kind == "drain"))
        self.commit_builder.commit.orders.append(Order(worker, -request, 0, kind))

    def worker_left(self, worker: str, reason: str) -> None:
        """A worker left in good order: it holds nothing any more."""
        if self.ledger.workers.drop(worker) is not None:
            data = {"worker": worker, "reason": reason}
            self.commit_builder.record(NO_RUN, Change("worker", 0, "", "left", 0, data))

    def worker_lost(
        self,
        worker: str,
        reason: str,
        abandoned: Iterable[tuple[int, int]],
        withdrawn: Iterable[tuple[int, int]],
        now: int,
        lease_until: int | None = None,
        handed_back: Iterable[tuple[int, int]] = (),
    ) -> None:
        """The store declared a worker dead: its rows are written already, what follows from them is not.

        `handed_back`: tasks of its drain list. No attempt is charged for them, but their slots come free no
        earlier than those of abandoned tasks: their bodies ended with the worker, not before.
        `lease_until`: as its row had it in the end. What is known here may be as old as the worker.
        """
        if lease_until is None:
            known = self.ledger.workers.by_id.get(worker)
            lease_until = now if known is None else known.row.lease_until
        # A process that died is known to be dead before its lease has passed.
        dead_since = min(lease_until, now)
        for entry in self._held(abandoned):
            self._release_lost(entry, dead_since, now)
            entry.abandons += 1
            self.lifecycle.ask_again(entry, TaskState.ABANDONED, now, f"worker {worker} was lost")
        for entry in self._held(handed_back):
            self._release_lost(entry, dead_since, now)
            self.lifecycle.ask_again(
                entry, TaskState.HANDED_BACK, now, f"worker {worker} was drained"
            )
        for task, until in self.held.lost((*abandoned, *handed_back), dead_since, now):
            self.lifecycle.timers.set(until, "linger", task)
        self.withdrawn(withdrawn, TaskState.REQUESTED, now)
        self.ledger.workers.drop(worker)
        data = {"worker": worker, "reason": reason}
        self.commit_builder.record(NO_RUN, Change("worker", 0, "", "lost", 0, data))

    def _held(self, attempts: Iterable[tuple[int, int]]) -> Iterator[TaskEntry]:
        """Entries of these attempts, where the attempt still holds its task."""
        for task, token in attempts:
            entry = self.lifecycle.tasks.get(task)
            if entry is not None and entry.token == token and entry.state in HOLDING:
                self.lifecycle.at_run = entry.run.seq
                yield entry
        self.lifecycle.at_run = 0

    def _release_lost(self, entry: TaskEntry, dead_since: int, now: int) -> None:
        """Slots of a pool with a lease of its own stay taken until that has passed as well."""
        for until in self.ledger.release_lost(entry, dead_since, now):
            self.lifecycle.timers.set(until, "linger", entry.id)

    # -- facts: the queue --------------------------------------------------------------------------

    def put_head(self, row: RunRow, rows: list[TaskRow] | None = None) -> None:
        """A queued run whose turn may come. `rows`: its tasks, if it was retried."""
        if row.seq in self._ended_queued or row.seq in self._waits.taken_up:
            return
        if rows:
            self._retried[row.seq] = rows
        still = self._still_awaited(row.waits_for)
        if still != row.waits_for:
            # What it waited for ends with the commit to come: the row that was read does not know yet.
            row = msgspec.structs.replace(row, waits_for=still)
        wanted = self._reprioritised.get(row.seq)
        if wanted is not None and wanted != row.priority:
            row = msgspec.structs.replace(row, priority=wanted)
        if row.deadline_at is not None and row.seq not in self.ledger.heads:
            self.lifecycle.timers.set(row.deadline_at, QUEUED, row.seq, row.deadline_at)
        self.ledger.put_head(row)
        self._pauses.read(row)

    def end_queued(self, row: RunRow, state: RunState, failure: Failure, now: int) -> None:
        """A queued or waiting run ends without having started: cancelled, or past its deadline."""
        if row.seq in self.ledger.runs or row.seq in self._ended_queued:
            return
        data: dict[str, object] = {"error": short(failure)}
        add_waits(self.ledger, self.ledger.drop_head(row.seq, now), data, now)
        self._retried.pop(row.seq, None)
        change = Change("run", 0, row.state, state, 0, data)
        if row.state == RunState.WAITING:
            self.commit_builder.commit.ended_waiting.append(row.seq)
        self.commit_builder.record(row.seq, change)
        behind = self._ended_queued[row.seq] = self._still_awaited(row.waits_for)
        self.commit_builder.end_run(RunEnd(row.seq, state, None, _dump(failure), now))
        self.ledger.ended(row.seq, behind)

    def take_up(self, row: RunRow, rows: list[TaskRow], now: int) -> None:
        """A run that has begun and waits, or is queued again, is to be ended: it executes without a place."""
        if row.seq not in self.ledger.runs and row.seq not in self._waits.taken_up:
            self.ledger.drop_head(row.seq)
            self._retried.pop(row.seq, None)
            self._waits.take_up(row, rows, self.graphs[row.graph], now)

    def _still_awaited(self, run: int | None) -> int | None:
        """Along the chain of replacements, the first that does not end with the commit to come."""
        while run is not None and (
            run in self._ended_queued or run in self.commit_builder.ended_runs
        ):
            run = self._ended_queued.get(run)
        return run

    def reprioritise(self, row: RunRow, priority: int) -> None:
        """A queued run moves in its line."""
        self.commit_builder.commit.reprioritised.append((row.seq, priority))
        self._reprioritised[row.seq] = priority
        if row.seq in self.ledger.heads:
            self.ledger.put_head(msgspec.structs.replace(row, priority=priority))

    def cancel_run(self, seq: int, now: int, reason: str = "", *, force: bool = False) -> None:
        """An executing run is to end cancelled; by `force` it does not wait for clean-up steps either.

        Asked twice without force nothing more happens: a request may be repeated.
        """
        failure = Failure("cancelled", reason or "cancelled on request", retryable=False)
        if seq in self.held.rows:
            self.held.end(seq, RunState.CANCELLED, failure, now)
            return
        run = self.ledger.runs.get(seq)
        if run is None:
            return
        self.lifecycle.at_run = seq
        if run.row.state != RunState.CANCELLING:
            self.lifecycle.stop(run, RunState.CANCELLED, failure, now)
            self._pauses.lift(run, "cancelled", now)
        if force and seq in self.lifecycle.run_graphs:
            self.lifecycle.wind_down(run, now, force=True)
        self.lifecycle.close_if_finished(run, now)
        self.lifecycle.at_run = 0

    # -- facts: attempts ---------------------------------------------------------------------------

    def accepted(self, task: int, token: int, started_at: int) -> None:
        """A worker in another process took an offer: the row is written."""
        entry = self.lifecycle.tasks.get(task)
        if entry is None or entry.token != token or entry.state != TaskState.SCHEDULED:
            self.held.accepted(task, token)
            return
        self.ledger.accepted(entry)
        entry.state = TaskState.RUNNING
        entry.attempt += 1
        entry.started_at = started_at
        if entry.cancelling:
            # The cancel came while the offer was out and lost the race: now it is the worker's to carry out.
            self.lifecycle.order_stop(entry, "cancelled")

    def withdrawn(self, tasks: Iterable[tuple[int, int]], to: str, now: int) -> None:
        """Offers the store took back (or cancelled) before a worker accepted them: the rows are written."""
        for task, token in tasks:
            entry = self.lifecycle.tasks.get(task)
            if entry is None or entry.token != token or entry.state != TaskState.SCHEDULED:
                self.held.ended(task, token, now)
                continue
            self.lifecycle.at_run = entry.run.seq
            self.ledger.release(entry)
            if to == TaskState.REQUESTED:
                self.timeouts.left_unanswered(entry, now)
            entry.worker, entry.token = None, 0
            entry.state = to
            if to == TaskState.CANCELLED:
                self.lifecycle.drop(entry, now)
            elif entry.cancelling:
                # Both a cancel and the offer's end were on their way: it must not be offered again.
                self.lifecycle.end_waiting(entry, to, TaskState.CANCELLED, None, now)
            elif not self.timeouts.ends_undispatched(entry, now):
                self.lifecycle.stand_in_line(entry, now)
        self.lifecycle.at_run = 0

    def ended(
        self,
        end: End,
        now: int,
        *,
        local: bool,
        value: bytes | None = None,
        at: int | None = None,
    ) -> bool:
        """An attempt ended. `local`: by the worker in this process, so that this commit writes it too.

        `value` is what a reference in its output stands for, where the graph looks into it. `at`: when it
        ended, if that was before this cycle's `now`.
        False: stale — not the attempt that holds the task now; nothing changes.
        """
        task, token, state, output, error, reason, _ = end
        entry = self.lifecycle.tasks.get(task)
        if entry is None or entry.token != token or entry.state not in HOLDING:
            if self.held.ended(task, token, now):
                return True
            self.stale_facts += 1
            return False
        self.ledger.now, self.lifecycle.at_run = now, entry.run.seq
        if error is not None:
            check_failure(error)
        before = entry.state
        if state == TaskState.HANDED_BACK and error is not None:
            # For a worker that ended with the body inside: as if it had been lost at that moment.
            self._release_lost(entry, at or now, now)
        else:
            self.ledger.release(entry, at or now)
        if local:
            self.commit_builder.commit.own_ends = True
            self.lifecycle.record_end(entry, before, state, error, reason)
        if state == TaskState.COMPLETED:
            if local:
                self.commit_builder.complete(entry, output, now)
            if entry.cache_key is not None and output is not None:
                self.lifecycle.cache.keep(entry, output, now)
            self.lifecycle.complete(entry, output if value is None else value, now)
        elif state == TaskState.CANCELLED:
            if local:
                self.commit_builder.save_end(entry, state, error)
            self.lifecycle.drop(entry, now)
        elif state == TaskState.HANDED_BACK:
            declined = before == TaskState.SCHEDULED
            if declined:
                self.ledger.workers.clear_silence(entry.worker or "")
            self.lifecycle.ask_again(entry, state, now, reason, declined=declined)
        else:
            entry.state = state
            if local:
                self.commit_builder.save_end(entry, state, error)
            self.lifecycle.judge(entry, failure_of(error), now)
        self.lifecycle.at_run = 0
        return True

    def put_mail(self, mails: Iterable[Mail], now: int) -> None:
        """What was sent to runs that wait for events: to each wait the first event that it can take."""
        deliver_all(self.lifecycle, mails, now)
        self.lifecycle.at_run = 0

    # -- the cycle ---------------------------------------------------------------------------------

    def sweep(self, now: int) -> Demand:
        """Once a second: the clocks of what lacks only a worker. Returns the demand for workers."""
        self._swept = True
        forget_unused_gates(self.ledger, now)
        self.ledger.task_queue.reconsider()
        forget_stale_timers(self.lifecycle)
        return self.timeouts.sweep(now)

    def cycle(self, now: int) -> Cycle:
        """Decide, and hand over everything since the last cycle as one commit."""
        for row in self.timeouts.pass_time(now):
            if row.started_at:
                self.take_up(row, self._retried.pop(row.seq, []), now)
                continue
            self.end_queued(row, RunState.TIMED_OUT, still_queued(row, now), now)
        self.held.pass_time(now)
        self._places.follow_workers()
        self._slices.begin_cycle(now)
        self.commit_builder.begin_grants()
        budget = self.ledger.limits.max_starts_per_cycle
        for head in self.ledger.decide_runs(now, budget):
            self.lifecycle.at_run = head.row.seq
            if head.again is None:
                self._start_run(head, now)
            else:
                self._places.take_again(head, head.again, now)
            self.lifecycle.at_run = 0
            if self.commit_builder.new_tasks > MAX_NEW_TASKS:
                self.ledger.run_queue.end_cycle()
        starts: list[TaskEntry] = []
        for entry, worker, offered in self.ledger.decide_tasks(now, budget):
            self.lifecycle.at_run = entry.run.seq
            self._grants.grant(entry, worker, now, offered=offered)
            if self.lifecycle.expanding:
                self._slices.ask_if_none_waits(entry.run, entry.node, now)
            self.lifecycle.at_run = 0
            if not offered:
                starts.append(entry)
        self._places.give_back()
        self._waits.let_wait(now)
        self.lifecycle.mail.end_cycle()
        self.lifecycle.cache.end_cycle(self.commit_builder)
        return self._hand_over(starts, now)

    def _start_run(self, head: QueuedRun, now: int) -> None:
        row = head.row
        self.commit_builder.commit.runs_started.append(RunStart(row.seq, row.started_at or now))
        data: dict[str, object] = {"priority": row.priority}
        add_waits(self.ledger, head, data, now)
        if head.lane is not None and head.lane.fair is not None:
            # Right after its start the present is the turn it took: `why` reads the clocks from here.
            data |= {"fair": head.lane.fair, "turn": self.ledger.run_queue.turns.present}
        change = Change("run", 0, RunState.QUEUED, RunState.RUNNING, 0, data)
        self.commit_builder.record(row.seq, change)
        row = msgspec.structs.replace(row, state=RunState.RUNNING, started_at=row.started_at or now)
        if head.row.started_at:
            self._waits.resume(row, self._retried.pop(row.seq, []), self.graphs[row.graph], now)
            return
        run = self.ledger.add_run(row, self.graphs[row.graph], charged=True)
        if row.generation:
            # An earlier try may have ended without its place, held or by another leader.
            self.commit_builder.commit.placed.append(row.seq)
        if rows := self._retried.pop(row.seq, ()):
            start_again(self.lifecycle, run, rows, now)
        else:
            self.lifecycle.apply(run, self.lifecycle.enter(run).begin(), now)

    def _hand_over(self, starts: list[TaskEntry], now: int) -> Cycle:
        builder, queue = self.commit_builder, self.ledger.task_queue
        found = record_waits(self.ledger, builder, now)
        self.timeouts.note_blocked(now)
        write_sets(self.lifecycle, swept=self._swept)
        self._swept = False
        # Each grant told how full its bucket is then: the last one is how it is now.
        buckets = builder.commit.buckets
        builder.commit.buckets = list({bucket.pool: bucket for bucket in buckets}.values())
        self._ended_queued.clear()
        self._reprioritised.clear()
        self.lifecycle.budget.renew()
        stops, withdrawals = builder.stops, builder.withdrawals
        wakes = [queue.next_wake(), self.ledger.run_queue.next_wake(), self.ledger.wait_book.due]
        wakes += [self.lifecycle.timers.next(), self.held.timers.next()]
        wakes.append(self._slices.next_wake())
        more = queue.unfinished or self.ledger.run_queue.unfinished or self._slices.unfinished(now)
        return Cycle(
            builder.close(now),
            starts,
            stops,
            withdrawals,
            unfinished=bool(more),
            next_wake=min((at for at in wakes if at is not None), default=None),
            found_waiting=found,
            waits=self.ledger.wait_book.take_ended(),
        )
