"""Collects the changes and rows of one cycle and returns them as one commit.

Events are written in three parts: freed, granted, found waiting. So a limit
holds at every prefix of the history, not only at the end of each commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from locktender.base.changes import TaskRow
from locktender.base.commits import Commit, RunEnd, RunEvents, TaskEnd, TaskSave
from locktender.base.events import Change
from locktender.base.ids import task_id
from locktender.base.states import HOLDING, NEW, TaskState
from locktender.kernel.entries import TaskEntry

_dump = msgspec.json.Encoder().encode


class Cycle(msgspec.Struct):
    """What a cycle decided. Nothing of it may be acted on before `commit` is written."""

    commit: Commit
    starts: list[TaskEntry] = []
    """Tasks of the worker in this process: accepted with this very commit."""
    stops: list[tuple[int, int, str]] = []
    """(task, token, reason) of local tasks to be stopped."""
    withdrawals: list[tuple[int, int, str]] = []
    """(task, token, to) of offers to take back; a worker may accept one meanwhile: the store decides."""
    unfinished: bool = False
    """There is more to do at once: the budget was spent."""
    next_wake: int | None = None
    found_waiting: dict[str, int] = {}
    """Gate → lanes newly found blocked, for the cycle's summary line."""
    waits: list[dict[str, int]] = []
    """Gate → microseconds, of each waiter whose wait is over."""


