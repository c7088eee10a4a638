"""A graph is sound, bounded and satisfiable before anything is stored."""

import math
from typing import Any

import msgspec
import pytest

from locktender.base import graph_check
from locktender.base.errors import InvalidFlow
from locktender.base.graph import (
    GRAPH_VERSION,
    AllOf,
    Compare,
    Const,
    DictOf,
    Graph,
    Item,
    ListOf,
    Node,
    Not,
    Output,
    Param,
    PoolNeed,
    RetryPolicy,
    Tag,
    Truthy,
)
from locktender.base.limits import Limits, PoolRule


def node(name: str = "a", **fields: Any) -> Node:
    return Node(name=name, step=f"m:{name}", **fields)


def graph(*nodes: Node, **fields: Any) -> Graph:
    return Graph(flow="m:flow", nodes=nodes or (node(),), **fields)


def deep(levels: int) -> Any:
    template: Any = Const(0)
    for _ in range(levels - 1):
        template = ListOf((template,))
    return template


def deep_condition(levels: int) -> Any:
    condition: Any = Truthy(Const(0))
    for _ in range(levels):
        condition = Not(condition)
    return condition


GOOD = graph(
    node("a", args=(Param("x"), Const(3)), pools=(PoolNeed("db", 2),)),
    node(
        "b",
        over=Output(0),
        args=(Item(),),
        kwargs={"shared": DictOf({"k": Output(0, ("x", 1))})},
        window=3,
        pools=(PoolNeed("api", 1, (Tag("tenant"), "-", Item())), PoolNeed("api", 1, ("fixed",))),
    ),
    node(
        "c",
        args=(deep(100),),
        after=(0, 1),
        when=AllOf((Compare(">", Output(0), Const(0)), Not(Truthy(Output(1))))),
        run_if="always",
    ),
    result=ListOf((Output(2), Output(1))),
    max_parallel=4,
    max_parallel_by={"process": 2},
)


def test_a_sound_graph_passes():
    graph_check.validate(GOOD)


@pytest.mark.parametrize(
    ("bad", "field", "says"),
    [
        (graph(version=GRAPH_VERSION + 1), "version", "knows up to"),
        (graph(node("a"), node("a")), "nodes[1].name", "named 'a'"),
        (graph(node("a/b")), "nodes[0].name", "path"),
        (graph(node("a\x00")), "nodes[0].name", "control character"),
        (graph(node("")), "nodes[0].name", "empty"),
        (graph(node(after=(5,))), "nodes[0].after", "the flow has 1"),
        (graph(node(after=(-1,))), "nodes[0].after", "-1"),
        (graph(node(args=(Output(7),))), "nodes[0].args[0]", "step number 7"),
        (graph(node(kwargs={"k": Output(7)})), "nodes[0].kwargs.k", "step number 7"),
        (graph(node(when=Truthy(Output(7)))), "nodes[0].when", "step number 7"),
        (graph(result=Output(1)), "result", "step number 1"),
        (graph(node(over=Const(0), window=0)), "nodes[0].window", "1 or more"),
        (graph(node(over=Const(0), window=-3)), "nodes[0].window", "1 or more"),
        (graph(node(window=3)), "nodes[0].window", "not mapped"),
        (graph(node(pools=(PoolNeed("db", 0),))), "nodes[0].pools[0].slots", "1 or more"),
        (graph(node(pools=(PoolNeed("db", -1),))), "nodes[0].pools[0].slots", "1 or more"),
        (graph(node(pools=(PoolNeed("db"), PoolNeed("db", 2)))), "nodes[0].pools[1]", "twice"),
        (
            graph(node(pools=(PoolNeed("a", 1, ("k",)), PoolNeed("a", 1, ("k",))))),
            "nodes[0].pools[1]",
            "'a[k]' twice",
        ),
        (graph(node(pools=(PoolNeed("db[x]"),))), "nodes[0].pools[0].name", "not the name"),
        (graph(node(retry=RetryPolicy(retries=-1))), "nodes[0].retry.retries", "0 or more"),
        (graph(node(retry=RetryPolicy(backoff=0.5))), "nodes[0].retry.backoff", "between 1"),
        (graph(node(retry=RetryPolicy(backoff=math.nan))), "nodes[0].retry.backoff", "between 1"),
        (graph(node(retry=RetryPolicy(delay_us=-1))), "nodes[0].retry.delay_us", "between 0"),
        (graph(node(executor="gpu")), "nodes[0].executor", "one of"),
        (graph(node(on_error="ignore")), "nodes[0].on_error", "one of"),
        (graph(node(run_if="never")), "nodes[0].run_if", "one of"),
        (graph(node(timeout_us=0)), "nodes[0].timeout_us", "more than zero"),
        (graph(node(queue_timeout_us=-5)), "nodes[0].queue_timeout_us", "more than zero"),
        (graph(dispatch_deadline_us=0), "dispatch_deadline_us", "more than zero"),
        (graph(node(max_abandons=0)), "nodes[0].max_abandons", "1 or more"),
        (graph(max_parallel=0), "max_parallel", "1 or more"),
        (graph(max_parallel=-1), "max_parallel", "1 or more"),
        (graph(max_parallel=True), "max_parallel", "whole number"),
        (graph(max_parallel_by={"process": 0}), "max_parallel.process", "1 or more"),
        (graph(max_parallel_by={"gpu": 1}), "max_parallel", "one of"),
        (graph(fail="slow"), "fail", "one of"),
        (graph(node(args=(Item(),))), "nodes[0].args[0]", "not mapped"),
        (graph(node(over=Item())), "nodes[0].over", "not mapped"),
        (graph(result=Item()), "result", "not mapped"),
        (graph(node(args=(Tag("tenant"),))), "nodes[0].args[0]", "keys of pools"),
        (graph(node(args=(Const(-1),))), "nodes[0].args[0]", "constant -1"),
        (graph(node(args=(deep(101),))), None, "100 deep"),
        (graph(node(when=deep_condition(101))), "nodes[0].when", "100 deep"),
    ],
)
def test_an_unsound_graph_is_refused_with_field_and_hint(bad: Graph, field: str | None, says: str):
    with pytest.raises(InvalidFlow) as caught:
        graph_check.validate(bad)
    assert says in caught.value.message
    assert field is None or caught.value.field == field


