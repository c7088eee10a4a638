"""The input and output of the checker, and what it reads out of a graph, once per graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from locktender.base.events import Event
from locktender.base.graph import Graph, Node, Output, PoolNeed, Tag, outputs, templates


@dataclass(frozen=True, slots=True)
class Rejection:
    """A submission that was refused, as its client saw it."""

    ceiling: str
    """`max_active`, or the counter of a tag rule: `tenant`, `tenant=acme`, `tenant=*acme`."""
    active: int
    limit: int
    as_of: int
    """The history's last seq when it was decided."""
    asked: int = 1
    """How many runs were handed in together, all or none."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """An admission ceiling a client set, and the history's last seq when it did.

    A ceiling holds from the client's commit on, while the history tells of it
    only with the leader's next cycle. A test that sets several in between says so here.
    """

    name: str
    """`max_active`, or a tag rule's name: `tenant`, `tenant=acme`, `tenant=*`."""
    limit: int
    since: int


@dataclass(frozen=True)
class History:
    """A history from its first event on, with what it refers to."""

    events: Sequence[Event]
    """In commit order: by seq, then by position in the commit. Empty if they are read page by page."""
    graphs: Mapping[str, Graph]
    """Content hash → graph; of a history that is read page by page, the graphs of this page at least."""
    rejections: Sequence[Rejection] = ()
    max_active: Sequence[Ceiling] = ()
    complete: bool = False
    """The system is idle: every run must have ended, nothing may be held."""
    slack_us: int = 0
    """How long before its commit a leader may have read the clock. 0 for simulated time; on a live
    system rates, back-off and deadlines are decided a little before the instant the event carries."""
    unheard_us: int = 0
    """For how long a leader may not know what workers gave back. 0 for simulated time; a live one reads
    everything once a second, where a notification was lost, and later on a busy machine."""
    checked: int = 0
    """Up to this seq the history was checked when it was whole; since then whole runs were pruned from it."""
    thinned: int = 0
    """Up to this seq, events of no run were removed that do not count any more behind it."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was not kept, and where."""

    rule: str
    seq: int
    run: int
    task: int
    message: str

    def __str__(self) -> str:
        where = f"seq {self.seq}"
        if self.run:
            where += f", run {self.run}"
        if self.task:
            where += f", task {self.task}"
        return f"{self.rule} ({where}): {self.message}"


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that was ever in use of one limit."""

    name: str
    """`pool:db`, `runs`, `tag:tenant=*acme`, `window:flow/node`, `parallel:flow[:executor]`, `sequential:flow`."""
    limit: int
    """The limit in force when the peak was reached; −1: unlimited."""
    peak: int
    never_exceeded: bool
    """No grant was made beyond the limit of its moment. (After a limit was lowered, holders may be above it.)"""


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
    def passes_errors(self) -> bool:
        """Whether its body is not called for items that are errors."""
        return self.mapped and not self.node.take_errors and self.node.run_if == "success"

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
