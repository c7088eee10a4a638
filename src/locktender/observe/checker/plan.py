"""What the checker reads out of a graph, once per graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from locktender.base.graph import Graph, Node, Output, PoolNeed, Tag, outputs, templates


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node, with what its tasks wait for told apart by how they wait for it."""

    index: int
    node: Node
    mapped: bool
    each_of: int | None
    """The mapped node whose item i this one's item i waits for, and for no other."""
    data: frozenset[int]
    after: frozenset[int]
    """Nodes it waits for in order only, without using their output."""
    pools: dict[str, int]
    """Slots of pools without a key."""
    keyed: tuple[PoolNeed, ...]
    slots: int
    """Over all pools."""

    @property
    def collects(self) -> bool:
        return self.node.on_error == "collect"

    @property
    def needs(self) -> frozenset[int]:
        whole = self.data | self.after
        return whole if self.each_of is None else whole | {self.each_of}

    def pools_of(self, tags: Mapping[str, str]) -> dict[str, int] | None:
        """The pools a task of a run with `tags` needs; None where a key comes from arguments or outputs."""
        if not self.keyed:
            return self.pools
        needs = dict(self.pools)
        for need in self.keyed:
            parts: list[str] = []
            for part in need.key:
                value = part if isinstance(part, str) else _tag(part, tags)
                if value is None:
                    return None
                parts.append(value)
            pool = f"{need.name}[{''.join(parts)}]"
            needs[pool] = needs.get(pool, 0) + need.slots
        return needs


@dataclass(frozen=True, slots=True)
class GraphPlan:
    graph: Graph
    nodes: tuple[NodePlan, ...]
    conditional: bool
    """A task of it may be skipped although nothing went wrong."""


def plan_of(graph: Graph) -> GraphPlan:
    return GraphPlan(
        graph=graph,
        nodes=tuple(_plan(graph, index, node) for index, node in enumerate(graph.nodes)),
        conditional=any(node.when is not None or node.run_if == "failure" for node in graph.nodes),
    )


def _plan(graph: Graph, index: int, node: Node) -> NodePlan:
    each_of = _each_of(graph, node)
    data = {
        ref.node
        for each in templates(node)
        if not (each_of is not None and each is node.over)
        for ref in outputs(each)
    }
    pools: dict[str, int] = {}
    for need in node.pools:
        if not need.key:
            pools[need.name] = pools.get(need.name, 0) + need.slots
    return NodePlan(
        index=index,
        node=node,
        mapped=node.over is not None,
        each_of=each_of,
        data=frozenset(data),
        after=frozenset(node.after) - data,
        pools=pools,
        keyed=tuple(need for need in node.pools if need.key),
        slots=sum(need.slots for need in node.pools),
    )


def _each_of(graph: Graph, node: Node) -> int | None:
    over = node.over
    if not isinstance(over, Output) or over.path or not 0 <= over.node < len(graph.nodes):
        return None
    return over.node if graph.nodes[over.node].over is not None else None


def _tag(part: object, tags: Mapping[str, str]) -> str | None:
    return tags.get(part.key) if isinstance(part, Tag) else None
