"""The time of a run, split into work, waits by gate and hand-off, from its history; `blame.py` adds who held it.

Each stretch of time between two events of a task is its own work, a wait at a gate, or hand-off. The critical
path leads from the end of the run back to its submission: the task that ended last, before it the one it needed
that ended last, and so on. Its stretches follow one another without a gap, so they add up to the wall time.

What a task waited at each gate its leader wrote when it started (`kernel/wait_times.py`). A wait that goes on
counts for the gate that blocks now. An item of a large map that was asked for late (`kernel/map_slices.py`) waited
where the items before it did.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import msgspec

from locktender.base.events import Event
from locktender.base.graph import Graph, Node, Output, needs_of
from locktender.base.states import ENDS, TERMINAL_RUNS, RunState, TaskState
from locktender.observe.time_pieces import (
    BACK_OFF,
    CLOCK,
    HAND_OFF,
    LEADER,
    LOST,
    OFFER,
    PAUSED,
    SEQUENTIAL,
    WORK,
    Piece,
    Stretch,
    TimeSpan,
    added,
    disjoint,
    filled,
    fitted,
    in_order,
    merged,
)

_NO_WORKER: Final = "worker"
_ITS_OWN: Final = frozenset({WORK, HAND_OFF, LOST, OFFER, BACK_OFF, SEQUENTIAL})
"""Time that delays one task and not the items behind it."""
_LOST: Final = frozenset({TaskState.ABANDONED, TaskState.HANDED_BACK})
_AGAIN: Final = frozenset({*TERMINAL_RUNS, RunState.HELD})


@dataclass(slots=True)
class TaskTimes:
    """One task of the run, from its first request to its end, or until now."""

    id: int
    node: int
    index: int
    first: int
    """The number of its first event in the history of the run, and of its last."""
    start: int
    last: int = 0
    end: int = 0
    state: str = ""
    pieces: list[Piece] = field(default_factory=list[Piece])
    spans: list[TimeSpan] = field(default_factory=list[TimeSpan])
    """All its time in order: waits, hand-off and work."""
    critical: bool = False

    @property
    def ended(self) -> bool:
        return self.state in ENDS

    def add(self, start: int, end: int, pieces: list[Piece]) -> None:
        self.pieces += pieces
        self.spans.append(TimeSpan(start, end, pieces))

    def spent(self) -> dict[str, int]:
        return added(self.pieces)


@dataclass(slots=True)
class RunTimes:
    """What the time of a run went into: `path` adds up to `end` − `start`."""

    start: int
    end: int
    tasks: list[TaskTimes]
    path: list[tuple[TaskTimes | None, list[Piece]]]
    """In the order of time; without a task: before the first, between two, after the last."""

    def spent(self) -> dict[str, int]:
        return added(piece for _, pieces in self.path for piece in pieces)

    def spans(self) -> Iterator[tuple[TaskTimes | None, TimeSpan]]:
        """All time of the critical path, in order, and whose it is."""
        at = self.start
        for task, pieces in self.path:
            if task is not None:
                yield from ((task, span) for span in task.spans)
                at = task.end
            else:
                us = sum(piece.us for piece in pieces)
                yield None, TimeSpan(at, at + us, pieces)


def times_of(
    history: Sequence[Event],
    graph: Graph | None,
    now: int,
    gates: Mapping[int, str] | None = None,
    elections: Sequence[int] = (),
) -> RunTimes:
    """`gates`: task (0: the run itself) → the gate that blocks it now, of those that wait.

    `elections`: when leaders began.
    """
    history = _last_try(history)
    ended = [each for each in history if each.subject == "run" and each.after in TERMINAL_RUNS]
    end = ended[-1].at if ended else now
    start = history[0].at if history else end
    return _Reader(history, graph, start, end, gates or {}, elections).read()


def _last_try(history: Sequence[Event]) -> Sequence[Event]:
    """From the retry on, where the run was retried."""
    for number in range(len(history) - 1, -1, -1):
        event = history[number]
        if event.subject == "run" and event.after == RunState.QUEUED and event.before in _AGAIN:
            return history[number:]
    return history


class _Reader:
    def __init__(
        self,
        history: Sequence[Event],
        graph: Graph | None,
        start: int,
        end: int,
        gates: Mapping[int, str],
        elections: Sequence[int],
    ) -> None:
        self._history = history
        self._nodes: tuple[Node, ...] = () if graph is None else graph.nodes
        self._sequential = graph is not None and graph.sequential
        self._in_order = {n for n, each in enumerate(self._nodes) if each.in_order}
        self._start, self._end = start, end
        self._gates = gates
        self._elections = elections
        self._stretches = list(self._of_the_run())

    def read(self) -> RunTimes:
        tasks = self._tasks()
        return RunTimes(self._start, self._end, tasks, self._path(tasks))

    # -- the run -----------------------------------------------------------------------------------

    def _of_the_run(self) -> Iterator[Stretch]:
        """While the run was paused, queued, delayed, held or without a place; pauses first."""
        of_run = [each for each in self._history if each.subject in {"run", "pause", "place"}]
        yield from self._pauses([each for each in of_run if each.subject == "pause"])
        states = [each for each in of_run if each.subject == "run"]
        started = False
        for event, follows in zip(states, [*states[1:], None], strict=False):
            until = self._end if follows is None else follows.at
            if event.after == RunState.QUEUED:
                yield from self._queued(event.at, until, follows)
            elif event.after == RunState.HELD:
                yield Stretch(event.at, until, "held")
            elif event.after == RunState.WAITING and not started:
                throttle = event.data.get("throttle")
                yield Stretch(
                    event.at, until, f"throttle:{throttle['name']}" if throttle else "time"
                )
            started = started or event.after == RunState.RUNNING
        yield from self._places(
            [each for each in of_run if each.subject == "place" or "placed" in each.data]
        )

    def _pauses(self, events: Sequence[Event]) -> Iterator[Stretch]:
        since: int | None = None
        for event in events:
            if event.after == "paused":
                since = event.at if since is None else since
            elif since is not None:
                yield Stretch(since, event.at, PAUSED)
                since = None
        if since is not None:
            yield Stretch(since, self._end, PAUSED)

    def _queued(self, start: int, until: int, follows: Event | None) -> Iterator[Stretch]:
        waits: dict[str, int] = dict(follows.data.get("waits", {})) if follows is not None else {}
        if not waits and 0 in self._gates and follows is None:
            waits = {self._gates[0]: until - start}
        yield from in_order(start, until, filled(waits, until - start, self._nobody(start, until)))

    def _nobody(self, start: int, until: int) -> str:
        """Where it waited if its leader wrote nothing: perhaps there was none."""
        return LEADER if any(start < at <= until for at in self._elections) else HAND_OFF

    def _places(self, events: Sequence[Event]) -> Iterator[Stretch]:
        for event, follows in zip(events, [*events[1:], None], strict=False):
            if event.after == "held":
                continue
            until = self._end if follows is None else follows.at
            waits: dict[str, int] = {} if follows is None else follows.data.get("waits", {})
            queued = min(sum(waits.values()), until - event.at)
            what = PAUSED if event.data.get("reason") == PAUSED else _NO_WORKER
            if event.subject == "place":  # else it executes without a place, to be ended
                yield Stretch(event.at, until - queued, what)
            yield from in_order(until - queued, until, filled(waits, queued, HAND_OFF))

    def _between(self, start: int, end: int, others: Sequence[TaskTimes] = ()) -> list[Piece]:
        """A time in which no task of the path stood anywhere. `others`: their waits at gates explain it."""
        if end < start:
            return [Piece(CLOCK, end - start)]
        rest = self._nobody(start, end)
        others = () if rest == LEADER else others
        pieces: list[Piece] = []
        for each in disjoint(_waits(others, start, end), start, end):
            pieces += (Piece(what or rest, us) for what, us in self._overlaps(start, each.start))
            pieces.append(Piece(each.what, each.end - each.start))
            start = each.end
        pieces += (Piece(what or rest, us) for what, us in self._overlaps(start, end))
        return merged(pieces)

    def _overlaps(self, start: int, end: int, only: str = "") -> Iterator[tuple[str, int]]:
        """Parts of a time and the stretch of the run that each lies in, if any."""
        found = [
            each
            for each in self._stretches
            if each.start < end and each.end > start and only in {"", each.what}
        ]
        if not found:
            if end > start:
                yield "", end - start
            return
        cuts = {start, end, *(max(start, each.start) for each in found)}
        edges = sorted(cuts | {min(end, each.end) for each in found})
        for left, right in pairwise(edges):
            what = next((each.what for each in found if each.start <= left < each.end), "")
            yield what, right - left

    # -- its tasks ---------------------------------------------------------------------------------

    def _tasks(self) -> list[TaskTimes]:
        tasks: dict[int, TaskTimes] = {}
        before: dict[int, Event] = {}
        for number, event in enumerate(self._history):
            if event.subject != "task" or event.after == TaskState.PENDING:
                continue
            task = tasks.get(event.task)
            if task is None:
                if event.after not in {TaskState.REQUESTED, TaskState.SKIPPED}:
                    continue
                data = event.data
                task = TaskTimes(
                    event.task, data.get("node", -1), data.get("index", -1), number, event.at
                )
                tasks[event.task] = task
            else:
                last = before[event.task]
                task.add(last.at, event.at, self._pieces(task, last, event))
            before[event.task] = event
            task.last, task.end, task.state = number, event.at, event.after
        for task in tasks.values():
            if not task.ended:
                last = before[task.id]
                task.add(last.at, self._end, self._pieces(task, last, None))
                task.last, task.end = len(self._history), self._end
        return list(tasks.values())

    def _pieces(self, task: TaskTimes, event: Event, follows: Event | None) -> list[Piece]:
        """What the time between two of its events went into."""
        until = self._end if follows is None else follows.at
        us = until - event.at
        if us < 0:
            return [Piece(CLOCK, us)]
        if event.after == TaskState.RUNNING:
            lost = follows is not None and follows.after in _LOST
            return [Piece(LOST if lost else WORK, us)]
        if event.after == TaskState.REQUESTED and us:
            return merged(self._waited(task, event, follows, until))
        if event.after == TaskState.SCHEDULED and follows is not None and us:
            taken = follows.after == TaskState.RUNNING
            return [Piece(HAND_OFF if taken else OFFER, us)]
        return [Piece(self._nobody(event.at, until), us)] if us else []

    def _waited(
        self, task: TaskTimes, event: Event, follows: Event | None, until: int
    ) -> Iterator[Piece]:
        node = self._nodes[task.node] if 0 <= task.node < len(self._nodes) else None
        not_before = event.data.get("not_before", 0)
        if node is not None and node.wait is not None:
            yield from self._slept(node, event.at, until, not_before)
            return
        start = min(max(event.at, not_before), until)
        if start > event.at:
            yield Piece(BACK_OFF, start - event.at)
        paused = sum(us for what, us in self._overlaps(start, until, PAUSED) if what)
        if paused:
            yield Piece(PAUSED, paused)
        left = until - start - paused
        waits: dict[str, int] = {} if follows is None else follows.data.get("waits", {})
        waits = fitted(waits, left)
        left -= sum(waits.values())
        elsewhere: list[Piece] = []
        if left and self._stretches:
            for what, us in self._overlaps(start, until):
                part = min(us, left) if what not in {"", PAUSED, HAND_OFF} else 0
                if part:
                    elsewhere.append(Piece(what, part))
                    left -= part
        rest = next(iter(waits), "")
        if not rest:
            rest = self._unsaid(task, event, follows)
        for what, us in waits.items():
            yield Piece(what, us)
        yield from elsewhere
        if left:
            # Before its leader first looked at it: that is no time of its own.
            yield Piece(rest, left)

    def _unsaid(self, task: TaskTimes, event: Event, follows: Event | None) -> str:
        """Where a task waited whose leader wrote nothing about it."""
        if task.index > 0 and (self._sequential or task.node in self._in_order):
            return SEQUENTIAL
        if follows is None:
            return self._gates.get(task.id) or event.data.get("gate", HAND_OFF)
        gate = event.data.get("gate")
        return gate or self._nobody(event.at, follows.at)

    def _slept(self, node: Node, start: int, until: int, not_before: int) -> Iterator[Piece]:
        """A sleep or a wait for an event: until its time, or until the run was woken and queued."""
        what = "time" if node.event is None else f"event:{node.event.name}"
        asleep = min(until, not_before or until) if node.event is None else until
        for stretch, us in self._overlaps(start, asleep):
            yield Piece(stretch or what, us)
        rest = self._nobody(asleep, until)
        for stretch, us in self._overlaps(asleep, until):
            yield Piece(stretch or rest, us)

    # -- the critical path -------------------------------------------------------------------------

    def _path(self, tasks: list[TaskTimes]) -> list[tuple[TaskTimes | None, list[Piece]]]:
        path: list[tuple[TaskTimes | None, list[Piece]]] = []
        by_node: dict[int, list[TaskTimes]] = {}
        for task in tasks:
            by_node.setdefault(task.node, []).append(task)
        at, task = self._end, self._last(tasks)
        others: Sequence[TaskTimes] = ()
        while task is not None:
            path.append((None, self._between(task.end, at, others)))
            path.append((task, task.pieces))
            task.critical = True
            at, others = task.start, self._held_up_by(task, by_node[task.node])
            task = self._before(task, by_node)
        path.append((None, self._between(self._start, at, others)))
        path.reverse()
        return [(task, pieces) for task, pieces in path if pieces or task is not None]

    def _held_up_by(self, task: TaskTimes, items: Sequence[TaskTimes]) -> Sequence[TaskTimes]:
        """The items of its map, if it was asked for late because those before it had not started."""
        node = self._nodes[task.node] if 0 <= task.node < len(self._nodes) else None
        if task.index <= 0 or node is None or self._source_of(node) >= 0:
            return ()
        return items if task.start > min(each.start for each in items) else ()

    def _source_of(self, node: Node) -> int:
        """The map that it follows item by item; -1: none."""
        if isinstance(node.over, Output) and self._nodes[node.over.node].over is not None:
            others = needs_of(msgspec.structs.replace(node, over=None))
            return -1 if node.over.node in others else node.over.node
        return -1

    def _last(self, tasks: list[TaskTimes]) -> TaskTimes | None:
        """The one that ended last; of a run that goes on, the one that is open for longest."""
        still = [task for task in tasks if not task.ended]
        if still:
            return min(still, key=lambda task: task.first)
        return max(tasks, key=lambda task: (task.last, task.id), default=None)

    def _before(self, task: TaskTimes, by_node: Mapping[int, list[TaskTimes]]) -> TaskTimes | None:
        """Of the tasks that it needed, the one that ended last before it was requested."""
        found: TaskTimes | None = None
        for other in self._needed(task, by_node):
            if (
                other.ended
                and other.last <= task.first
                and other is not task
                and not other.critical
                and (found is None or (other.last, other.id) > (found.last, found.id))
            ):
                found = other
        return found

    def _needed(
        self, task: TaskTimes, by_node: Mapping[int, list[TaskTimes]]
    ) -> Iterator[TaskTimes]:
        if not 0 <= task.node < len(self._nodes):
            return
        node = self._nodes[task.node]
        if task.state == TaskState.SKIPPED or node.run_if != "success":
            # Decided when nothing was left before it.
            yield from (other for others in by_node.values() for other in others)
            return
        nodes = set(range(task.node)) if self._sequential else needs_of(node)
        chained = self._source_of(node)  # item i needs item i alone
        for index in nodes:
            for other in by_node.get(index, ()):
                if index != chained or other.index == task.index or self._sequential:
                    yield other


def _waits(tasks: Sequence[TaskTimes], start: int, end: int) -> Iterator[Stretch]:
    """What these waited for at gates between two instants."""
    for task in tasks:
        if task.start < end and task.end > start:
            for span in task.spans:
                if span.start < end and span.end > start:
                    waits = {what: us for what, us in span.pieces if what not in _ITS_OWN}
                    yield from in_order(span.start, span.end, waits)
