"""Pauses: a run that was paused, or whose flow was, starts nothing; what runs of it ends as usual.

A pause is a rule like a limit: stored with who set it and when, in force from the leader's commit that says so,
and read again by the next leader. Waiting tasks of a paused run stand in no line. When nothing of it is in flight
it gives its place back (`places.py`). A queued run waits in the lane of all paused ones (`lanes.PAUSED`).

A cancel and the deadline of a run go before its pause: its clean-up steps run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from locktender.base.durations import spoken
from locktender.base.events import Change
from locktender.base.limits import Limits, PauseRule
from locktender.base.model import RunRow
from locktender.base.states import RunState, TaskState

if TYPE_CHECKING:
    from locktender.kernel.commit_builder import CommitBuilder
    from locktender.kernel.entries import RunEntry
    from locktender.kernel.ledger import Ledger


def pauses_of(limits: Limits, row: RunRow) -> list[tuple[str, PauseRule]]:
    """What pauses a run: (how it is called, the rule)."""
    found: list[tuple[str, PauseRule]] = []
    if (rule := limits.paused_runs.get(row.seq)) is not None:
        found.append(("the run", rule))
    if (rule := limits.paused_flows.get(row.flow)) is not None:
        found.append((f"flow {row.flow}", rule))
    return found


def pause_texts(limits: Limits, row: RunRow, now: int) -> list[str]:
    """What `why` says of a paused run."""
    return [
        f"{what} is paused"
        + (f" by {rule.by}" if rule.by else "")
        + (f" ({spoken(max(0, now - rule.since))} ago)" if rule.since else "")
        + (f": {rule.reason}" if rule.reason else "")
        for what, rule in pauses_of(limits, row)
    ]


class Pauses:
    def __init__(self, ledger: Ledger, commit_builder: CommitBuilder) -> None:
        self._ledger = ledger
        self._commit_builder = commit_builder
        self._unread: set[int] = set()
        """Paused runs that are not known yet: the pause came into force before the run was read."""

    def follow(self, before: Limits, now: int) -> None:
        """The limits in force are others than `before`."""
        limits = self._ledger.limits
        if (before.paused_flows, before.paused_runs) == (limits.paused_flows, limits.paused_runs):
            return
        for run in list(self._ledger.runs.values()):
            paused = self._ledger.is_paused(run.row)
            if paused != run.paused:
                if paused:
                    self._pause(run, limits)
                else:
                    self._record(run.row, before, "paused", "resumed")
                    self._go_on(run, now)
            elif not paused and not pauses_of(before, run.row):
                self._record_if_ending(run)
        for seq in before.paused_runs.keys() ^ limits.paused_runs.keys():
            head = self._ledger.heads.get(seq)
            if seq in limits.paused_runs:
                if head is not None:
                    self._record(head.row, limits, "", "paused")
                elif seq not in self._ledger.runs:
                    self._unread.add(seq)
            elif seq in self._unread:
                self._unread.discard(seq)
            elif head is not None:
                self._record(head.row, before, "paused", "resumed")

    def read(self, row: RunRow) -> None:
        """A queued run was read: submitted and paused at once, it is paused from here on in the history."""
        if row.seq in self._unread:
            self._unread.discard(row.seq)
            self._record(row, self._ledger.limits, "", "paused")

    def _pause(self, run: RunEntry, limits: Limits) -> None:
        run.paused = True
        self._record(run.row, limits, "", "paused")
        for task in run.tasks.values():
            if task.in_line:
                self._ledger.withdraw_request(task)
            elif task.state == TaskState.SCHEDULED:
                # A worker that accepts it first goes on with it.
                self._commit_builder.withdrawals.append((task.id, task.token, TaskState.REQUESTED))
        self._ledger.stop_returning(run)
        self._ledger.look_at[run.seq] = run

    def _go_on(self, run: RunEntry, now: int) -> None:
        run.paused = False
        if not run.placed:
            self._ledger.return_run(run)
            return
        for task in list(run.tasks.values()):
            if task.is_due(now):
                self._ledger.request(task)

    def lift(self, run: RunEntry, why: str, now: int) -> None:
        """The run has been told to end: its clean-up steps may start."""
        if run.paused and self._ledger.runs.get(run.seq) is run:
            self._record_lifted(run, "paused", why)
            self._go_on(run, now)

    def record_lifted(self) -> None:
        """A new leader: pauses may have come into force with its term."""
        for run in self._ledger.runs.values():
            if not run.paused:
                self._record_if_ending(run)

    def _record_if_ending(self, run: RunEntry) -> None:
        """Of a run that is ending its clean-up goes on: the history says why."""
        if run.row.kind == "flow" and pauses_of(self._ledger.limits, run.row):
            why = "deadline" if run.row.verdict == RunState.TIMED_OUT else "cancelled"
            self._record_lifted(run, "", why)

    def _record_lifted(self, run: RunEntry, before: str, why: str) -> None:
        change = Change("pause", 0, before, "lifted", 0, {"reason": why})
        self._commit_builder.record(run.seq, change)

    def _record(self, row: RunRow, limits: Limits, before: str, after: str) -> None:
        for _, rule in pauses_of(limits, row)[:1]:
            data: dict[str, object] = {"by": rule.by, "reason": rule.reason}
            if not rule.run:
                data["flow"] = row.flow
            self._commit_builder.record(row.seq, Change("pause", 0, before, after, 0, data))
