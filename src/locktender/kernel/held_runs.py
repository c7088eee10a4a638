"""Held runs: something of them cannot be read, decided or written, so nothing is decided for them.

Their attempts in flight go on. Each keeps its slots and its permit, as its row says, until it ends or its worker
is lost; as long as there is one, the run keeps its place at the run gates too. An operator (cancel) or the
deadline of the run ends it, when nothing of it is in flight any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from locktender.base import ids
from locktender.base.changes import TaskRow
from locktender.base.commits import RunEnd, RunMark
from locktender.base.durations import spoken
from locktender.base.errors import NotFound
from locktender.base.events import Change
from locktender.base.graph import Graph, Node
from locktender.base.model import Failure, RunRow
from locktender.base.states import HOLDING, RunState, TaskState
from locktender.kernel.entries import RunEntry, TaskEntry
from locktender.kernel.lifecycle import Lifecycle, failure_of, short
from locktender.kernel.node_state import PLAIN
from locktender.kernel.timers import Timers

_dump = msgspec.json.Encoder().encode
_slots = msgspec.json.Decoder(dict[str, int]).decode
_UNKNOWN = Graph("", (Node("held", "held"),))
"""Stands for a graph that cannot be read."""
_ENDS = (RunState.CANCELLED, RunState.TIMED_OUT)


def reason_of(row: RunRow) -> str:
    """Why a held run is held."""
    try:
        return failure_of(row.error).message
    except (msgspec.MsgspecError, UnicodeError):
        return row.unreadable or "its error cannot be read"


_MISSING = b'{"type":"missing_value",'


def check_failure(error: bytes) -> None:
    """Raises for an attempt that could not get a large value: its run is held, as one that cannot be read."""
    if error.startswith(_MISSING):
        raise NotFound(failure_of(error).message, field="blob")


class HeldRuns:
    def __init__(self, lifecycle: Lifecycle) -> None:
        self.rows: dict[int, RunRow] = {}
        self.attempts: dict[int, TaskEntry] = {}
        """Tasks in flight, by id."""
        self._ending: dict[int, tuple[RunState, Failure]] = {}
        self._unreadable: set[int] = set()
        """Tasks of `attempts` whose worker cannot write their end, because their state is none."""
        self._lifecycle = lifecycle
        self._ledger = lifecycle.ledger
        self._commit_builder = lifecycle.commit_builder
        self.timers: Timers = Timers()

    # -- what is held ------------------------------------------------------------------------------

    def restore(
        self,
        rows: Iterable[RunRow],
        tasks: Iterable[TaskRow],
        graphs: Mapping[str, Graph],
        now: int,
    ) -> None:
        by_run: dict[int, list[TaskRow]] = {}
        for task in tasks:
            by_run.setdefault(ids.run_of(task.id), []).append(task)
        for row in rows:
            self.rows[row.seq] = row
            self._ledger.drop_kept(row.seq)
            if row.deadline_at is not None:
                self.timers.set(row.deadline_at, "run_deadline", row.seq, row.deadline_at)
            if row.seq in by_run:
                graph = graphs.get(row.graph, _UNKNOWN)
                run = self._ledger.add_run(row, graph, charged=False)
                for task in by_run[row.seq]:
                    self._hold(run, task, now)
            if row.verdict in _ENDS:
                # It was to end before it was held, or before its leader changed.
                self.end(row.seq, RunState(row.verdict), _ended_while_held(row), now)

    def _hold(self, run: RunEntry, row: TaskRow, now: int) -> None:
        nodes = len(run.graph.nodes)
        known = isinstance(row.node, int) and 0 <= row.node < nodes  # pyright: ignore[reportUnnecessaryIsInstance]
        node = row.node if known else 0
        entry = TaskEntry(row.id, run, node, PLAIN, run.graph.nodes[node])
        entry.state = row.state if row.state in HOLDING else TaskState.RUNNING
        entry.token, entry.worker = row.token, row.worker
        entry.stored = True
        entry.requested_at = now
        entry.pools = _pools(row, entry.spec)
        self._ledger.enter(entry)
        self._ledger.hold(entry)
        self.attempts[entry.id] = entry
        if row.state not in HOLDING:
            self._unreadable.add(entry.id)
        if entry.state == TaskState.SCHEDULED:
            # Nothing of it starts any more. One that is accepted first goes on.
            self._commit_builder.withdrawals.append((entry.id, entry.token, TaskState.REQUESTED))

    # -- facts -------------------------------------------------------------------------------------

    def attempt(self, task: int, token: int) -> TaskEntry | None:
        entry = self.attempts.get(task)
        return entry if entry is not None and entry.token == token else None

    def accepted(self, task: int, token: int) -> None:
        entry = self.attempt(task, token)
        if entry is not None and entry.state == TaskState.SCHEDULED:
            self._ledger.accepted(entry)
            entry.state = TaskState.RUNNING
            if entry.run.seq in self._ending:
                self._lifecycle.order_stop(entry, "cancelled")

    def ended(self, task: int, token: int, now: int) -> bool:
        """An attempt ended, or its offer was taken back. Whether it was one of a held run."""
        entry = self.attempt(task, token)
        if entry is None:
            return False
        self._ledger.release(entry)
        self._forget(entry, now)
        return True

    def lost(
        self, attempts: Iterable[tuple[int, int]], dead_since: int, now: int
    ) -> Iterator[tuple[int, int]]:
        """Their worker is lost. The (task, instant) pairs at which slots that stay taken come free."""
        for task, token in attempts:
            entry = self.attempt(task, token)
            if entry is not None:
                for until in self._ledger.release_lost(entry, dead_since, now):
                    yield entry.id, until
                self._forget(entry, now)

    def _forget(self, entry: TaskEntry, now: int) -> None:
        run = entry.run
        self._ledger.forget(entry)
        del self.attempts[entry.id]
        self._unreadable.discard(entry.id)
        if not run.tasks:
            self._ledger.give_place_back(run.seq)
            if run.seq in self._ending:
                self._close(run.seq, now)

    # -- the end -----------------------------------------------------------------------------------

    def pass_time(self, now: int) -> None:
        for _, _, seq, deadline in self.timers.due(now):
            row = self.rows.get(seq)
            if row is not None and row.deadline_at == deadline and seq not in self._ending:
                after = spoken((row.deadline_at or now) - row.queued_at)
                text = (
                    f"deadline: the run did not end within {after}; it was held: {reason_of(row)}"
                )
                self.end(seq, RunState.TIMED_OUT, Failure("deadline", text, retryable=False), now)

    def end(self, seq: int, state: RunState, failure: Failure, now: int) -> None:
        """It ends as `state`, once nothing of it is in flight."""
        row = self.rows.get(seq)
        if row is None or seq in self._ending:
            return
        self._ending[seq] = state, failure
        run = self._ledger.runs.get(seq)
        for entry in list(run.tasks.values()) if run is not None else ():
            if entry.state == TaskState.RUNNING:
                self._lifecycle.order_stop(entry, "cancelled")
            if entry.id in self._unreadable:
                self._ledger.release(entry)
                self._forget(entry, now)
        if seq not in self.rows:
            return
        if seq in self._ledger.runs:
            if row.verdict != state:
                mark = RunMark(seq, RunState.HELD, state, row.error)
                self._commit_builder.commit.runs_marked.append(mark)
        else:
            self._close(seq, now)

    def _close(self, seq: int, now: int) -> None:
        state, failure = self._ending.pop(seq)
        del self.rows[seq]
        change = Change("run", 0, RunState.HELD, state, 0, {"error": short(failure)})
        self._commit_builder.record(seq, change)
        self._commit_builder.end_run(RunEnd(seq, state, None, _dump(failure), now))
        self._ledger.ended(seq)


def _pools(row: TaskRow, spec: Node) -> tuple[tuple[str, int], ...]:
    """What its row says it holds; where that cannot be read, what its step needs by name."""
    try:
        return tuple(sorted(_slots(row.held or b"{}").items()))
    except (msgspec.MsgspecError, UnicodeError, TypeError):
        return tuple((need.name, need.slots) for need in spec.pools if not need.key)


def _ended_while_held(row: RunRow) -> Failure:
    how = "cancelled" if row.verdict == RunState.CANCELLED else "deadline"
    return Failure(how, f"{how}; it was held: {reason_of(row)}", retryable=False)
