"""The state of a run's nodes, and the records that `dag.py` returns when one of them changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from enum import IntEnum
from heapq import heappop
from typing import TypeVar

import msgspec

from locktender.base import codec
from locktender.base.graph import (
    AnyTemplate,
    FailureOf,
    Graph,
    Node,
    Output,
    needs_of,
    outputs,
    templates,
)
from locktender.base.model import Failure
from locktender.base.names import MAX_ITEMS

T = TypeVar("T")
TAINTED = "tainted"
"""The type under which a skipped task's row says that something it needs failed."""
UNNEEDED = "the retried run did not need it"
PASSED = "passed_on"
"""The type under which a skipped task's row says that its item is an error, and so is its result."""
SLICE = 1_000
"""Rows that a rebuild takes up without a break."""
MAX_SHOWN = 300
"""Characters of a passed error in the reason."""
MAX_WIRED, MAX_WIRED_NODES = 1_000, 50
"""Graphs that are kept wired, and nodes of one: a large graph takes its time anyway."""
PLAIN = -1
"""The index of a task that is not an item."""


class Phase(IntEnum):
    WAITING = 0
    ACTIVE = 1
    OK = 2
    FAILED = 3
    SKIPPED = 4
    TAINTED = 5


class NodeState(msgspec.Struct):
    """Where one node of one run stands."""

    index: int
    node: Node
    waits: int = 0
    """Nodes it needs that have not ended (for its element-wise source: not been expanded)."""
    phase: Phase = Phase.WAITING
    source: int | None = None
    """The mapped node it follows item by item."""
    whole: frozenset[int] = frozenset()
    """Nodes that must have ended before it starts. Its source is one of them only if it is named twice."""
    followers: Sequence[int] = ()
    dependents: tuple[int, ...] = ()
    total: int = 0
    ended: int = 0
    failed: int = 0
    missing: int = 0
    """Items that could not run because what they follow failed."""
    closed: bool = False
    """An item failed under on_error="fail": no further item starts."""
    expanded: bool = False
    had_rows: bool = False
    base: int = -1
    """Ordinal of its first task."""
    again: list[Existing] | None = None
    """Rows of earlier tries of a retried run that are asked for once more."""
    output: bytes | None = None
    items: list[bytes | None] | None = None
    early: list[int] | None = None
    """Items of its source that ended before it was itself ready, or, in order, before an earlier item. A heap."""
    asked: int = 0
    """Of a map in order: items below this one were asked for."""
    behind: deque[int] | None = None
    """Of a map that is expanded in slices: items that may be asked for and were not yet."""
    elements: Sequence[bytes] = ()
    """What it maps over, until all its items were asked for."""
    failure: Failure | None = None
    readers: int = 0
    """Nodes that may still read its output, and the run's result: without any it is not kept in memory."""
    read_at_start: frozenset[int] = frozenset()
    """Nodes whose output it reads when it starts, and never again."""
    read_until_end: frozenset[int] = frozenset()
    """Nodes whose output it reads for each of its tasks, and when a task is restored."""

    @property
    def mapped(self) -> bool:
        return self.node.over is not None


class Existing(msgspec.Struct, frozen=True):
    """A row that is already there, as `RunGraph` needs it at a rebuild."""

    node: int
    idx: int
    ordinal: int
    state: str
    output: bytes | None
    error: bytes | None
    final: bool
    """No attempt follows."""
    again: bool = False
    """Its run was retried: it is asked for once more, in the same row."""


class TaskRequest(msgspec.Struct, gc=False):
    """One task to request."""

    node: int
    idx: int
    ordinal: int
    input: bytes
    item: bytes | None


class Skipped(msgspec.Struct):
    """One task that will never run."""

    node: int
    idx: int
    ordinal: int
    reason: str
    tainted: bool
    passed: bool = False
    """Its item is an error, which is its result, too."""


class Advance(msgspec.Struct):
    """What follows from the last change."""

    requests: list[TaskRequest] = []
    reserved: list[tuple[int, int, int]] = []
    """(node, index, ordinal) of the last item of each map whose items come in slices from here on."""
    shared: list[tuple[int, bytes]] = []
    skips: list[Skipped] = []
    closing: list[int] = []
    """Maps of which no further item may start."""
    stop: bool = False
    """The flow fails fast, or its own logic is broken: end what is in flight."""


NOTHING: Advance = Advance()
"""What follows from most ends: items of a map that wait for each other. Never added to."""


