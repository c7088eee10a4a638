"""Known graphs are kept within bounds: while they are used, and made again after that."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from locktender.base.graph import Graph, Node
from locktender.flows import trace as tracing
from locktender.flows.flows import flow
from locktender.flows.steps import step
from locktender.flows.trace import MAX_GRAPHS, KnownGraphs, trace


@step
def link(x: Any) -> Any: ...


@flow
def chain(n: int) -> Any:
    last = link(0)
    for _ in range(n):
        last = link(last)
    return last


def graph(name: str, nodes: int = 1) -> Graph:
    return Graph(name, tuple(Node(f"n{index}", "m:s") for index in range(nodes)))


def test_a_graph_seen_before_is_the_one_that_was_checked_then():
    known = KnownGraphs()

    first, again = known.checked(graph("a")), known.checked(graph("a"))

    assert again is first
    assert known.get(first.digest) is first
    assert known.size == len(first.body)


def test_those_used_last_are_kept_within_the_bytes():
    size = len(KnownGraphs().checked(graph("a")).body)
    known = KnownGraphs(most_bytes=2 * size)
    a, b = known.checked(graph("a")), known.checked(graph("b"))

    known.get(a.digest)
    c = known.checked(graph("c"))

    assert known.get(b.digest) is None
    assert known.get(a.digest) is a
    assert known.get(c.digest) is c
    assert known.size == 2 * size


def test_no_more_than_so_many_are_kept():
    known = KnownGraphs()

    kept = [known.checked(graph(f"g{number}")) for number in range(MAX_GRAPHS + 5)]

    assert [known.get(each.digest) is None for each in kept[:6]] == [True] * 5 + [False]


def test_one_that_is_too_big_is_checked_and_pushes_nobody_out():
    small = KnownGraphs().checked(graph("a"))
    known = KnownGraphs(most_bytes=len(small.body))
    known.checked(graph("a"))

    big = known.checked(graph("big", 100))

    assert len(big.graph.nodes) == 100
    assert known.get(big.digest) is None
    assert known.get(small.digest) is not None


def test_threads_that_find_the_same_graphs_count_each_once():
    known = KnownGraphs()
    names = [f"t{number % 20}" for number in range(400)]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(known.checked, map(graph, names)))

    assert known.size == sum(len(body) for body in {each.body for each in found})


def test_graphs_that_were_let_go_are_made_again(monkeypatch: pytest.MonkeyPatch):
    sizes = [3, 40, 41, 42, 3, 42, 40]
    expected = [trace(chain, (n,)) for n in sizes]
    # Given room for one of them at a time
    monkeypatch.setattr(tracing, "known_graphs", KnownGraphs(most_bytes=len(expected[3].body)))

    again = [trace(chain, (n,)) for n in sizes]

    assert again == expected
    assert tracing.known_graphs.size <= len(expected[3].body)


def test_a_way_keeps_no_graphs_of_its_own(monkeypatch: pytest.MonkeyPatch):
    known = KnownGraphs(most_bytes=100_000)
    monkeypatch.setattr(tracing, "known_graphs", known)

    for n in range(150):  # 1.5 MB of graphs, each of which ends at a place of one way
        trace(chain, (n,))

    assert known.size <= 100_000
    ends: list[Any] = []
    places = [chain.definition.trace_cache.start]
    while places:
        place = places.pop()
        places += place._next  # pyright: ignore[reportPrivateUsage]
        ends += place._ends  # pyright: ignore[reportPrivateUsage]
    assert len(ends) >= 150
    assert {type(digest) for _, digest in ends} == {str}
