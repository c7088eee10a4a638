"""The spans of a run with very many tasks, read in one pass over its history.

`times_of` keeps an object per event and per span: seconds for 100,000 items. This keeps numbers. What a task
waited at each gate is the same as in `blame`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from locktender.base.events import EventRow
from locktender.base.graph import Graph, Node
from locktender.base.states import ENDS, TERMINAL_RUNS, RunState, TaskState
from locktender.observe.time_pieces import BACK_OFF, HAND_OFF, LOST, OFFER, PAUSED, WORK

_AGAIN: Final = frozenset({*TERMINAL_RUNS, RunState.HELD})
_LOST: Final = frozenset({TaskState.ABANDONED, TaskState.HANDED_BACK})
# Plain text: comparing with a member of an enumeration costs more than all else here.
_PENDING, _REQUESTED = str(TaskState.PENDING.value), str(TaskState.REQUESTED.value)
_SCHEDULED, _RUNNING = str(TaskState.SCHEDULED.value), str(TaskState.RUNNING.value)


SpanKind = tuple[int, str, int, int, int]
"""A part of the time of some tasks: their step, `work`, `hand-off` or a gate, start, end, and the attempt from 0.

Tasks that change in one commit change at one instant: hundreds of thousands of parts are of some hundred kinds."""
Kind = Literal["work", "hand-off", "back-off", "sleep", "lost", "wait"]
_KINDS: Final[Mapping[str, Kind]] = {
    WORK: "work",
    HAND_OFF: "hand-off",
    OFFER: "hand-off",
    BACK_OFF: "back-off",
    LOST: "lost",
}


def kind_of(what: str) -> Kind:
    waits: Kind = "sleep" if what == "time" or what.startswith("event:") else "wait"
    return _KINDS.get(what, waits)


def node_name(node: int, names: list[str]) -> str:
    return names[node] if 0 <= node < len(names) else f"node {node}"


class _Data(msgspec.Struct, frozen=True, gc=False):
    """Of what a change carries only what is needed here: the rest is not even decoded."""

    node: int = -1
    index: int = -1
    not_before: int = 0
    waits: dict[str, int] | None = None
    gate: str = ""
    lane: str | int = ""


class _SlimChange(msgspec.Struct, array_like=True, gc=False):
    subject: str
    task: int
    before: str
    after: str
    token: int = 0
    data: _Data | None = None


_read: Callable[[bytes], list[_SlimChange]] = msgspec.json.Decoder(list[_SlimChange]).decode
_NOTHING: Final = _Data()


class TaskPhase(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Where tasks stand that came there alike and at one instant: they share it."""

    node: int
    state: str
    since: int = 0
    attempt: int = 0
    not_before: int = 0
    """Of their last request, as the lane and the gate."""
    lane: str | int = ""
    gate: str = ""


@dataclass(slots=True)
class SlimHistory:
    """The history of a run since its last retry."""

    start: int
    end: int
    tasks: dict[int, TaskPhase] = field(default_factory=dict[int, TaskPhase])
    """Where each task stands at the end."""
    indexes: dict[int, int] = field(default_factory=dict[int, int])
    spans: dict[SpanKind, list[int]] = field(default_factory=dict[SpanKind, list[int]])
    """Which tasks have a part of each kind; in no order."""


def slim_history(rows: Sequence[EventRow], graph: Graph | None, now: int) -> SlimHistory:
    return _SlimReader(rows, () if graph is None else graph.nodes, now).read()