@pytest.mark.parametrize(
    ("nodes", "path"),
    [
        ((node("a", after=(0,)),), "a → a"),
        ((node("a", args=(Output(1),)), node("b", args=(Output(0),))), "a → b → a"),
        (
            (
                node("start"),
                node("a", after=(0, 3)),
                node("b", args=(ListOf((Output(1),)),)),
                node("c", when=Truthy(Output(2))),
                node("end", after=(3,)),
            ),
            "a → b → c → a",
        ),
    ],
)
def test_a_cycle_is_refused_and_shown(nodes: tuple[Node, ...], path: str):
    with pytest.raises(InvalidFlow) as caught:
        graph_check.validate(graph(*nodes))
    assert f"waits for itself: {path}." in caught.value.message


def test_too_many_nodes_are_refused():
    few, many = graph_check.MAX_NODES, graph_check.MAX_NODES + 1
    one = node()
    with pytest.raises(InvalidFlow, match="at most 100,000") as caught:
        graph_check.validate(graph(*[one] * many))
    assert caught.value.got == many > few
    assert ".map(items)" in str(caught.value)


def test_a_long_chain_is_checked_without_recursion():
    chain = [node("n0"), *(node(f"n{i}", after=(i - 1,)) for i in range(1, 5_000))]
    graph_check.validate(graph(*chain))


def test_equal_graphs_have_equal_digests():
    # given two graphs that differ only in the order of a mapping
    one = graph(node(kwargs={"x": Const(0), "y": Const(1)}, needs={"a": "1", "b": "2"}))
    other = graph(node(kwargs={"y": Const(1), "x": Const(0)}, needs={"b": "2", "a": "1"}))
    different = graph(node(kwargs={"x": Const(1), "y": Const(0)}))
    # then they share a digest and a body, from which the graph can be read
    digest, body = graph_check.digest(one)
    assert graph_check.digest(other) == (digest, body)
    assert graph_check.digest(different)[0] != digest
    assert msgspec.json.decode(body, type=Graph) == one
    assert len(digest) == 64


def test_a_whole_graph_survives_its_canonical_form():
    assert msgspec.json.decode(graph_check.digest(GOOD)[1], type=Graph) == GOOD


LIMITS = Limits(
    pools={"db": PoolRule(limit=4), "api[*]": PoolRule(limit=2), "api[acme]": PoolRule(limit=5)}
)


@pytest.mark.parametrize(
    "need",
    [
        PoolNeed("db", 4),
        PoolNeed("unset", 1_000),
        PoolNeed("api", 2, (Tag("tenant"),)),
        PoolNeed("api", 5, ("acme",)),
        PoolNeed("api", 2, ("other",)),
    ],
)
def test_what_fits_its_pool_passes(need: PoolNeed):
    graph_check.check_pools(graph(node(pools=(need,))), LIMITS)


@pytest.mark.parametrize(
    ("need", "shown"),
    [
        (PoolNeed("db", 5), "db"),
        (PoolNeed("api", 3, (Tag("tenant"),)), "api[{tenant}]"),
        (PoolNeed("api", 3, ("v1-", Param("who"))), "api[v1-{who}]"),
        (PoolNeed("api", 6, ("acme",)), "api[acme]"),
        (PoolNeed("api", 3, ("other",)), "api[other]"),
    ],
)
def test_more_slots_than_the_pool_has_are_refused(need: PoolNeed, shown: str):
    with pytest.raises(InvalidFlow) as caught:
        graph_check.check_pools(graph(node(pools=(need,))), LIMITS)
    assert f"pool {shown!r}" in caught.value.message
    assert "could never start" in caught.value.message
    assert caught.value.got == need.slots


def test_strict_pools_refuse_a_pool_that_was_never_set():
    strict = msgspec.structs.replace(LIMITS, strict_pools=True)
    graph_check.check_pools(graph(node(pools=(PoolNeed("db"),))), strict)
    with pytest.raises(InvalidFlow, match="never set") as caught:
        graph_check.check_pools(graph(node(pools=(PoolNeed("dbs"),))), strict)
    assert "Did you mean 'db'?" in str(caught.value)