class Wiring:
    """What the nodes of a graph are to each other, found once for all runs of a scheduler that have the graph."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Graph, list[NodeState]]] = {}

    def first_states(self, graph: Graph) -> list[NodeState]:
        """The nodes of a run that has not begun."""
        if len(graph.nodes) > MAX_WIRED_NODES:
            return _wire(graph)
        known = self._known.get(id(graph))
        if known is None:
            if len(self._known) >= MAX_WIRED:
                self._known.clear()
            # It keeps the graph: no other one can have its id.
            known = self._known[id(graph)] = graph, _wire(graph)
        return [
            NodeState(
                *(step.index, step.node, step.waits),
                source=step.source,
                whole=step.whole,
                followers=step.followers,
                dependents=step.dependents,
                readers=step.readers,
                read_at_start=step.read_at_start,
                read_until_end=step.read_until_end,
            )
            for step in known[1]
        ]


def _wire(graph: Graph) -> list[NodeState]:
    steps = [NodeState(index, node) for index, node in enumerate(graph.nodes)]
    followers: list[list[int]] = [[] for _ in steps]
    dependents: list[list[int]] = [[] for _ in steps]
    for step in steps:
        step.source = source_of(step.node, graph.nodes)
        step.whole = whole_needs(step.node, step.source)
        for needed in sorted(step.whole):
            step.waits += 1
            dependents[needed].append(step.index)
        if step.source is not None:
            step.waits += 1
            followers[step.source].append(step.index)
    for step in steps:
        step.followers = followers[step.index]
        step.dependents = tuple(dependents[step.index])
    _count_readers(graph, steps)
    return steps


def _named(several: Iterable[AnyTemplate]) -> frozenset[int]:
    return frozenset(ref.node for each in several for ref in outputs(each))


def _count_readers(graph: Graph, steps: Sequence[NodeState]) -> None:
    """Who reads which output, and until when. Items that are followed one by one are not counted."""
    for step in steps:
        node = step.node
        late: list[AnyTemplate] = [
            part for need in node.pools for part in need.key if not isinstance(part, str)
        ]
        if step.mapped:
            late += [*node.args, *node.kwargs.values()]
        if node.cache is not None and node.cache.key is not None:
            late.append(Output(node.cache.key))
        all_read = [each for each in templates(node) if step.source is None or each != node.over]
        step.read_until_end = _named(late)
        step.read_at_start = _named(all_read) - step.read_until_end
        for index in step.read_at_start | step.read_until_end:
            steps[index].readers += 1
    if graph.result is not None:
        for index in _named([graph.result]):
            steps[index].readers += 1


def has_started(step: NodeState, steps: Sequence[NodeState]) -> None:
    """It reads some outputs never again."""
    read, step.read_at_start = step.read_at_start, frozenset()
    for index in read:
        steps[index].readers -= 1
        drop_output(steps[index], steps)
    if step.source is not None:
        drop_output(steps[step.source], steps)


def has_ended(step: NodeState, steps: Sequence[NodeState]) -> None:
    """It reads nothing any more."""
    step.read_at_start, step.read_until_end = step.read_at_start | step.read_until_end, frozenset()
    has_started(step, steps)
    drop_output(step, steps)


def drop_output(step: NodeState, steps: Sequence[NodeState]) -> None:
    """Removes outputs that no step will read; they stay in the store."""
    if step.readers:
        return
    step.output = None
    if step.items is not None and not _followed_later(step, steps):
        ended = step.phase is not Phase.ACTIVE
        step.items = [] if ended else list[bytes | None]([None]) * step.total


def keep_output(step: NodeState, idx: int, output: bytes, steps: Sequence[NodeState]) -> None:
    """The output of a task that ended, if it is read by another than the followers that are there now."""
    if step.items is None:
        step.output = output if step.readers else None
    elif step.readers or _followed_later(step, steps):
        step.items[idx] = output
    else:
        step.items[idx] = None


def _followed_later(step: NodeState, steps: Sequence[NodeState]) -> bool:
    """Whether a map that follows this one has not begun, or has not yet read the items that ended earlier."""
    return any(
        (not steps[index].expanded or steps[index].behind or steps[index].early)
        and steps[index].phase in (Phase.WAITING, Phase.ACTIVE)
        for index in step.followers
    )


def output_of(step: NodeState, steps: Sequence[NodeState]) -> bytes | None:
    """A node's output as a value; None where it has none."""
    if step.phase is not Phase.OK and not (
        step.mapped and step.phase in (Phase.FAILED, Phase.TAINTED)
    ):
        return None
    if step.items is not None and step.output is None:
        step.output = codec.join_list([b"null" if item is None else item for item in step.items])
        if not _followed_later(step, steps):
            step.items = []
    return step.output