class _SlimReader:
    def __init__(self, rows: Sequence[EventRow], nodes: Sequence[Node], now: int) -> None:
        self._rows = rows
        self._nodes = nodes
        self._plain = {at for at, node in enumerate(nodes) if node.wait is None}
        self._now = now
        self._start = self._end = now
        self._tasks: dict[int, TaskPhase] = {}
        self._indexes: dict[int, int] = {}
        self._found: dict[SpanKind, list[int]] = {}
        self._pauses: list[tuple[int, int]] = []
        self._paused_at: int | None = None
        self._lanes: dict[str | int, str] = {}

    def read(self) -> SlimHistory:
        self._start, self._end = self._rows[0].at if self._rows else self._now, self._now
        for row in self._rows:
            self._read_row(_read(row.body), row.at)
        end = self._end
        for number, phase in self._tasks.items():
            if phase.state not in ENDS and end > phase.since:
                self._add(number, phase, end, None)
        return SlimHistory(self._start, end, self._tasks, self._indexes, self._found)

    def _read_row(self, changes: list[_SlimChange], at: int) -> None:
        """What changed at one instant. Of a large run hundreds of thousands of changes, nearly all alike.

        So what a change does is found once for all tasks that it finds in the same phase (`moves`).
        """
        tasks = self._tasks
        moves: dict[tuple[TaskPhase, str, str], tuple[list[int] | None, TaskPhase]] = {}
        born: dict[tuple[str, int, int, str | int, str], TaskPhase] = {}
        for change in changes:
            if change.subject != "task":
                self._other(change, at)
                tasks = self._tasks
                moves.clear()
                continue
            after, number = change.after, change.task
            if after == _PENDING:
                continue
            phase, data = tasks.get(number), change.data
            if phase is None:
                asked = data or _NOTHING
                self._indexes[number] = asked.index
                key = after, asked.node, asked.not_before, asked.lane, asked.gate
                phase = born.get(key)
                if phase is None:
                    born[key] = phase = TaskPhase(
                        asked.node, after, at, 0, asked.not_before, asked.lane, asked.gate
                    )
                tasks[number] = phase
                continue
            gate = ""
            if phase.state == _REQUESTED:
                waits = None if data is None else data.waits
                if waits is None or len(waits) != 1:
                    self._move_alone(number, phase, change, at)
                    continue
                [gate] = waits
                if waits[gate] <= 0:
                    self._move_alone(number, phase, change, at)
                    continue
            elif after == _REQUESTED:
                self._move_alone(number, phase, change, at)
                continue
            move = moves.get((phase, after, gate))
            if move is None:
                if gate and not self._waits_only(phase):
                    self._move_alone(number, phase, change, at)
                    continue
                move = moves[phase, after, gate] = self._move(phase, after, gate, at)
            together, tasks[number] = move
            if together is not None:
                together.append(number)

    def _move(
        self, phase: TaskPhase, after: str, gate: str, at: int
    ) -> tuple[list[int] | None, TaskPhase]:
        """The tasks that have the part of time which ends here, if there is one, and where they stand then."""
        attempt = phase.attempt + (phase.state == _RUNNING)
        later = msgspec.structs.replace(phase, state=after, since=at, attempt=attempt)
        if at <= phase.since:
            return None, later
        what = gate or _what(phase.state, after)
        kind = phase.node, what, phase.since, at, phase.attempt
        return self._found.setdefault(kind, []), later

    def _waits_only(self, phase: TaskPhase) -> bool:
        """Whether all of the time since its request is a wait at gates: of nearly all tasks."""
        return (
            phase.node in self._plain
            and not phase.not_before
            and not self._pauses
            and self._paused_at is None
        )

    def _move_alone(self, number: int, phase: TaskPhase, change: _SlimChange, at: int) -> None:
        if at > phase.since:
            self._add(number, phase, at, change)
        attempt, data = phase.attempt + (phase.state == _RUNNING), change.data or _NOTHING
        if change.after == _REQUESTED:
            self._tasks[number] = TaskPhase(
                phase.node, change.after, at, attempt, data.not_before, data.lane, data.gate
            )
        else:
            self._tasks[number] = msgspec.structs.replace(
                phase, state=change.after, since=at, attempt=attempt
            )

    def _other(self, change: _SlimChange, at: int) -> None:
        """A change of the run itself, a pause, or a gate that its tasks wait at."""
        if change.subject == "run":
            if change.after == RunState.QUEUED and change.before in _AGAIN:
                self._start, self._end = at, self._now
                self._tasks, self._indexes, self._found, self._pauses = {}, {}, {}, []
            elif change.after in TERMINAL_RUNS:
                self._end = at
        elif change.subject == "pause":
            self._pause(change.after, at)
        elif change.subject == "wait" and change.data is not None and change.data.lane:
            self._lanes[change.data.lane] = change.after

    def _pause(self, after: str, at: int) -> None:
        if after == "paused":
            self._paused_at = at if self._paused_at is None else self._paused_at
        elif self._paused_at is not None:
            self._pauses.append((self._paused_at, at))
            self._paused_at = None

    def _add(self, number: int, phase: TaskPhase, end: int, follows: _SlimChange | None) -> None:
        """What the time since its last change went into."""
        if phase.state == _REQUESTED:
            self._waited(number, phase, end, follows)
            return
        what = _what(phase.state, None if follows is None else follows.after)
        kind = phase.node, what, phase.since, end, phase.attempt
        self._found.setdefault(kind, []).append(number)

    def _waited(self, number: int, phase: TaskPhase, end: int, follows: _SlimChange | None) -> None:
        start, attempt, found = phase.since, phase.attempt, self._found
        of = phase.node
        node = self._nodes[of] if 0 <= of < len(self._nodes) else None
        if node is not None and node.wait is not None:
            what = "time" if node.event is None else f"event:{node.event.name}"
            found.setdefault((of, what, start, end, attempt), []).append(number)
            return
        if phase.not_before > start:
            until = min(end, phase.not_before)
            found.setdefault((of, BACK_OFF, start, until, attempt), []).append(number)
            start = until
        if self._pauses or self._paused_at is not None:
            open_pause = [] if self._paused_at is None else [(self._paused_at, end)]
            for left, right in (*self._pauses, *open_pause):
                paused = min(right, end) - max(left, start)
                if paused > 0:
                    found.setdefault((of, PAUSED, start, start + paused, attempt), []).append(
                        number
                    )
                    start += paused
        first = ""
        if follows is not None and follows.data is not None:
            for what, us in (follows.data.waits or {}).items():
                part = min(us, end - start)
                if part > 0:
                    first = first or what
                    found.setdefault((of, what, start, start + part, attempt), []).append(number)
                    start += part
        if end > start:
            lane = self._lanes.get(phase.lane, "") if follows is None else ""
            what = first or lane or phase.gate or HAND_OFF
            found.setdefault((of, what, start, end, attempt), []).append(number)


