"""Where the steps of a graph are drawn: pure geometry."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from locktender.server.ui.graph_layout import NODE_GAP, nearest, place, ranks

SIZE = (190.0, 50.0)


def test_a_diamond_is_symmetric():
    placed = place([SIZE] * 4, [(0, 1), (0, 2), (1, 3), (2, 3)])

    assert placed.layers == [0, 1, 1, 2]
    start, left, right, end = placed.nodes
    assert start.y == end.y == (left.y + right.y) / 2
    assert right.y - left.y == SIZE[1] + NODE_GAP
    assert [points[0].x for points in placed.edges[:2]] == [SIZE[0], SIZE[0]]


def test_an_edge_over_layers_bends_around_boxes():
    placed = place([SIZE] * 3, [(0, 1), (0, 2), (1, 2)])

    long = placed.edges[1]
    middle = placed.nodes[1]
    assert len(long) == 4
    assert not middle.y <= long[1].y <= middle.y + SIZE[1]


def test_crossings_are_removed():
    # Two chains that cross in the order in which they were made.
    placed = place([SIZE] * 4, [(0, 3), (1, 2)])

    assert (placed.nodes[0].y < placed.nodes[1].y) == (placed.nodes[3].y < placed.nodes[2].y)


def test_a_circle_does_not_hang_it():
    assert ranks(2, [(0, 1), (1, 0)]) == [0, 0]


def test_an_empty_graph_is_empty():
    assert place([], []).width == 0.0


@given(st.data())
def test_boxes_never_overlap(data: st.DataObject):
    count = data.draw(st.integers(1, 25))
    edges = [
        (source, target)
        for target in range(1, count)
        for source in data.draw(st.sets(st.integers(0, target - 1), max_size=3))
    ]
    sizes = [(190.0, data.draw(st.sampled_from([50.0, 62.0]))) for _ in range(count)]

    placed = place(sizes, edges)

    assert placed == place(sizes, edges)
    for source, target in edges:
        assert placed.nodes[source].x < placed.nodes[target].x
    by_layer: dict[int, list[int]] = {}
    for node, layer in enumerate(placed.layers):
        by_layer.setdefault(layer, []).append(node)
    for nodes in by_layer.values():
        spans = sorted((placed.nodes[each].y, sizes[each][1]) for each in nodes)
        for (y, height), (below, _) in pairwise(spans):
            assert y + height + NODE_GAP <= below + 0.01
    for at, (_, height) in zip(placed.nodes, sizes, strict=True):
        assert -0.01 <= at.y <= placed.height - height + 0.01


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=12))
def test_places_keep_their_gaps(wanted: list[float]):
    gaps = [10.0] * (len(wanted) - 1)

    found = nearest(wanted, gaps)

    assert all(right - left >= 10.0 - 1e-6 for left, right in pairwise(found))
    if all(right - left >= 10.0 for left, right in pairwise(wanted)):
        assert all(abs(at - want) < 1e-6 for at, want in zip(found, wanted, strict=True))


def test_a_thousand_steps_are_placed():
    chance = random.Random(7)
    edges = [(chance.randrange(max(0, n - 40), n), n) for n in range(1, 1_000)]
    edges += [(chance.randrange(n), n) for n in range(100, 1_000, 10)]

    placed = place([SIZE] * 1_000, sorted(set(edges)))

    assert len(placed.nodes) == 1_000
