"""Tasks that end without a body (sleeps, waits for events, cached results), and runs that only wait.

A sleep is a node without a body. Its task is requested with the instant at which it is over, stands at no gate,
holds nothing, and is completed by the leader then; its output is the value that it was given. A wait for an event
is a sleep until its timeout, which an event ends before (`kernel/mailboxes.py`). A run whose open tasks are all
such waits gives back its place and leaves the leader's memory: it is *waiting*, and rows are all there
is of it. Woken, it is queued with its first age and priority; when it has passed its gates it goes on from its
rows.

A waiting run that is to be ended (cancelled, past its deadline) executes without a place: its clean-up takes one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from locktender.base.changes import CachedResult, TaskRow
from locktender.base.commits import MailTaken, RunStart, RunWait
from locktender.base.durations import spoken
from locktender.base.events import Change
from locktender.base.graph import Graph
from locktender.base.model import Failure, Mail, RunRow
from locktender.base.states import RunState, TaskState
from locktender.kernel.entries import RunEntry, TaskEntry
from locktender.kernel.lifecycle import Lifecycle
from locktender.kernel.mailboxes import delivered_value, payload_fault
from locktender.kernel.rebuild import restore_run
from locktender.kernel.waits import passed_value


def end_sleep(lifecycle: Lifecycle, entry: TaskEntry, now: int) -> None:
    """Its time has come. It passes on the value that it was given; a wait for an event may fail."""
    event = entry.spec.event
    if event is not None and not event.default:
        after = spoken(entry.not_before - entry.requested_at)
        text = f"no event {event.name!r} came within {after}"
        failure = Failure("event_timeout", text, retryable=False)
        lifecycle.end_waiting(entry, entry.state, TaskState.FAILED, failure, now)
        return
    _complete(lifecycle, entry, passed_value(entry.input or b""), now)


def deliver(lifecycle: Lifecycle, mail: Mail, now: int) -> bool:
    """An event ends the wait for it, unless something else has. False: its payload does not fit, it is refused."""
    entry = lifecycle.tasks.get(mail.task)
    if entry is None or entry.state != TaskState.REQUESTED or entry.spec.event is None:
        return True
    builder, data = lifecycle.commit_builder, {"n": mail.n, "name": mail.name}
    fault = payload_fault(entry.spec.event, mail.payload)
    task = 0 if fault else mail.task
    builder.commit.mail_taken.append(MailTaken(mail.run, mail.n, task))
    after = "refused" if fault else "delivered"
    told = {**data, "reason": fault.message} if fault else data
    builder.record(mail.run, Change("mail", task, "sent", after, 0, told))
    if not fault:
        _complete(lifecycle, entry, delivered_value(entry.spec.event, mail.payload), now)
    return not fault


def deliver_all(lifecycle: Lifecycle, mails: Iterable[Mail], now: int) -> None:
    """To each wait the first event that it can take; each event once to a run."""
    taken: set[tuple[int, int]] = set()
    for mail in mails:
        lifecycle.at_run = mail.run
        fits = (mail.run, mail.n) not in taken and deliver(lifecycle, mail, now)
        taken.add((mail.run, mail.n))
        if not fits and mail.run in lifecycle.ledger.runs:
            lifecycle.mail.wanted.add(mail.run)  # it takes the next one


def put_cached(
    lifecycle: Lifecycle,
    asked: Iterable[TaskEntry],
    found: Mapping[str, CachedResult],
    values: Mapping[str, bytes],
    now: int,
) -> tuple[int, int]:
    """The keys of these tasks were looked up. Those found are completed, the others go to their gates.

    `values`: what references stand for that the graph looks into, by key. Returns hits and misses.
    """
    hits = misses = 0
    for entry in asked:
        lifecycle.cache.wanted.pop(entry.id, None)
        if lifecycle.tasks.get(entry.id) is not entry or entry.state != TaskState.REQUESTED:
            continue
        lifecycle.at_run = entry.run.seq
        entry.unread = False
        result = found.get(entry.cache_key or "")
        if result is None or result.expires_at <= now:
            misses += 1
            lifecycle.stand_in_line(entry, now)
            continue
        hits += 1
        cached = {"key": result.key, "task": result.task, "made_at": result.made_at}
        data: dict[str, object] = {"cached": {**cached, "expires_at": result.expires_at}}
        _complete(lifecycle, entry, result.output, now, data, values.get(result.key))
    lifecycle.at_run = 0
    return hits, misses


def _complete(
    lifecycle: Lifecycle,
    entry: TaskEntry,
    output: bytes,
    now: int,
    data: dict[str, object] | None = None,
    value: bytes | None = None,
) -> None:
    """`value`: what `output` refers to, where the graph looks into it."""
    change = Change("task", entry.id, entry.state, TaskState.COMPLETED, 0, data or {})
    lifecycle.commit_builder.record(entry.run.seq, change)
    row = TaskRow(entry.id, entry.node, entry.idx, TaskState.COMPLETED, entry.attempt)
    row = row._replace(input=entry.input, output=output, requested_at=entry.requested_at)
    row = row._replace(ended_at=now, not_before=entry.not_before)
    lifecycle.commit_builder.add_again(row)
    lifecycle.complete(entry, output if value is None else value, now)


class WaitsOfRuns:
    """Which executing runs become waiting. Only runs with a sleep are ever looked at."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._ledger = lifecycle.ledger
        self._commit_builder = lifecycle.commit_builder
        self.taken_up: set[int] = set()
        """In this cycle: rows that are read meanwhile do not know yet."""

    def let_wait(self, now: int) -> None:
        """After a decision: runs of which nothing is left but sleeps."""
        lifecycle = self._lifecycle
        self.taken_up.clear()
        if not lifecycle.maybe_waiting:
            return
        runs, lifecycle.maybe_waiting = lifecycle.maybe_waiting, {}
        for run in runs.values():
            if self._ledger.runs.get(run.seq) is not run:
                lifecycle.asleep.pop(run.seq, None)
            elif lifecycle.mail.may_get(run.seq):
                # What was sent to it may end a wait.
                lifecycle.maybe_waiting[run.seq] = run
            elif (wake_at := self._wake_at(run)) > now:
                self._leave(run, wake_at)

    def _wake_at(self, run: RunEntry) -> int:
        """When the first of its sleeps is over, or its deadline has come; 0: it does something else, too."""
        if run.in_flight or not run.tasks or run.row.verdict is not None:
            return 0
        if self._lifecycle.run_graphs[run.seq].backlog.maps:
            return 0
        instants = [run.row.deadline_at] if run.row.deadline_at is not None else []
        for task in run.tasks.values():
            if task.spec.wait is None or task.state != TaskState.REQUESTED:
                return 0
            instants.append(task.not_before)
        return min(instants)

    def _leave(self, run: RunEntry, wake_at: int) -> None:
        lifecycle, commit = self._lifecycle, self._commit_builder.commit
        commit.runs_waiting.append(RunWait(run.seq, wake_at))
        placed, keeps = run.placed, self._ledger.wait(run)
        data: dict[str, object] = {"wake_at": wake_at}
        if keeps:
            data["keeps"] = keeps
            commit.kept.append((run.seq, keeps))
        elif not placed:
            commit.placed.append(run.seq)
        if run.seq in commit.unplaced:  # paused in this cycle
            commit.unplaced.remove(run.seq)
        change = Change("run", 0, RunState.RUNNING, RunState.WAITING, 0, data)
        self._commit_builder.record(run.seq, change)
        for task in run.tasks:
            lifecycle.tasks.pop(task, None)
        del lifecycle.run_graphs[run.seq]
        lifecycle.asleep.pop(run.seq, None)

    def resume(self, row: RunRow, rows: list[TaskRow], graph: Graph, now: int) -> None:
        """A woken run has passed its gates: it goes on from its rows."""
        if row.seq in self._ledger.kept:
            self._commit_builder.commit.placed.append(row.seq)
        for _ in restore_run(self._lifecycle, row, graph, rows, now, charged=True):
            pass
        deliver_all(self._lifecycle, self._lifecycle.mail.ready.pop(row.seq, ()), now)

    def take_up(self, row: RunRow, rows: list[TaskRow], graph: Graph, now: int) -> None:
        """It goes on from its rows, without a place."""
        commit = self._commit_builder.commit
        commit.runs_started.append(RunStart(row.seq, row.started_at))
        commit.unplaced.append(row.seq)
        self.taken_up.add(row.seq)
        if row.state == RunState.WAITING:
            commit.taken_up.append(row.seq)
        data: dict[str, object] = {"priority": row.priority, "placed": False}
        change = Change("run", 0, row.state, RunState.RUNNING, 0, data)
        self._commit_builder.record(row.seq, change)
        row = msgspec.structs.replace(row, state=RunState.RUNNING)
        for _ in restore_run(self._lifecycle, row, graph, rows, now, placed=False):
            pass