def element_of(step: NodeState, idx: int, steps: Sequence[NodeState]) -> bytes | None:
    """What an item of a map is called with; None: what it follows gave nothing."""
    if step.source is None:
        return step.elements[idx]
    items = steps[step.source].items
    return None if items is None else items[idx]


def now_due(step: NodeState) -> Sequence[int]:
    """Items of a map that may be asked for, as those of its source have ended; in order: with all before them."""
    if not step.node.in_order:
        due, step.early = sorted(step.early or ()), None
        return due
    first = step.asked
    while step.early and step.early[0] == step.asked:
        heappop(step.early)
        step.asked += 1
    return range(first, step.asked)


def run_through(parts: Generator[None, None, T]) -> T:
    """What a generator returns, without its breaks."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            return end.value


def cleans_up(node: Node, *, failed: bool) -> bool:
    """Whether a step runs in a run that is being ended; `failed`: because a step failed (`fail="fast"`)."""
    return node.run_if == "always" or (failed and node.run_if == "failure")


def source_of(node: Node, nodes: Sequence[Node]) -> int | None:
    """The map that a map follows item by item."""
    over = node.over
    listed = isinstance(over, Output) and not over.path and nodes[over.node].over is not None
    return over.node if isinstance(over, Output) and listed else None


def whole_needs(node: Node, source: int | None) -> frozenset[int]:
    """Nodes that must have ended before this one starts; `source` is the map it follows item by item."""
    # Whether a map failed is known when it has ended: only then what runs after a failure may follow it.
    if source is None or node.run_if == "failure":
        return frozenset(needs_of(node))
    return frozenset(needs_of(msgspec.structs.replace(node, over=None)))


def why_not(step: NodeState, steps: Sequence[NodeState]) -> tuple[str, bool] | None:
    """None: it may run. Else why it is skipped, and whether because something failed."""
    node = step.node
    phases = {index: steps[index].phase for index in sorted(step.whole)}
    if node.run_if == "success":
        # First: a step that was skipped must count as tainted if anything before it failed.
        for index, phase in phases.items():
            if phase in (Phase.FAILED, Phase.TAINTED):
                return f"{steps[index].node.name} did not succeed", True
    lacking = _without_items(step, steps)
    if lacking is not None:
        # A clean-up is skipped then, too: there is nothing to map over.
        return f"{lacking.node.name} gave no items", lacking.phase is not Phase.SKIPPED
    if node.run_if == "always":
        return None
    if node.run_if == "failure":
        return None if Phase.FAILED in phases.values() else ("nothing failed", False)
    if Phase.SKIPPED in phases.values():
        with_data = _named(templates(node))
        for index, phase in phases.items():
            if phase is Phase.SKIPPED and index in with_data:
                return f"{steps[index].node.name} was skipped", False
    return None


def failure_before(step: NodeState, steps: Sequence[NodeState]) -> bytes | None:
    """For a step that asks for it: the failure it runs after, the first in the order of the flow's calls."""
    for each in step.node.args:
        if isinstance(each, FailureOf):
            break
    else:
        return None
    failed = (steps[index] for index in sorted(step.whole) if steps[index].phase is Phase.FAILED)
    found = next((each.failure for each in failed if each.failure is not None), None)
    return None if found is None else codec.error_value(found)


def passes_on(node: Node, item: bytes) -> bool:
    """Whether an item is an error that the body is not called for. A clean-up is called for every item."""
    return codec.is_error(item) and not node.take_errors and node.run_if == "success"


def passed_on(step: NodeState, idx: int, item: bytes) -> Skipped:
    error = codec.decode(item, codec.StepError)
    reason = f"its item is the error of {error.node}, which it passes on: {str(error)[:MAX_SHOWN]}"
    return Skipped(step.index, idx, step.base + idx, reason, tainted=False, passed=True)


def check_size(node: Node, count: int) -> None:
    if count > MAX_ITEMS:
        raise ValueError(
            f"{node.name} maps over {count:,} items; at most {MAX_ITEMS:,} are allowed"
        )


def _without_items(step: NodeState, steps: Sequence[NodeState]) -> NodeState | None:
    """The node that was to give a map its items and did not."""
    if step.source is not None:
        source = steps[step.source]
        return None if source.expanded else source
    if not isinstance(step.node.over, Output):
        return None
    listed = steps[step.node.over.node]
    return None if listed.phase is Phase.OK or listed.expanded else listed
