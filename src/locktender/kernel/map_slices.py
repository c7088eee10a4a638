"""When the items of a large map are asked for: not all in the cycle that opens the map.

A map asks for `ITEMS_PER_CYCLE` items in each cycle. For its first `hold_back_us`, a map whose items all need
the same asks for a few more only when none of its items waits at the gates. Then most items start in the cycle
that asks for them: their row is written once instead of twice, and items that wait take no memory. After that it
asks for the rest, so that demand, `why` and the clocks of waiting know every item. All of them stand in line by
the instant at which the map was opened: a younger run does not come between.
"""

from __future__ import annotations

from locktender.base.graph import starts_in_order
from locktender.kernel.dag import RunGraph
from locktender.kernel.entries import RunEntry
from locktender.kernel.lifecycle import Lifecycle


class MapSlices:
    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._expanding = lifecycle.expanding
        self._hold_back_us = lifecycle.defaults.hold_back_us

    def begin_cycle(self, now: int) -> None:
        """Ask for further items. A run that has more after that comes behind the others."""
        for run, since in list(self._expanding.values()):
            graph = self._lifecycle.run_graphs.get(run.seq)
            if graph is None:
                del self._expanding[run.seq]
                continue
            held_back = self._held_back(run, graph, since, now)
            for node in held_back:
                self.ask_if_none_waits(run, node, now)
            due = [node for node in graph.backlog.maps if node not in held_back]
            if due and self._lifecycle.budget.left > 0:
                del self._expanding[run.seq]
                self._lifecycle.at_run = run.seq
                self._lifecycle.apply(run, graph.go_on(graph.backlog.items(due)), now)
                if run.seq in self._expanding:
                    self._expanding[run.seq] = run, since
        self._lifecycle.at_run = 0

    def ask_if_none_waits(self, run: RunEntry, node: int, now: int) -> None:
        """If none of a map's items waits any more, the next ones stand in line before others start."""
        if run.waiting.get(node) or run.seq not in self._expanding:
            return
        graph = self._lifecycle.run_graphs[run.seq]
        if node in graph.backlog.maps:
            self._lifecycle.at_run = run.seq
            self._lifecycle.apply(run, graph.go_on([graph.backlog.next_items(node)]), now)
            if not graph.backlog.maps:
                self._expanding.pop(run.seq, None)

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
            if not graph.steps[node].closed and self._needs_alike(run, node)
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
