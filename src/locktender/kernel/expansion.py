"""Numbers of a run's tasks, and large maps in slices: so many items a cycle, and other runs go on in between.

A map that is opened gets the numbers of all its items at once. Where not all of its items are asked for in the
same cycle, its last item is stored as *pending* with that commit: so its rows say how many items it has, and a new
leader gives each item the number it would have had. The other items get their rows when they are asked for.
`map_slices.py` says when.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from locktender.base.ids import MAX_TASKS_PER_RUN
from locktender.kernel.node_state import NodeState

ITEMS_PER_CYCLE = 500
"""Of all runs together, beside those that start in the same cycle (`next_items`). With 2,000 a run of one step
took twice as long beside a large map, which took no less."""
SMALL_SHARE: Final = 5
"""A map of at most this part of it is expanded at once: it costs no more than the steps around it."""
NEXT_SHARE: Final = 16
"""This part is asked for where none of a map's items waits: those that cannot start now are written twice."""
_UNBOUNDED: Final = 1 << 62


class ItemBudget:
    """Items that a leader may still ask for in this cycle. Shared by the graphs of all its runs."""

    __slots__ = ("left", "size")

    def __init__(self, size: int | None = None) -> None:
        self.size: int = ITEMS_PER_CYCLE if size is None else size
        self.left: int = self.size

    def renew(self) -> None:
        """A cycle begins."""
        self.left = self.size

    def grant(self, wanted: int) -> int:
        """How many items of a map that is opened are asked for at once."""
        given = wanted
        if wanted > max(self.left, self.size // SMALL_SHARE):
            given = max(0, self.left)
        self.left -= given
        return given


class Backlog:
    """The maps of one run that have items to be asked for, the first opened first."""

    __slots__ = ("budget", "maps")

    def __init__(self, budget: ItemBudget | None) -> None:
        self.budget: ItemBudget = ItemBudget(_UNBOUNDED) if budget is None else budget
        self.maps: dict[int, NodeState] = {}

    def put(self, step: NodeState, indexes: Iterable[int]) -> None:
        """These items are asked for later."""
        step.behind = deque(indexes)
        self.maps[step.index] = step

    def items(self, nodes: Iterable[int]) -> Iterator[tuple[NodeState, Sequence[int]]]:
        """The next items of these maps, as many as the cycle may ask for."""
        for node in nodes:
            if self.budget.left <= 0:
                return
            step = self.maps[node]
            indexes = self._next(step, self.budget.left)
            self.budget.left -= len(indexes)
            yield step, indexes

    def next_items(self, node: int) -> tuple[NodeState, Sequence[int]]:
        """A few items of a map that has none waiting. Not taken from the budget: at most once for each start."""
        step = self.maps[node]
        return step, self._next(step, max(1, self.budget.size // NEXT_SHARE))

    def _next(self, step: NodeState, most: int) -> Sequence[int]:
        behind = step.behind
        found = [behind.popleft() for _ in range(min(most, len(behind)))] if behind else []
        if not behind:
            del self.maps[step.index]
            step.behind = None
        return found


class Ordinals:
    """The numbers of a run's tasks. A node has a block of them; one that has rows keeps the block it had."""

    __slots__ = ("_steps", "next")

    def __init__(self, steps: Sequence[NodeState]) -> None:
        self._steps = steps
        self.next: int = 0

    def keep_blocks(self) -> None:
        """At a rebuild: a map may have rows for a few items only, and the rest of its block stays its own."""
        for step in self._steps:
            if step.base >= 0 and step.mapped:
                self.next = max(self.next, step.base + self._root(step).total)

    def claim(self, step: NodeState, count: int) -> None:
        if step.again and step.base >= 0 and count > self._root(step).total:
            raise ValueError(
                f"it had {self._root(step).total:,} items when the run was first tried and has {count:,} now;"
                " a retry keeps the place of each item: submit the run anew"
            )
        if step.base < 0:
            if self.next + count > MAX_TASKS_PER_RUN:
                raise ValueError(f"a run has at most {MAX_TASKS_PER_RUN:,} tasks")
            step.base = self.next
            self.next += count

    def _root(self, step: NodeState) -> NodeState:
        while step.source is not None:
            step = self._steps[step.source]
        return step
