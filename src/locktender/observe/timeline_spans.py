"""The spans of a run with very many tasks, read in one pass over its history.

`times_of` keeps an object per event and per span: seconds for 100,000 items. This keeps numbers. What a task
waited at each gate is the same as in `blame`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from locktender.base.events import EventRow
from locktender.base.graph import Graph, Node
from locktender.base.states import ENDS, TERMINAL_RUNS, RunState, TaskState
from locktender.observe.run_times import BACK_OFF, HAND_OFF, LOST, OFFER, PAUSED, WORK

_AGAIN: Final = frozenset({*TERMINAL_RUNS, RunState.HELD})
_LOST: Final = frozenset({TaskState.ABANDONED, TaskState.HANDED_BACK})


class TaskSpan(NamedTuple):
    """A part of a task's time: `what` is `work`, `hand-off` or a gate."""

    task: int
    start: int
    end: int
    what: str
    attempt: int


class _Data(msgspec.Struct, gc=False):
    """Of what a change carries only what is needed here: the rest is not even decoded."""

    node: int = -1
    index: int = -1
    not_before: int = 0
    waits: dict[str, int] = {}
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


@dataclass(slots=True)
class SlimTask:
    node: int
    index: int
    state: str = ""
    waited: int = 0
    end: int = 0


@dataclass(slots=True)
class SlimHistory:
    """The history of a run since its last retry."""

    start: int
    end: int
    tasks: dict[int, SlimTask] = field(default_factory=dict[int, SlimTask])
    rows: list[tuple[int, list[_SlimChange]]] = field(
        default_factory=list[tuple[int, list[_SlimChange]]]
    )
    nodes: Sequence[Node] = ()
    pauses: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def spans(self, only: Collection[int] | None = None) -> Iterator[TaskSpan]:
        """All spans of all tasks, or of these; in no order."""
        last: dict[int, tuple[int, _SlimChange]] = {}
        attempts: dict[int, int] = {}
        lanes: dict[str | int, str] = {}
        for at, changes in self.rows:
            for change in changes:
                task = change.task
                if change.subject != "task":
                    if change.subject == "wait" and change.data is not None and change.data.lane:
                        lanes[change.data.lane] = change.after
                    continue
                if change.after == TaskState.PENDING or (only is not None and task not in only):
                    continue
                before = last.get(task)
                last[task] = at, change
                if before is None:
                    continue
                since, then = before
                if at > since:
                    attempt = attempts.get(task, 0)
                    yield from self._between(task, since, at, then, change, attempt, lanes)
                if then.after == TaskState.RUNNING:
                    attempts[task] = attempts.get(task, 0) + 1
        for task, (since, then) in last.items():
            if then.after not in ENDS and self.end > since:
                attempt = attempts.get(task, 0)
                yield from self._between(task, since, self.end, then, None, attempt, lanes)

    def _between(
        self,
        task: int,
        start: int,
        end: int,
        then: _SlimChange,
        follows: _SlimChange | None,
        attempt: int,
        lanes: Mapping[str | int, str],
    ) -> Iterator[TaskSpan]:
        if then.after == TaskState.RUNNING:
            lost = follows is not None and follows.after in _LOST
            yield TaskSpan(task, start, end, LOST if lost else WORK, attempt)
        elif then.after == TaskState.REQUESTED:
            yield from self._waited(task, start, end, then, follows, attempt, lanes)
        else:
            refused = (
                then.after == TaskState.SCHEDULED
                and follows is not None
                and follows.after != TaskState.RUNNING
            )
            yield TaskSpan(task, start, end, OFFER if refused else HAND_OFF, attempt)

    def _waited(
        self,
        task: int,
        start: int,
        end: int,
        then: _SlimChange,
        follows: _SlimChange | None,
        attempt: int,
        lanes: Mapping[str | int, str],
    ) -> Iterator[TaskSpan]:
        asked = then.data or _NOTHING
        node = (
            self.nodes[self.tasks[task].node] if self.tasks[task].node < len(self.nodes) else None
        )
        if node is not None and node.wait is not None:
            what = "time" if node.event is None else f"event:{node.event.name}"
            yield TaskSpan(task, start, end, what, attempt)
            return
        if asked.not_before > start:
            until = min(end, asked.not_before)
            yield TaskSpan(task, start, until, BACK_OFF, attempt)
            start = until
        for left, right in self.pauses:
            paused = min(right, end) - max(left, start)
            if paused > 0:
                yield TaskSpan(task, start, start + paused, PAUSED, attempt)
                start += paused
        ended = follows.data if follows is not None else None
        waits = ended.waits if ended is not None else {}
        first = ""
        for what, us in waits.items():
            part = min(us, end - start)
            if part > 0:
                first = first or what
                yield TaskSpan(task, start, start + part, what, attempt)
                start += part
        if end > start:
            rest = first or (lanes.get(asked.lane, "") if follows is None else "") or asked.gate
            yield TaskSpan(task, start, end, rest or HAND_OFF, attempt)


def slim_history(rows: Sequence[EventRow], graph: Graph | None, now: int) -> SlimHistory:
    found = SlimHistory(rows[0].at, now, nodes=() if graph is None else graph.nodes)
    paused_at: int | None = None
    for row in rows:
        changes = _read(row.body)
        for change in changes:
            task = change.task
            if change.subject == "task":
                known = found.tasks.get(task)
                if known is None:
                    data = change.data or _NOTHING
                    known = found.tasks[task] = SlimTask(data.node, data.index)
                known.state = change.after
                known.end = row.at
            elif change.subject == "run":
                if change.after == RunState.QUEUED and change.before in _AGAIN:
                    found.rows, found.pauses, found.start, found.end = [], [], row.at, now
                elif change.after in TERMINAL_RUNS:
                    found.end = row.at
            elif change.subject == "pause":
                if change.after == "paused":
                    paused_at = row.at if paused_at is None else paused_at
                elif paused_at is not None:
                    found.pauses.append((paused_at, row.at))
                    paused_at = None
        found.rows.append((row.at, changes))
    if paused_at is not None:
        found.pauses.append((paused_at, found.end))
    return found


class Bins:
    """How many items of one step were in which state, bin by bin. Each span costs the same, however long."""

    def __init__(self, start: int, end: int, count: int) -> None:
        self._start, self._end, self._count = start, max(end, start + 1), count
        self._width = (self._end - start) / count
        self._parts: dict[int, list[float]] = {}
        self._steps: dict[int, list[int]] = {}

    def add(self, what: int, start: int, end: int) -> None:
        start, end = max(start, self._start), min(end, self._end)
        if end <= start:
            return
        parts = self._parts.get(what)
        if parts is None:
            parts = self._parts[what] = [0.0] * self._count
            self._steps[what] = [0] * (self._count + 1)
        first, last = (start - self._start) / self._width, (end - self._start) / self._width
        one, other = min(int(first), self._count - 1), min(int(last), self._count - 1)
        if one == other:
            parts[one] += last - first
            return
        parts[one] += one + 1 - first
        parts[other] += last - other
        steps = self._steps[what]
        steps[one + 1] += 1
        steps[other] -= 1

    def series(self) -> dict[int, list[float]]:
        found: dict[int, list[float]] = {}
        for what, parts in sorted(self._parts.items()):
            level, values = 0, list[float]()
            for part, step in zip(parts, self._steps[what], strict=False):
                level += step
                values.append(round(level + part, 2))
            found[what] = values
        return found
