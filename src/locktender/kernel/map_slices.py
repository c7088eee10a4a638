"""When the items of a large map are asked for: not all in the cycle that opens the map.

A map asks for `ITEMS_PER_CYCLE` items in each cycle. For its first `hold_back_us`, a map whose items all need
the same asks for a few more only when none of its items waits at the gates. Then most items start in the cycle
that asks for them: their row is written once instead of twice, and items that wait take no memory. After that it
asks for the rest, so that demand, `why` and the clocks of waiting know every item. All of them stand in line by
the instant at which the map was opened: a younger run does not come between. One exception: a cycle starts at most
`ASKED_SHARE` of its tasks from items that it asks for, and gives the remaining starts to other tasks in line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from locktender.base.graph import starts_in_order
from locktender.kernel.dag import RunGraph
from locktender.kernel.entries import RunEntry
from locktender.kernel.lifecycle import Lifecycle
from locktender.kernel.node_state import NodeState

ASKED_SHARE: Final = (3, 4)
"""Of the starts that a cycle may make, so many may be of items that are asked for in it."""


class MapSlices:
    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._expanding = lifecycle.expanding
        self._hold_back_us = lifecycle.defaults.hold_back_us
        self._held: dict[int, set[int]] = {}
        """Run → its maps that hold items back in this cycle."""
        self._left = 0
        """Items that may still be asked for in this cycle: other runs start in it, too."""

    def begin_cycle(self, now: int) -> None:
        """Ask for further items. A run that has more after that comes behind the others."""
        starts = self._lifecycle.ledger.limits.max_starts_per_cycle
        self._left = max(1, starts * ASKED_SHARE[0] // ASKED_SHARE[1])
        self._held.clear()
        for run, since in list(self._expanding.values()):
            graph = self._lifecycle.run_graphs.get(run.seq)
            if graph is None:
                del self._expanding[run.seq]
                continue
            held_back = self._held[run.seq] = self._held_back(run, graph, since, now)
            for node in held_back:
                self.ask_if_none_waits(run, node, now)
            due = [node for node in graph.backlog.maps if node not in held_back]
            if due and self._lifecycle.budget.left > 0:
                del self._expanding[run.seq]
                self._ask(run, graph, graph.backlog.items(due), now)
                if run.seq in self._expanding:
                    self._expanding[run.seq] = run, since
        self._lifecycle.at_run = 0

    def ask_if_none_waits(self, run: RunEntry, node: int, now: int) -> None:
        """If none of a map's items waits any more, the next ones stand in line before others start."""
        if self._left <= 0 or run.waiting.get(node) or run.seq not in self._expanding:
            return
        graph = self._lifecycle.run_graphs[run.seq]
        if run.seq not in self._held:  # it was opened in this cycle
            self._held[run.seq] = self._held_back(run, graph, now, now)
        if node in graph.backlog.maps and node in self._held[run.seq]:
            self._ask(run, graph, [graph.backlog.next_items(node)], now)
            if not graph.backlog.maps:
                self._expanding.pop(run.seq, None)

    def _ask(
        self,
        run: RunEntry,
        graph: RunGraph,
        items: Iterable[tuple[NodeState, Sequence[int]]],
        now: int,
    ) -> None:
        asked = list(items)
        self._left -= sum(len(indexes) for _, indexes in asked)
        self._lifecycle.at_run = run.seq
        self._lifecycle.apply(run, graph.go_on(asked), now)

    def unfinished(self, now: int) -> bool:
        """Whether the next cycle has items to ask for, whatever happens until then."""
        for run, since in self._expanding.values():
            graph = self._lifecycle.run_graphs.get(run.seq)
            if graph is not None:
                held_back = self._held_back(run, graph, since, now)
                if any(
                    node not in held_back or not run.waiting.get(node)
                    for node in graph.backlog.maps
                ):
                    return True
        return False

    def next_wake(self) -> int | None:
        """When the first map that holds items back asks for the rest of them."""
        return min(
            (since + self._hold_back_us for _, since in self._expanding.values()), default=None
        )

    def _held_back(self, run: RunEntry, graph: RunGraph, since: int, now: int) -> set[int]:
        """Maps whose items are asked for as they can start."""
        # The store's clock may have been set back since.
        if run.paused or not run.placed or not since <= now < since + self._hold_back_us:
            return set()
        # Items of a run or a map that is being ended are skipped: nothing holds them back.
        if run.row.verdict is not None:
            return set()
        return {
            node
            for node in graph.backlog.maps
            if node in run.opened and not graph.steps[node].closed and self._needs_alike(run, node)
        }

    def _needs_alike(self, run: RunEntry, node: int) -> bool:
        """Whether a map's items wait in one line, and none has a clock that runs from its request."""
        spec = run.graph.nodes[node]
        if spec.wait is not None or spec.cache is not None or starts_in_order(run.graph, spec):
            return False
        timeouts = spec.queue_timeout_us, run.row.queue_timeout_us, run.graph.queue_timeout_us
        if any(each is not None for each in (*timeouts, self._lifecycle.defaults.queue_timeout_us)):
            return False
        return all(isinstance(part, str) for need in spec.pools for part in need.key)
