"""A run submitted by name: a graph of one step that traces the flow, and the graph that the run goes on with.

A client without the code submits `tracing_graph`. A worker that knows the flow runs its one step, and the
step's output is a `TracedFlow`. `unfold` puts the tracing step before the steps of the traced graph, so that
the row of the finished tracing task keeps its place. Parameters become constants: the run's own parameters
stay what was submitted, and a later submission with the same key is compared with those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from locktender.base.graph import (
    TRACE,
    AllOf,
    AnyCondition,
    AnyOf,
    AnyTemplate,
    CacheRule,
    Compare,
    Const,
    DictOf,
    Graph,
    ListOf,
    Node,
    Not,
    Output,
    Param,
    PoolNeed,
    Truthy,
)


class TracedFlow(msgspec.Struct, frozen=True):
    """What the tracing step returns."""

    graph: Graph
    params: dict[str, msgspec.Raw]
    """The flow's parameters by name, defaults included."""
    consts: list[msgspec.Raw]


read_traced: Callable[[bytes], TracedFlow] = msgspec.json.Decoder(TracedFlow).decode


def tracing_graph(flow: str, given: Iterable[str]) -> Graph:
    """The first graph of a run of `flow` that is submitted with these parameters."""
    named: dict[str, AnyTemplate] = {name: Param(name) for name in sorted(given)}
    node = Node(name=TRACE, step=TRACE, signature=flow, executor="thread", kwargs=named)
    return Graph(flow, (node,), result=Output(0), unfolds=True)


def unfold(first: Graph, traced: TracedFlow) -> tuple[Graph, list[bytes]]:
    """The graph that a run goes on with behind its tracing step, and its constants."""
    consts = [bytes(each) for each in traced.consts]
    places = {name: Const(len(consts) + index) for index, name in enumerate(traced.params)}
    consts += [bytes(each) for each in traced.params.values()]
    graph = traced.graph
    nodes = (first.nodes[0], *(_node(node, places) for node in graph.nodes))
    result = None if graph.result is None else _template(graph.result, places)
    return msgspec.structs.replace(graph, flow=first.flow, nodes=nodes, result=result), consts


_Places = Mapping[str, Const]


def _node(node: Node, places: _Places) -> Node:
    return msgspec.structs.replace(
        node,
        args=tuple(_template(each, places) for each in node.args),
        kwargs={name: _template(each, places) for name, each in node.kwargs.items()},
        over=None if node.over is None else _template(node.over, places),
        when=None if node.when is None else _condition(node.when, places),
        after=tuple(index + 1 for index in node.after),
        pools=tuple(_need(need, places) for need in node.pools),
        cache=_cache(node.cache),
    )


def _cache(rule: CacheRule | None) -> CacheRule | None:
    if rule is None or rule.key is None:
        return rule
    return msgspec.structs.replace(rule, key=rule.key + 1)


def _need(need: PoolNeed, places: _Places) -> PoolNeed:
    key = tuple(part if isinstance(part, str) else _template(part, places) for part in need.key)
    return msgspec.structs.replace(need, key=key)


def _template(template: AnyTemplate, places: _Places) -> AnyTemplate:
    match template:
        case Output(node, path):
            return Output(node + 1, path)
        case Param(name):
            return places.get(name, template)
        case ListOf(items):
            return ListOf(tuple(_template(each, places) for each in items))
        case DictOf(items):
            return DictOf({key: _template(each, places) for key, each in items.items()})
        case _:
            return template


def _condition(condition: AnyCondition, places: _Places) -> AnyCondition:
    match condition:
        case Truthy(value):
            return Truthy(_template(value, places))
        case Compare(op, left, right):
            return Compare(op, _template(left, places), _template(right, places))
        case Not(inner):
            return Not(_condition(inner, places))
        case AllOf(several):
            return AllOf(tuple(_condition(each, places) for each in several))
        case AnyOf(several):
            return AnyOf(tuple(_condition(each, places) for each in several))