def _what(state: str, after: str | None) -> str:
    """What time in a state went into that is not *requested*; `after`: what followed."""
    if state == _RUNNING:
        return LOST if after in _LOST else WORK
    return OFFER if state == _SCHEDULED and after not in (None, _RUNNING) else HAND_OFF


class Bins:
    """How many items of one step were in which state, bin by bin. Each span costs the same, however long."""

    def __init__(self, start: int, end: int, count: int) -> None:
        self._start, self._end, self._count = start, max(end, start + 1), count
        self._width = (self._end - start) / count
        self._parts: dict[int, list[float]] = {}
        self._steps: dict[int, list[int]] = {}

    def add(self, what: int, start: int, end: int, items: int = 1) -> None:
        """Adds a span that so many items have."""
        count = self._count
        start, end = max(start, self._start), min(end, self._end)
        if end <= start:
            return
        parts = self._parts.setdefault(what, [0.0] * count)
        steps = self._steps.setdefault(what, [0] * (count + 1))
        first, last = (start - self._start) / self._width, (end - self._start) / self._width
        # The end of the last span is the end of the last bin.
        one, other = int(first), min(int(last), count - 1)
        if one == other:
            parts[one] += items * (last - first)
            return
        parts[one] += items * (one + 1 - first)
        parts[other] += items * (last - other)
        steps[one + 1] += items
        steps[other] -= items

    def series(self) -> dict[int, list[float]]:
        found: dict[int, list[float]] = {}
        for what, parts in sorted(self._parts.items()):
            if not any(parts):
                continue  # all of it lies outside
            level, values = 0, list[float]()
            for part, step in zip(parts, self._steps[what], strict=False):
                level += step
                values.append(round(level + part, 2))
            found[what] = values
        return found


class Whats:
    """Numbers of what time went into, in the order of their first use."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.us: list[int] = []

    def add(self, what: str, us: int) -> int:
        number = self.numbers.setdefault(what, len(self.us))
        if number == len(self.us):
            self.us.append(0)
        self.us[number] += us
        return number