class CommitBuilder:
    def __init__(self, term: int, actor: str) -> None:
        self.term = term
        self.actor = actor
        self.cycles: int = 0
        self._last = 0
        self._held_json: dict[tuple[tuple[str, int], ...], bytes] = {}
        self._open()

    def _open(self) -> None:
        self.commit: Commit = Commit(self.term, 0, self.actor)
        self.stops: list[tuple[int, int, str]] = []
        self.withdrawals: list[tuple[int, int, str]] = []
        self.ended_runs: list[int] = []
        self._freed: dict[int, list[Change]] = {}
        self._granted: dict[int, list[Change]] = {}
        self._waiting: dict[int, list[Change]] = {}
        self._part = self._freed
        self._new: dict[int, tuple[TaskEntry, bytes, dict[str, Any]]] = {}
        self.requested_again: list[tuple[TaskEntry, dict[str, Any]]] = []
        """With what their events carry: where they wait is added at the end of the cycle."""
        self._dirty: dict[int, TaskEntry] = {}
        self._errors: dict[int, bytes] = {}
        self._again: dict[int, TaskRow] = {}

    def next_cycle(self) -> int:
        """A number for a leader's transaction of its own (a withdrawal, an expiry)."""
        self.cycles += 1
        return self.cycles

    def begin_grants(self) -> None:
        """From here on the cycle only grants: everything it could free has been freed."""
        self._part = self._granted

    def record(self, run: int, change: Change) -> None:
        changes = self._part.get(run)
        if changes is None:
            self._part[run] = [change]
        else:
            changes.append(change)

    def record_wait(self, run: int, change: Change) -> None:
        self._waiting.setdefault(run, []).append(change)

    def add(self, entry: TaskEntry, before: str, value: bytes, data: dict[str, Any]) -> None:
        """A new task: its row is inserted as it is at the end of the cycle. `data`: what its event carries."""
        self._new[entry.id] = (entry, value, data)
        change = Change("task", entry.id, before, TaskState.REQUESTED, 0, data)
        self.record(entry.run.seq, change)

    def reserve(self, run: int, node: int, idx: int, ordinal: int, now: int) -> TaskRow:
        """The last item of a map whose items come in slices: its row says how many there are."""
        row = TaskRow(task_id(run, ordinal), node, idx, TaskState.PENDING, requested_at=now)
        self.commit.tasks_new.append(row)
        data = {"node": node, "index": idx}
        self.record(run, Change("task", row.id, NEW, TaskState.PENDING, 0, data))
        return row

    def still_requested(self) -> Iterator[tuple[TaskEntry, dict[str, Any]]]:
        """Tasks that were requested in this cycle and have not started, with what their events carry."""
        for entry, _, data in self._new.values():
            if entry.state == TaskState.REQUESTED:
                yield entry, data
        yield from self.requested_again

    @property
    def new_tasks(self) -> int:
        return len(self._new)

    def add_again(self, row: TaskRow) -> None:
        """The row of an earlier try is written over, as it is here or in a later `add` of the same cycle."""
        self._again[row.id] = row

    def save(self, entry: TaskEntry) -> None:
        """A task whose row the leader owns: written once, as it is at the end of the cycle."""
        if entry.id not in self._new:
            self._dirty[entry.id] = entry

    def save_requested(self, entry: TaskEntry, data: dict[str, Any]) -> None:
        """The same, of a task that is requested again; `data`: what its event carries."""
        self.save(entry)
        self.requested_again.append((entry, data))

    def save_end(self, entry: TaskEntry, state: str, error: bytes | None) -> None:
        entry.state = state
        if error is not None:
            self._errors[entry.id] = error
        self.save(entry)

    def complete(self, entry: TaskEntry, output: bytes | None, now: int) -> None:
        self.commit.tasks_ended.append(TaskEnd(entry.id, entry.token, output, now))

    def end_run(self, end: RunEnd) -> None:
        self.commit.runs_ended.append(end)
        self.ended_runs.append(end.run)

    def close(self, now: int) -> Commit:
        """The commit of this cycle; the next one begins empty."""
        commit = self.commit
        commit.at = now
        for entry, value, _ in self._new.values():
            row = self._row(entry, value, now)
            entry.stored = True
            if self._again and entry.id in self._again:
                self._again[entry.id] = row
            else:
                commit.tasks_new.append(row)
        commit.tasks_again += self._again.values()
        commit.tasks_saved += [self._save(entry, now) for entry in self._dirty.values()]
        if commit.kept:
            commit.kept = list(dict(commit.kept).items())
            kept = {run for run, _ in commit.kept}
            commit.placed = [run for run in commit.placed if run not in kept]
        if commit.placed and commit.unplaced:
            commit.placed = [run for run in commit.placed if run not in commit.unplaced]
        if commit.unplaced and self.ended_runs:
            commit.unplaced = [run for run in commit.unplaced if run not in self.ended_runs]
        commit.events = [
            RunEvents(run, changes)
            for part in (self._freed, self._granted, self._waiting)
            for run, changes in part.items()
        ]
        if not commit.empty:
            commit.previous = self._last
            commit.cycle = self._last = self.next_cycle()
        self._open()
        return commit

    def _row(self, entry: TaskEntry, value: bytes, now: int) -> TaskRow:
        state = entry.state
        holds = state in HOLDING
        return TaskRow(
            entry.id,
            entry.node,
            entry.idx,
            state,
            entry.attempt,
            entry.tries,
            entry.abandons,
            entry.offers,
            entry.token,
            entry.worker,
            self._held(entry.pools) if holds else None,
            value,
            None,
            self._errors.get(entry.id) if self._errors else None,
            entry.requested_at,
            entry.scheduled_at,
            entry.started_at,
            0 if holds or state == TaskState.REQUESTED else now,
            entry.not_before,
            entry.eligible_at,
        )

    def _save(self, entry: TaskEntry, now: int) -> TaskSave:
        state = entry.state
        holds = state in HOLDING
        return TaskSave(
            entry.id,
            state,
            entry.attempt,
            entry.tries,
            entry.abandons,
            entry.offers,
            entry.token,
            entry.worker,
            self._held(entry.pools) if holds else None,
            self._errors.get(entry.id),
            entry.requested_at,
            entry.scheduled_at,
            entry.started_at,
            0 if holds or state == TaskState.REQUESTED else now,
            entry.not_before,
            entry.eligible_at,
        )

    def _held(self, pools: tuple[tuple[str, int], ...]) -> bytes:
        held = self._held_json.get(pools)
        if held is None:
            if len(self._held_json) > 10_000:
                self._held_json.clear()
            held = self._held_json[pools] = _dump(dict(pools))
        return held
