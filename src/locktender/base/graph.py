"""The graph of a flow: plain data, versioned, stored once per content hash.

A graph has no values in it. What a step is called with is a *template*: a
constant of the run by number, a parameter by name, the output of another node,
the item of a map. So two runs of one flow share one graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

Executor = Literal["async", "thread", "process", "hold"]
"""`hold` runs no code: it is how `slots()` holds a pool from outside a flow."""
OnError = Literal["fail", "collect"]
RunIf = Literal["success", "always", "failure"]

CacheScope = Literal["flow", "everywhere"]
"""Who shares a cached result: runs of the same flow, or all."""

Wait = Literal["sleep", "until", "event"]
"""A node without a body: it is over after a time, at a moment, or when an event has come. Its arguments are a
value, which is its result, and how long or until when. Of an event: the value where none comes, how long it is
waited for, and what an event of a topic has to match."""

GRAPH_VERSION = 2
"""The newest that is known here. 2: nodes may wait, and items of some maps of a graph start in order."""
PLAIN_VERSION = 1
"""Of a graph without those: what does not need a newer release can be read by an older one."""
TRACE = "locktender:trace"
"""The step that traces a flow where its code is. The `signature` of such a node is the flow's name."""


class Template(msgspec.Struct, frozen=True, array_like=True):
    """How one value is made when it is needed."""


class Const(Template, frozen=True, tag="c", array_like=True):
    index: int


class Param(Template, frozen=True, tag="p", array_like=True):
    name: str


class Output(Template, frozen=True, tag="n", array_like=True):
    """The output of a node (a list in order, if mapped), or a part of it by keys."""

    node: int
    path: tuple[str | int, ...] = ()


class Item(Template, frozen=True, tag="i", array_like=True):
    """The element this instance of a mapped step was made for."""

    path: tuple[str | int, ...] = ()


class Tag(Template, frozen=True, tag="t", array_like=True):
    """A tag of the run; only in the key of a pool."""

    key: str


class FailureOf(Template, frozen=True, tag="f", array_like=True):
    """What failed before this step, as a `StepError`; only in the call of a step that runs after a failure."""


class ListOf(Template, frozen=True, tag="l", array_like=True):
    items: tuple[AnyTemplate, ...]


class DictOf(Template, frozen=True, tag="d", array_like=True):
    items: dict[str, AnyTemplate]


AnyTemplate = Const | Param | Output | Item | Tag | FailureOf | ListOf | DictOf


class Condition(msgspec.Struct, frozen=True, array_like=True):
    """A test on outputs. An error in it fails the run; it never silently means true."""


class Truthy(Condition, frozen=True, tag="?", array_like=True):
    value: AnyTemplate


class Compare(Condition, frozen=True, tag="cmp", array_like=True):
    op: Literal["==", "!=", "<", "<=", ">", ">=", "in"]
    left: AnyTemplate
    right: AnyTemplate


class Not(Condition, frozen=True, tag="not", array_like=True):
    condition: AnyCondition


class AllOf(Condition, frozen=True, tag="and", array_like=True):
    conditions: tuple[AnyCondition, ...]


class AnyOf(Condition, frozen=True, tag="or", array_like=True):
    conditions: tuple[AnyCondition, ...]


AnyCondition = Truthy | Compare | Not | AllOf | AnyOf


class PoolNeed(msgspec.Struct, frozen=True, omit_defaults=True):
    """`slots` of pool `name`; with `key`, of `name[...]` rendered from tags or arguments."""

    name: str
    slots: int = 1
    key: tuple[str | AnyTemplate, ...] = ()


class RetryPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    retries: int = 0
    delay_us: int = 1_000_000
    backoff: float = 2.0
    jitter: bool = True
    max_delay_us: int = 3_600_000_000


class AwaitedEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node waits for: its result is the payload."""

    name: str
    schema: dict[str, Any] = {}
    """JSON schema of the payload; empty: any."""
    default: bool = False
    """Where none comes in time its result is the first argument; else it fails."""


class CacheRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """For how long a result is kept, and which calls it is the result of."""

    ttl_us: int
    scope: CacheScope = "flow"
    names: tuple[str, ...] = ()
    """Of the parameters that can be given by position, in their order."""
    by: tuple[str, ...] = ()
    """Only these arguments tell calls apart; empty: all."""
    defaults: dict[str, str] = {}
    """JSON of the parameters that the call leaves out."""
    key: int | None = None
    """The node before it that computes what tells calls apart, in the place of arguments."""


class Node(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step of the graph; with `over`, one task per element."""

    name: str
    step: str
    signature: str = ""
    executor: Executor = "thread"
    args: tuple[AnyTemplate, ...] = ()
    kwargs: dict[str, AnyTemplate] = {}
    over: AnyTemplate | None = None
    window: int | None = None
    on_error: OnError = "fail"
    take_errors: bool = False
    """Its body is called for items that are errors, too; else those are passed on."""
    in_order: bool = False
    """A map of a sequential flow that another flow calls. Of the outermost flow the graph says it."""
    after: tuple[int, ...] = ()
    when: AnyCondition | None = None
    run_if: RunIf = "success"
    pools: tuple[PoolNeed, ...] = ()
    needs: dict[str, str] = {}
    affinity: str | None = None
    retry: RetryPolicy = RetryPolicy()
    timeout_us: int | None = None
    queue_timeout_us: int | None = None
    dispatch_deadline_us: int | None = None
    max_abandons: int = 3
    wait: Wait | None = None
    event: AwaitedEvent | None = None
    cache: CacheRule | None = None


