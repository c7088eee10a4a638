"""Where the steps of a graph are drawn: layers from left to right, few crossings, straight edges.

The method is Sugiyama's. Each node gets the layer of its longest path. An edge that passes layers gets a bend
in each of them. Layers are ordered by the medians of their neighbours, and of all orders that were tried the one
with the fewest crossings is kept. Then each layer is placed as near to its neighbours as the order allows, by
least squares. The same graph always gives the same picture.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

SWEEPS: Final = 8
PLACINGS: Final = 10
MAX_BENDS: Final = 4_000
"""Beyond it long edges are drawn straight: bends would cost more than they show."""
LAYER_GAP: Final = 56.0
NODE_GAP: Final = 18.0
BEND_GAP: Final = 10.0


class Point(NamedTuple):
    x: float
    y: float


@dataclass(slots=True)
class Placed:
    """A picture: the upper left corner of each node, and the points of each edge in its order."""

    width: float = 0.0
    height: float = 0.0
    nodes: list[Point] = field(default_factory=list[Point])
    edges: list[tuple[Point, ...]] = field(default_factory=list[tuple[Point, ...]])
    layers: list[int] = field(default_factory=list[int])


def ranks(count: int, edges: Iterable[tuple[int, int]]) -> list[int]:
    """The layer of each node: one behind the last that it needs. Edges that close a circle are ignored."""
    after: list[list[int]] = [[] for _ in range(count)]
    before = [0] * count
    for source, target in edges:
        if source != target:
            after[source].append(target)
            before[target] += 1
    found = [0] * count
    ready = [node for node in range(count) if not before[node]]
    for node in ready:  # grows while it is read
        for target in after[node]:
            found[target] = max(found[target], found[node] + 1)
            before[target] -= 1
            if not before[target]:
                ready.append(target)
    return found


def place(sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]]) -> Placed:
    """`sizes`: width and height of each node; `edges`: from a node to one that needs it."""
    if not sizes:
        return Placed()
    return _Layout(sizes, edges).placed()


class _Layout:
    """Nodes are numbers; those beyond the given ones are bends of edges."""

    def __init__(
        self, sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]]
    ) -> None:
        self._sizes = sizes
        self._edges = edges
        self._rank = ranks(len(sizes), edges)
        self._heights = [height for _, height in sizes]
        self._ways: list[list[int]] = []
        self._up: list[list[int]] = [[] for _ in sizes]
        self._down: list[list[int]] = [[] for _ in sizes]
        self._bend()
        self._layers: list[list[int]] = [[] for _ in range(max(self._rank) + 1)]
        for node in range(len(self._rank)):
            self._layers[self._rank[node]].append(node)

    def placed(self) -> Placed:
        self._order()
        middles = self._middles()
        top = min(middles[node] - self._heights[node] / 2 for node in range(len(middles)))
        middles = [middle - top for middle in middles]
        widths = [
            max((self._sizes[node][0] for node in layer if node < len(self._sizes)), default=0.0)
            for layer in self._layers
        ]
        lefts: list[float] = [0.0]
        for width in widths:
            lefts.append(lefts[-1] + width + LAYER_GAP)
        count = len(self._sizes)
        return Placed(
            width=lefts[-1] - LAYER_GAP,
            height=max(middles[node] + self._heights[node] / 2 for node in range(len(middles))),
            nodes=[
                Point(lefts[self._rank[node]], middles[node] - self._heights[node] / 2)
                for node in range(count)
            ],
            edges=[self._points(way, lefts, widths, middles) for way in self._ways],
            layers=self._rank[:count],
        )

    def _bend(self) -> None:
        spans = sum(max(0, self._rank[b] - self._rank[a] - 1) for a, b in self._edges)
        for source, target in self._edges:
            way = [source]
            between = range(self._rank[source] + 1, self._rank[target])
            for layer in between if spans <= MAX_BENDS else ():
                way.append(len(self._rank))
                self._rank.append(layer)
                self._heights.append(0.0)
                self._up.append([])
                self._down.append([])
            way.append(target)
            self._ways.append(way)
            for one, other in pairwise(way):
                if self._rank[other] == self._rank[one] + 1:
                    self._down[one].append(other)
                    self._up[other].append(one)

    # -- the order of each layer -------------------------------------------------------------------

    def _order(self) -> None:
        best, fewest = [list(layer) for layer in self._layers], self._crossings()
        for sweep in range(SWEEPS):
            if not fewest:
                break
            forward = sweep % 2 == 0
            neighbours = self._up if forward else self._down
            numbers = range(1, len(self._layers))
            for number in numbers if forward else reversed(range(len(self._layers) - 1)):
                beside = self._layers[number - 1 if forward else number + 1]
                at = {node: place for place, node in enumerate(beside)}
                self._layers[number] = _by_median(self._layers[number], neighbours, at)
            crossings = self._crossings()
            if crossings < fewest:
                best, fewest = [list(layer) for layer in self._layers], crossings
        self._layers = best

    def _crossings(self) -> int:
        found = 0
        for one, other in pairwise(self._layers):
            at = {node: place for place, node in enumerate(other)}
            passed: list[int] = []
            for node in one:
                ends = sorted(at[target] for target in self._down[node])
                found += sum(len(passed) - bisect_right(passed, end) for end in ends)
                for end in ends:
                    insort(passed, end)
        return found

    # -- where each node stands --------------------------------------------------------------------

    def _middles(self) -> list[float]:
        middles = [0.0] * len(self._rank)
        for layer in self._layers:
            at = 0.0
            for node, gap in zip(layer, [0.0, *self._gaps(layer)], strict=False):
                at += gap
                middles[node] = at
        for turn in range(PLACINGS):
            forward = turn % 2 == 0
            for layer in self._layers if forward else reversed(self._layers):
                wanted = [self._wanted(node, middles, forward) for node in layer]
                for node, at in zip(layer, nearest(wanted, self._gaps(layer)), strict=True):
                    middles[node] = at
        return middles

    def _wanted(self, node: int, middles: Sequence[float], forward: bool) -> float:
        near = self._up[node] if forward else self._down[node]
        near = near or (self._down[node] if forward else self._up[node])
        if not near:
            return middles[node]
        return _median([middles[each] for each in near])

    def _gaps(self, layer: Sequence[int]) -> list[float]:
        found: list[float] = []
        for one, other in pairwise(layer):
            bends = one >= len(self._sizes) and other >= len(self._sizes)
            gap = BEND_GAP if bends else NODE_GAP
            found.append((self._heights[one] + self._heights[other]) / 2 + gap)
        return found

    def _points(
        self,
        way: Sequence[int],
        lefts: Sequence[float],
        widths: Sequence[float],
        middles: Sequence[float],
    ) -> tuple[Point, ...]:
        first, last = way[0], way[-1]
        found = [Point(lefts[self._rank[first]] + self._sizes[first][0], middles[first])]
        for node in way[1:-1]:
            left = lefts[self._rank[node]]
            found += [
                Point(left, middles[node]),
                Point(left + widths[self._rank[node]], middles[node]),
            ]
        found.append(Point(lefts[self._rank[last]], middles[last]))
        return tuple(found)


def _by_median(
    layer: Sequence[int], neighbours: Sequence[Sequence[int]], at: Mapping[int, int]
) -> list[int]:
    """Nodes without neighbours keep their places; the others are sorted around them."""
    medians = {
        node: _median([float(at[each]) for each in neighbours[node]])
        for node in layer
        if neighbours[node]
    }
    sorted_nodes = iter(sorted(medians, key=lambda node: medians[node]))
    return [next(sorted_nodes) if node in medians else node for node in layer]


def _median(values: list[float]) -> float:
    values.sort()
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2


def nearest(wanted: Sequence[float], gaps: Sequence[float]) -> list[float]:
    """The places nearest to the wanted ones, by least squares, in the same order and with these gaps at least.

    Without the gaps it is a monotone regression: neighbours that are in each other's way share their mean.
    """
    offsets = [0.0]
    for gap in gaps:
        offsets.append(offsets[-1] + gap)
    blocks: list[tuple[float, int]] = []  # sum and count of those that stand together
    for want, offset in zip(wanted, offsets, strict=False):
        total, count = want - offset, 1
        while blocks and blocks[-1][0] * count >= total * blocks[-1][1]:
            before, several = blocks.pop()
            total, count = total + before, count + several
        blocks.append((total, count))
    means = [total / count for total, count in blocks for _ in range(count)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=False)]
