"""The life of runs and tasks under one leader, written to the commit: request, retry, skip, stop, close."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from locktender.base import codec, ids
from locktender.base.changes import Order, TaskRow
from locktender.base.commits import NodeInput, RunEnd, RunMark
from locktender.base.errors import LocktenderError
from locktender.base.events import Change
from locktender.base.model import Failure
from locktender.base.states import NEW, RunState, TaskState
from locktender.kernel import render
from locktender.kernel.commit_builder import CommitBuilder
from locktender.kernel.dag import RunGraph
from locktender.kernel.entries import RunEntry, TaskEntry
from locktender.kernel.expansion import ItemBudget
from locktender.kernel.ledger import Ledger
from locktender.kernel.mailboxes import Mailboxes
from locktender.kernel.named_runs import AFTER_TRACE, go_on_traced
from locktender.kernel.node_state import (
    NOTHING,
    PASSED,
    TAINTED,
    UNNEEDED,
    Advance,
    Skipped,
    TaskRequest,
    Wiring,
    cleans_up,
)
from locktender.kernel.result_cache import ResultCache
from locktender.kernel.timers import Defaults, Timers, delay
from locktender.kernel.wait_times import with_waits

_dump = msgspec.json.Encoder().encode
_read_failure = msgspec.json.Decoder(Failure).decode


def failure_of(error: bytes | None) -> Failure:
    return Failure("unknown", "no error was given") if error is None else _read_failure(error)


def short(failure: Failure) -> dict[str, str]:
    """A failure as events carry it."""
    return {"type": failure.type, "message": failure.message[:500]}


def _is_ended_with_run(entry: TaskEntry) -> bool:
    """Whether the run is being ended and this task with it: it is not a clean-up."""
    verdict = entry.run.row.verdict
    return verdict is not None and not cleans_up(entry.spec, failed=verdict == RunState.FAILED)


class Lifecycle:
    def __init__(
        self, ledger: Ledger, commit_builder: CommitBuilder, defaults: Defaults, seed: int
    ) -> None:
        self.ledger = ledger
        self.commit_builder = commit_builder
        self.defaults = defaults
        self.seed = seed
        self.timers: Timers = Timers()
        self.run_graphs: dict[int, RunGraph] = {}
        self._wiring = Wiring()
        self.tasks: dict[int, TaskEntry] = {}
        """Tasks that are not terminal, by id."""
        self.budget: ItemBudget = ItemBudget(defaults.items_per_cycle)
        self.expanding: dict[int, tuple[RunEntry, int]] = {}
        """Runs with maps of which not all items were asked for, and since when; in the order of their turns."""
        self.asleep: dict[int, RunEntry] = {}
        """Runs with a sleep that is not over."""
        self.mail: Mailboxes = Mailboxes()
        self.cache: ResultCache = ResultCache()
        self.maybe_waiting: dict[int, RunEntry] = {}
        """Those of them of which something has changed: perhaps nothing is left but sleeps."""
        self.at_run: int = 0
        """The run that is being worked on: if that raises, it is the one to hold. 0: none in particular."""

    # -- on the way --------------------------------------------------------------------------------

    def enter(self, run: RunEntry) -> RunGraph:
        row = run.row
        params, consts = render.split_object(row.params), codec.split_list(row.consts)
        graph = RunGraph(run.graph, params, consts, row.tags, self.budget, self._wiring)
        self.run_graphs[run.seq] = graph
        if row.deadline_at is not None:
            self.timers.set(row.deadline_at, "run_deadline", row.seq, row.deadline_at)
        return graph

    def apply(self, run: RunEntry, advance: Advance, now: int) -> None:
        """Carry out what follows in `run`: request, skip, close, and end it when nothing is left."""
        if (graph := self.run_graphs.get(run.seq)) is not None and graph.backlog.maps:
            self.expanding.setdefault(run.seq, (run, now))
        if advance is NOTHING:
            if not run.tasks:
                self.close_if_finished(run, now)
            return
        for node, common in advance.shared:
            self.commit_builder.commit.node_inputs.append(NodeInput(run.seq, node, common))
        for node, idx, ordinal in advance.reserved:
            row = self.commit_builder.reserve(run.seq, node, idx, ordinal, now)
            run.pending[row.id] = row
            if not run.row.generation:
                run.opened[node] = now
        for skipped in advance.skips:
            self._skip_new(run, skipped, now)
        for asked in advance.requests:
            self._request(run, asked, now)
        # A request may have failed at once, and ended the run.
        if advance.closing and run.seq in self.run_graphs:
            self._close_maps(run, advance.closing, now)
        if advance.stop and run.row.verdict is None and run.seq in self.run_graphs:
            failure = self.run_graphs[run.seq].verdict()[2] or Failure("failed", "a task failed")
            self.stop(run, "failed", failure, now)
        self.close_if_finished(run, now)

    def _request(self, run: RunEntry, asked: TaskRequest, now: int) -> None:
        task = run.seq << ids.TASK_BITS | asked.ordinal
        spec = run.graph.nodes[asked.node]
        entry = TaskEntry(task, run, asked.node, asked.idx, spec, asked.input, now)
        before = NEW
        if run.pending and (old := run.pending.pop(task, None)) is not None:
            before, entry.attempt = TaskState.PENDING, old.attempt
            self.commit_builder.add_again(old)
        data = {"node": asked.node, "index": asked.idx, "attempt": entry.attempt}
        self.commit_builder.add(entry, before, asked.input, data)
        self.tasks[task] = entry
        self.ledger.enter(entry)
        try:
            if spec.wait is not None:
                instant = self.mail.begin(entry, asked.input, now, self.commit_builder.commit)
                entry.not_before = data["not_before"] = instant
            if spec.pools or spec.cache is not None:
                scope = self.run_graphs[run.seq].scope
                entry.pools = render.pool_needs(spec, scope, asked.item)
                if spec.cache is not None:
                    self.cache.prepare(entry, scope, asked.item)
        except (LocktenderError, LookupError) as error:
            failure = Failure("flow_input", str(error), retryable=False)
            self.end_waiting(entry, entry.state, TaskState.FAILED, failure, now)
            return
        self.stand_in_line(entry, now)

    def stand_in_line(self, entry: TaskEntry, now: int) -> None:
        """To the gates, at once or when its back-off is over; the clocks of waiting run from here."""
        self.ledger.now = now
        if entry.spec.wait is not None:
            # One that begins now is not over in this cycle: its row is new with it.
            first = now + 1 if entry.requested_at >= now else now
            self.timers.set(max(entry.not_before, first), "sleep", entry.id, entry.not_before)
            self.asleep[entry.run.seq] = self.maybe_waiting[entry.run.seq] = entry.run
            self.mail.want(entry)
            return
        if entry.unread:
            self.cache.want(entry)
            return
        if entry.not_before > now:
            self.timers.set(entry.not_before, "back_off", entry.id, entry.not_before)
        else:
            self.ledger.request(entry)
        limit = entry.queue_timeout(self.defaults)
        if limit is not None:
            self.timers.set(
                entry.requested_at + limit, "queue_timeout", entry.id, entry.requested_at
            )
        if entry.eligible_at:
            at = entry.eligible_at + entry.dispatch_deadline(self.defaults)
            self.timers.set(at, "dispatch_deadline", entry.id, entry.eligible_at)

    def watch_offer(self, entry: TaskEntry, now: int) -> None:
        """An offer is out: it is taken back unanswered after `offer_ttl`, or at the task's dispatch deadline."""
        at = now + self.defaults.offer_ttl_us
        if entry.eligible_at:
            deadline = entry.eligible_at + entry.dispatch_deadline(self.defaults)
            if now < deadline < at:
                at = deadline
        self.timers.set_offer(at, entry.id, entry.token)

    def _skip_new(
        self, run: RunEntry, skipped: Skipped, now: int, *, unneeded: bool = False
    ) -> None:
        task = ids.task_id(run.seq, skipped.ordinal)
        data: dict[str, object] = {"node": skipped.node, "index": skipped.idx}
        data["reason"] = skipped.reason
        if unneeded:
            data["unneeded"] = True
        if skipped.passed:
            data["passed"] = True
        kind = TAINTED if skipped.tainted else PASSED if skipped.passed else "condition"
        error = _dump(Failure(kind, skipped.reason, retryable=False))
        row = TaskRow(task, skipped.node, skipped.idx, TaskState.SKIPPED, error=error)
        row = row._replace(requested_at=now, ended_at=now)
        if run.pending and (old := run.pending.pop(task, None)) is not None:
            before = TaskState.PENDING
            self.commit_builder.add_again(row._replace(attempt=old.attempt))
        else:
            before = NEW
            self.commit_builder.commit.tasks_new.append(row)
        self.commit_builder.record(
            run.seq, Change("task", task, before, TaskState.SKIPPED, 0, data)
        )

    def _skip_unneeded(self, run: RunEntry, now: int) -> None:
        """Rows of earlier tries that this one had no use for: its map has fewer items, or items at last."""
        for row in list(run.pending.values()):
            ordinal = ids.ordinal_of(row.id)
            unneeded = Skipped(row.node, row.idx, ordinal, UNNEEDED, tainted=False)
            self._skip_new(run, unneeded, now, unneeded=True)

    def _close_maps(self, run: RunEntry, nodes: Sequence[int], now: int) -> None:
        """An item failed and its map stops there: items that wait are skipped, items in flight finish."""
        graph = self.run_graphs[run.seq]
        closing = set(nodes)
        waiting = [
            entry
            for entry in run.tasks.values()
            if entry.node in closing and entry.state == TaskState.REQUESTED
        ]
        for entry in waiting:
            self._leave_line(entry, TaskState.SKIPPED, "another item failed")
            self.apply(run, graph.dropped(entry.node, entry.idx), now)

    # -- attempts that ended -----------------------------------------------------------------------

    def retries(self, entry: TaskEntry, failure: Failure) -> bool:
        """Whether another attempt follows a failed one."""
        if not failure.retryable or _is_ended_with_run(entry):
            return False
        step = self.run_graphs[entry.run.seq].steps[entry.node]
        return entry.tries < entry.spec.retry.retries and not step.closed

    def judge(self, entry: TaskEntry, failure: Failure, now: int) -> None:
        """After a failed attempt: another one, or the end of the task."""
        if self.retries(entry, failure):
            self.retry(entry, failure, now)
        else:
            self.fail(entry, failure, now)

    def retry(self, entry: TaskEntry, failure: Failure, now: int) -> None:
        before = entry.state
        entry.tries += 1
        wait = failure.retry_after_us
        if wait is None:
            wait = delay(entry.spec.retry, entry.tries, entry.id, self.seed)
        self._request_again(entry, before, now, now + wait, f"retry {entry.tries}")

    def ask_again(
        self, entry: TaskEntry, before: str, now: int, reason: str, *, declined: bool = False
    ) -> None:
        """After an attempt that counts against nobody (handed back) or against the workers (abandoned).

        `declined`: it was only offered, and goes on waiting as if it had not been.
        """
        run = entry.run
        if before == TaskState.ABANDONED and entry.abandons >= entry.spec.max_abandons:
            text = f"worker_lost: {entry.abandons} workers died while they ran this task; last: {reason}"
            failure = Failure("worker_lost", text, retryable=False)
            self.end_waiting(entry, before, TaskState.FAILED, failure, now)
        elif _is_ended_with_run(entry) or self.run_graphs[run.seq].steps[entry.node].closed:
            self.end_waiting(entry, before, TaskState.CANCELLED, None, now)
        else:
            self._request_again(entry, before, now, 0, reason, declined=declined)

    def _request_again(
        self,
        entry: TaskEntry,
        before: str,
        now: int,
        not_before: int,
        reason: str,
        *,
        declined: bool = False,
    ) -> None:
        entry.state = TaskState.REQUESTED
        if not declined:
            entry.requested_at = now
            entry.not_before = not_before
            entry.eligible_at = 0
            # Those before were answered in the end: what counts is who declined this attempt.
            entry.offers = 0
        entry.token, entry.worker, entry.waits = 0, None, None
        entry.cancelling = False
        data: dict[str, object] = {"node": entry.node, "index": entry.idx, "attempt": entry.attempt}
        if not_before:
            data["not_before"] = not_before
        if reason:
            data["reason"] = reason
        self.commit_builder.record(
            entry.run.seq, Change("task", entry.id, before, TaskState.REQUESTED, 0, data)
        )
        self.commit_builder.save_requested(entry, data)
        self.stand_in_line(entry, now)

    def end_waiting(
        self, entry: TaskEntry, before: str, state: TaskState, failure: Failure | None, now: int
    ) -> None:
        """The leader ends a task that no worker has."""
        if before == TaskState.REQUESTED:
            self.ledger.withdraw_request(entry)
        data: dict[str, object] = {"reason": "the run is ending"}
        error = None if failure is None else _dump(failure)
        if failure is not None:
            data = {"error": short(failure), "retryable": failure.retryable}
        change = Change("task", entry.id, before, state, 0, with_waits(self.ledger, entry, data))
        self.commit_builder.record(entry.run.seq, change)
        self.commit_builder.save_end(entry, state, error)
        if failure is None:
            self.drop(entry, now)
        else:
            self.fail(entry, failure, now)

    def _leave_line(self, entry: TaskEntry, state: TaskState, reason: str) -> None:
        """A waiting task ends without having been started; its run is advanced by the caller."""
        self.ledger.withdraw_request(entry)
        told = with_waits(self.ledger, entry, {"reason": reason})
        change = Change("task", entry.id, entry.state, state, 0, told)
        self.commit_builder.record(entry.run.seq, change)
        self.commit_builder.save_end(entry, state, None)
        self._forget(entry)

    def complete(self, entry: TaskEntry, output: bytes | None, now: int) -> None:
        run = entry.run
        entry.state = TaskState.COMPLETED
        self._forget(entry)
        self.apply(run, self.run_graphs[run.seq].completed(entry.node, entry.idx, output), now)

    def fail(self, entry: TaskEntry, failure: Failure, now: int) -> None:
        run = entry.run
        self._forget(entry)
        self.apply(run, self.run_graphs[run.seq].failed(entry.node, entry.idx, failure), now)

    def drop(self, entry: TaskEntry, now: int) -> None:
        run = entry.run
        self._forget(entry)
        self.apply(run, self.run_graphs[run.seq].dropped(entry.node, entry.idx), now)

    def _forget(self, entry: TaskEntry) -> None:
        self.ledger.forget(entry)
        self.tasks.pop(entry.id, None)
        if self.asleep and entry.run.seq in self.asleep:
            self.maybe_waiting[entry.run.seq] = entry.run
            self.mail.end(entry, self.commit_builder.commit)

    def record_end(
        self, entry: TaskEntry, before: str, state: str, error: bytes | None, reason: str
    ) -> None:
        worker = self.ledger.workers.by_id.get(entry.worker or "")
        data: dict[str, object] = {"by": f"worker:{entry.worker}"} if worker is None else worker.by
        if error is not None or reason:
            data = dict(data)
        if error is not None:
            failure = failure_of(error)
            data["error"] = short(failure)
            data["retryable"] = failure.retryable
        if reason:
            data["reason"] = reason
        self.commit_builder.record(
            entry.run.seq, Change("task", entry.id, before, state, entry.token, data)
        )

    # -- the end of a run --------------------------------------------------------------------------

    def stop(self, run: RunEntry, verdict: str, failure: Failure, now: int) -> None:
        """From here on the run ends as `verdict`, once nothing of it is in flight."""
        state = RunState.CANCELLING if verdict == RunState.CANCELLED else RunState.RUNNING
        if state is RunState.CANCELLING:
            change = Change("run", 0, RunState.RUNNING, state, 0, {"error": short(failure)})
            self.commit_builder.record(run.seq, change)
        run.row = msgspec.structs.replace(
            run.row, state=state, verdict=verdict, error=_dump(failure)
        )
        self.commit_builder.commit.runs_marked.append(
            RunMark(run.seq, state, verdict, run.row.error)
        )
        self.wind_down(run, now, force=False)

    def wind_down(self, run: RunEntry, now: int, *, force: bool) -> None:
        """What waits is cancelled, what is offered is taken back, what runs is asked to stop."""
        graph = self.run_graphs[run.seq]
        failing = run.row.verdict == RunState.FAILED
        self.apply(run, graph.stop(force=force, failing=failing), now)
        for entry in list(run.tasks.values()):
            if not force and not _is_ended_with_run(entry):
                continue
            if entry.state == TaskState.REQUESTED:
                self._leave_line(entry, TaskState.CANCELLED, "the run is ending")
                self.apply(run, graph.dropped(entry.node, entry.idx), now)
            elif not entry.cancelling:
                entry.cancelling = True
                if entry.state == TaskState.SCHEDULED:
                    self.commit_builder.withdrawals.append(
                        (entry.id, entry.token, TaskState.CANCELLED)
                    )
                else:
                    self.order_stop(entry, "cancelled")

    def order_stop(self, entry: TaskEntry, reason: str) -> None:
        worker = self.ledger.workers.by_id.get(entry.worker or "")
        if worker is not None and worker.local and not entry.offered:
            self.commit_builder.stops.append((entry.id, entry.token, reason))
        elif entry.worker is not None:
            order = Order(entry.worker, entry.id, entry.token, "stop", reason)
            self.commit_builder.commit.orders.append(order)

    def close_if_finished(self, run: RunEntry, now: int) -> None:
        graph = self.run_graphs.get(run.seq)
        if graph is None or not graph.finished or run.tasks:
            return
        row = run.row
        if run.pending:
            self._skip_unneeded(run, now)
        del self.run_graphs[run.seq]
        succeeded, output, failure = graph.verdict()
        if run.graph.unfolds and succeeded and row.verdict is None:
            failure = go_on_traced(run, output, self.ledger.limits, self.commit_builder)
            if failure is None:
                self.apply(run, self.enter(run).begin(AFTER_TRACE), now)
                return
            succeeded = False
        state = RunState.SUCCEEDED if succeeded else RunState.FAILED
        if row.verdict is not None:
            state = RunState(row.verdict)
            if failure is None or state is not RunState.FAILED:
                failure = failure_of(row.error)
        error: bytes | None = None
        data: dict[str, object] = {}
        if state is not RunState.SUCCEEDED and failure is not None:
            error = _dump(failure)
            data["error"] = short(failure)
        result = output if state is RunState.SUCCEEDED else None
        self.commit_builder.record(run.seq, Change("run", 0, row.state, state, 0, data))
        self.commit_builder.end_run(RunEnd(run.seq, state, result, error, now))
        if not run.placed:
            self.commit_builder.commit.placed.append(run.seq)
        self.ledger.end_run(run.seq)