class Graph(msgspec.Struct, frozen=True, omit_defaults=True):
    flow: str
    nodes: tuple[Node, ...]
    result: AnyTemplate | None = None
    max_parallel: int | None = None
    max_parallel_by: dict[str, int] = {}
    sequential: bool = False
    fail: Literal["continue", "fast"] = "continue"
    queue_timeout_us: int | None = None
    dispatch_deadline_us: int | None = None
    unfolds: bool = False
    """Its one step is `TRACE`: the output is the graph that the run goes on with (`base/named_runs.py`)."""
    # A factory: a plain default would be left out of the JSON, and no reader could tell a newer graph.
    version: int = msgspec.field(default_factory=lambda: PLAIN_VERSION)


read_graph: Callable[[bytes | str], Graph] = msgspec.json.Decoder(Graph).decode


def starts_in_order(graph: Graph, node: Node) -> bool:
    """Whether an item of a map starts only when the one before it has ended for good, retries included."""
    return node.over is not None and (graph.sequential or node.in_order)


def wait_fault(node: Node) -> str:
    """What is wrong with a node that waits; empty: nothing, or it does not wait."""
    if node.wait is None:
        return ""
    if node.over is not None:
        return "a wait cannot be mapped"
    if (node.wait == "event") != (node.event is not None):
        return "a wait for an event names it, and no other does"
    if len(node.args) != (2 if node.event is None else 3) or node.kwargs:
        return "a wait takes a value and a time"
    busy = node.pools or node.needs or node.retry.retries or node.timeout_us is not None
    return "a wait has no body: no pools, labels, retries or timeout" if busy else ""


def cache_fault(node: Node, size: int, longest_us: int) -> str:
    """What is wrong with what a node says about its cached results; empty: nothing."""
    rule = node.cache
    if rule is None:
        return ""
    if not 0 < rule.ttl_us <= longest_us:
        return "results are cached for more than 0 and at most 100 years"
    if node.wait is not None or node.executor == "hold":
        return "a wait has no body, and no result to cache"
    if node.take_errors or node.run_if != "success":
        return "results of calls with errors and of clean-up steps are not cached"
    if rule.key is not None and not 0 <= rule.key < size:
        return f"its cache key is of node {rule.key}, and there are {size}"
    return ""


def is_cached(node: Node, state: str, attempt: int) -> bool:
    """Whether a task took its result from the cache: it completed, and no body ever ran for it."""
    return node.cache is not None and state == "completed" and not attempt


def templates(node: Node) -> list[AnyTemplate]:
    """Every template of `node` that can name another node."""
    found: list[AnyTemplate] = [*node.args, *node.kwargs.values()]
    if node.over is not None:
        found.append(node.over)
    if node.when is not None:
        found += operands(node.when)
    found += [part for need in node.pools for part in need.key if not isinstance(part, str)]
    if node.cache is not None and node.cache.key is not None:
        found.append(Output(node.cache.key))
    return found


def operands(condition: AnyCondition) -> list[AnyTemplate]:
    match condition:
        case Truthy(value):
            return [value]
        case Compare(_, left, right):
            return [left, right]
        case Not(inner):
            return operands(inner)
        case AllOf(several) | AnyOf(several):
            return [value for each in several for value in operands(each)]


def condition_text(condition: AnyCondition, names: Sequence[str]) -> str:
    """`check.ok == …`: constants are values of a run, and not named here."""
    match condition:
        case Truthy(value):
            return _template_text(value, names)
        case Compare(op, left, right):
            return f"{_template_text(left, names)} {op} {_template_text(right, names)}"
        case Not(inner):
            return f"not ({condition_text(inner, names)})"
        case AllOf(several):
            return " and ".join(condition_text(each, names) for each in several)
        case AnyOf(several):
            return " or ".join(condition_text(each, names) for each in several)


def _template_text(template: AnyTemplate, names: Sequence[str]) -> str:
    match template:
        case Output(node, path) if 0 <= node < len(names):
            return "".join([names[node], *(f"[{each!r}]" for each in path)])
        case Param(name):
            return name
        case _:
            return "…"


def outputs(template: AnyTemplate) -> list[Output]:
    """Every reference to a node's output inside `template`."""
    match template:
        case Output():
            return [template]
        case ListOf(items):
            return [found for item in items for found in outputs(item)]
        case DictOf(named):
            return [found for item in named.values() for found in outputs(item)]
        case _:
            return []


def needs_of(node: Node) -> set[int]:
    """Indexes of the nodes this one waits for, with data or only in order."""
    return {ref.node for each in templates(node) for ref in outputs(each)} | set(node.after)
