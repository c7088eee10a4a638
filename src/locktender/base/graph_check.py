"""What a graph must be before it is stored: sound, bounded, and satisfiable under the limits.

Tracing cannot make most of these mistakes; a graph from a file, another
version or by hand can. So every graph is checked here.
"""

from __future__ import annotations

import hashlib
import typing
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from locktender.base import names
from locktender.base.durations import MAX_MICROSECONDS
from locktender.base.errors import InvalidFlow, InvalidInput
from locktender.base.graph import (
    GRAPH_VERSION,
    AllOf,
    AnyCondition,
    AnyOf,
    AnyTemplate,
    Compare,
    Const,
    DictOf,
    Executor,
    FailureOf,
    Graph,
    Item,
    ListOf,
    Node,
    Not,
    OnError,
    Output,
    Param,
    PoolNeed,
    RunIf,
    Tag,
    Truthy,
    cache_fault,
    needs_of,
    read_graph,
    wait_fault,
)
from locktender.base.limits import UNLIMITED, Limits, PoolRule

MAX_NODES = 100_000
MAX_DEPTH = 100
MAX_BACKOFF = 1_000.0

_EXECUTORS = typing.get_args(Executor)
_ON_ERROR = typing.get_args(OnError)
_RUN_IF = typing.get_args(RunIf)
_FAIL = ("continue", "fast")
_encode = msgspec.json.Encoder(order="sorted").encode

T = TypeVar("T")


def digest(graph: Graph) -> tuple[str, bytes]:
    """The graph's content hash and its canonical JSON: equal graphs have equal bytes."""
    body = _encode(graph)
    return hashlib.sha256(body).hexdigest(), body


class _Versioned(msgspec.Struct):
    version: int = 1


_read_version = msgspec.json.Decoder(_Versioned).decode


def checked_graph(body: bytes) -> Graph:
    """A stored graph. Raises `InvalidFlow` for one of a newer release, or that no release can have written."""
    try:
        # First: a newer one may have words that are unknown here.
        _check_version(_read_version(body).version)
        graph = read_graph(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidFlow(
            f"the stored graph cannot be read: {error}.",
            field="graph",
            hint="Restore it from a backup, or cancel the run.",
        ) from error
    validate(graph)
    return graph


def _check_version(version: int) -> None:
    if version > GRAPH_VERSION:
        raise InvalidFlow(
            f"the graph has version {version}; this locktender knows up to {GRAPH_VERSION}.",
            field="version",
            got=version,
            hint="Upgrade locktender here, or submit with the version that runs here.",
        )


def validate(graph: Graph) -> None:
    """Raises `InvalidFlow` naming the field, what was there and the fix."""
    _check_version(graph.version)
    _checked("flow", names.name, graph.flow)
    if len(graph.nodes) > MAX_NODES:
        raise InvalidFlow(
            f"flow {graph.flow!r} has {len(graph.nodes):,} steps; at most {MAX_NODES:,} are allowed.",
            field="nodes",
            got=len(graph.nodes),
            hint="Use .map(items) in place of a loop over calls.",
        )
    if graph.max_parallel is not None:
        _checked("max_parallel", names.count, graph.max_parallel)
    for executor, most in graph.max_parallel_by.items():
        _one_of(executor, _EXECUTORS, "max_parallel")
        _checked(f"max_parallel.{executor}", names.count, most)
    _one_of(graph.fail, _FAIL, "fail")
    _check_spans(graph, "")
    _check_names(graph)
    for index, node in enumerate(graph.nodes):
        _check_node(node, f"nodes[{index}]", len(graph.nodes))
    if graph.result is not None:
        _check_template(graph.result, "result", len(graph.nodes), mapped=False)
    _check_order(graph)


def _checked(field: str, rule: Callable[[object, str], T], value: object) -> T:
    """`value` by one of the rules of `base.names`, whose errors become errors of the flow."""
    try:
        return rule(value, field)
    except InvalidInput as error:
        raise InvalidFlow(
            error.message, field=error.field, got=error.got, hint=error.hint
        ) from error


def _one_of(value: object, known: tuple[str, ...], field: str) -> None:
    if value not in known:
        raise InvalidFlow(
            f"{field} must be one of {', '.join(known)}.",
            field=field,
            got=value,
            hint=names.nearest(value, known),
        )


def _check_names(graph: Graph) -> None:
    seen: dict[str, int] = {}
    for index, node in enumerate(graph.nodes):
        _checked(f"nodes[{index}].name", names.name, node.name)
        _checked(f"nodes[{index}].step", names.name, node.step)
        first = seen.setdefault(node.name, index)
        if first != index:
            raise InvalidFlow(
                f"two steps of flow {graph.flow!r} are named {node.name!r}.",
                field=f"nodes[{index}].name",
                got=node.name,
                hint="Give one of them another name: step.with_options(name=...).",
            )


def _check_node(node: Node, field: str, size: int) -> None:
    mapped = node.over is not None
    _one_of(node.executor, _EXECUTORS, f"{field}.executor")
    _one_of(node.on_error, _ON_ERROR, f"{field}.on_error")
    _one_of(node.run_if, _RUN_IF, f"{field}.run_if")
    if node.window is not None:
        if not mapped:
            raise InvalidFlow(
                f"step {node.name!r} has a window but is not mapped.",
                field=f"{field}.window",
                got=node.window,
                hint="A window belongs to .map(items, window=...).",
            )
        _checked(f"{field}.window", names.count, node.window)
    for dependency in node.after:
        _check_index(dependency, f"{field}.after", size)
    for index, each in enumerate(node.args):
        failed = node.run_if == "failure"
        _check_template(each, f"{field}.args[{index}]", size, mapped=mapped, failed=failed)
    for name, each in node.kwargs.items():
        _check_template(each, f"{field}.kwargs.{name}", size, mapped=mapped)
    if node.over is not None:
        _check_template(node.over, f"{field}.over", size, mapped=False)
    if node.when is not None:
        _check_condition(node.when, f"{field}.when", size)
    if fault := wait_fault(node):
        raise InvalidFlow(f"step {node.name!r}: {fault}.", field=f"{field}.wait", got=node.wait)
    if fault := cache_fault(node, size, MAX_MICROSECONDS):
        raise InvalidFlow(f"step {node.name!r}: {fault}.", field=f"{field}.cache")
    _check_pools(node, field, size)
    _check_spans(node, f"{field}.")
    _check_retry(node, f"{field}.retry")
    _checked(f"{field}.max_abandons", names.count, node.max_abandons)
    for key, value in node.needs.items():
        _checked(f"{field}.needs", names.label_key, key)
        _checked(f"{field}.needs.{key}", names.label_value, value)


def _check_retry(node: Node, field: str) -> None:
    policy = node.retry
    _checked(f"{field}.retries", _count_from_zero, policy.retries)
    # Written so that NaN, which compares false with everything, is refused too.
    if not 1 <= policy.backoff <= MAX_BACKOFF:
        raise InvalidFlow(
            f"backoff must be between 1 and {MAX_BACKOFF:,.0f}.",
            field=f"{field}.backoff",
            got=policy.backoff,
            hint="1 waits the same time before each retry, 2 doubles it.",
        )
    for name, value in (("delay_us", policy.delay_us), ("max_delay_us", policy.max_delay_us)):
        if not 0 <= value <= MAX_MICROSECONDS:
            raise InvalidFlow(
                f"{name} must be between 0 and 100 years.", field=f"{field}.{name}", got=value
            )


def _count_from_zero(value: object, field: str) -> int:
    return names.count(value, field, minimum=0)


def _check_spans(owner: Node | Graph, prefix: str) -> None:
    spans = {
        "queue_timeout_us": owner.queue_timeout_us,
        "dispatch_deadline_us": owner.dispatch_deadline_us,
    }
    if isinstance(owner, Node):
        spans["timeout_us"] = owner.timeout_us
    for name, value in spans.items():
        if value is not None and not 1 <= value <= MAX_MICROSECONDS:
            raise InvalidFlow(
                f"{name.removesuffix('_us')} must be more than zero and under 100 years.",
                field=f"{prefix}{name}",
                got=value,
            )


def _check_pools(node: Node, field: str, size: int) -> None:
    seen: set[tuple[str, tuple[str | AnyTemplate, ...]]] = set()
    for index, need in enumerate(node.pools):
        where = f"{field}.pools[{index}]"
        _checked(f"{where}.name", names.name, need.name)
        if set("[]{}") & set(need.name):
            raise InvalidFlow(
                f"{need.name!r} is not the name of a pool.",
                field=f"{where}.name",
                got=need.name,
                hint="Use no brackets in a pool's name; a key goes in api[{tenant}].",
            )
        _checked(f"{where}.slots", names.count, need.slots)
        if (need.name, need.key) in seen:
            raise InvalidFlow(
                f"step {node.name!r} names pool {spoken_pool(need)!r} twice.",
                field=where,
                got=need.name,
                hint=f'Ask for the sum once: pools={{"{need.name}": N}}.',
            )
        seen.add((need.name, need.key))
        for part in need.key:
            if not isinstance(part, str):
                _check_template(part, f"{where}.key", size, mapped=node.over is not None, tag=True)


def _check_index(index: int, field: str, size: int) -> None:
    if not 0 <= index < size:
        raise InvalidFlow(
            f"{field} names step number {index}; the flow has {size}.",
            field=field,
            got=index,
            hint="Use only handles that were made in this flow.",
        )


def _check_condition(condition: AnyCondition, field: str, size: int, depth: int = 1) -> None:
    _check_depth(depth, field)
    match condition:
        case Truthy(value):
            _check_template(value, field, size, mapped=False)
        case Compare(_, left, right):
            _check_template(left, field, size, mapped=False)
            _check_template(right, field, size, mapped=False)
        case Not(inner):
            _check_condition(inner, field, size, depth + 1)
        case AllOf(several) | AnyOf(several):
            for each in several:
                _check_condition(each, field, size, depth + 1)


def _check_depth(depth: int, field: str) -> None:
    if depth > MAX_DEPTH:
        raise InvalidFlow(
            f"{field} is nested more than {MAX_DEPTH} deep.",
            field=field,
            got=depth,
            hint="Flatten it, or build the value in a step.",
        )


def _check_template(
    template: AnyTemplate,
    field: str,
    size: int,
    *,
    mapped: bool,
    tag: bool = False,
    failed: bool = False,
    depth: int = 1,
) -> None:
    _check_depth(depth, field)
    match template:
        case Const(index):
            if index < 0:
                raise InvalidFlow(f"{field} points to constant {index}.", field=field, got=index)
        case Param(name):
            _checked(field, names.name, name)
        case Output(node):
            _check_index(node, field, size)
        case Item():
            if not mapped:
                raise InvalidFlow(
                    f"{field} asks for the item of a map, but its step is not mapped.",
                    field=field,
                    got="item",
                    hint="Only a step called with .map(items) has items.",
                )
        case FailureOf():
            if not failed:
                raise InvalidFlow(
                    f"{field} asks for what failed, but its step does not run after a failure.",
                    field=field,
                    got="failure",
                    hint="Only a step given as on_failure= has it.",
                )
        case Tag(key):
            _checked(field, names.tag_key, key)
            if not tag:
                raise InvalidFlow(
                    f"{field} asks for the tag {key!r}; tags serve only as keys of pools.",
                    field=field,
                    got=key,
                    hint="Hand the value over as a parameter of the flow.",
                )
        case ListOf(items):
            for index, each in enumerate(items):
                inner = f"{field}[{index}]"
                _check_template(each, inner, size, mapped=mapped, depth=depth + 1)
        case DictOf(named):
            for key, each in named.items():
                inner = f"{field}.{key}"
                _check_template(each, inner, size, mapped=mapped, depth=depth + 1)


def _check_order(graph: Graph) -> None:
    """Every step can be reached in some order; if not, the message shows the way round."""
    waits = [needs_of(node) for node in graph.nodes]
    followers: list[list[int]] = [[] for _ in waits]
    for index, needed in enumerate(waits):
        for each in needed:
            followers[each].append(index)
    missing = [len(needed) for needed in waits]
    ready = [index for index, count in enumerate(missing) if count == 0]
    reached = 0
    while ready:
        reached += 1
        for follower in followers[ready.pop()]:
            missing[follower] -= 1
            if missing[follower] == 0:
                ready.append(follower)
    if reached < len(waits):
        path = _find_cycle(waits, missing)
        shown = " → ".join(graph.nodes[index].name for index in path)
        raise InvalidFlow(
            f"flow {graph.flow!r} waits for itself: {shown}.",
            field="nodes",
            got=shown,
            hint="Take out one of these dependencies.",
        )


def _find_cycle(waits: list[set[int]], missing: list[int]) -> list[int]:
    """One cycle in the order of flow. Walks back from any stuck step: each waits for another stuck one."""
    at = next(index for index, count in enumerate(missing) if count > 0)
    seen: dict[int, int] = {}
    while at not in seen:
        seen[at] = len(seen)
        at = min(each for each in waits[at] if missing[each] > 0)
    cycle = list(seen)[seen[at] :]
    cycle.reverse()
    first = cycle.index(min(cycle))
    turned = cycle[first:] + cycle[:first]
    return [*turned, turned[0]]


def spoken_pool(need: PoolNeed) -> str:
    """A need as a person would write it: `db`, `api[acme]`, `api[{tenant}]`."""
    if not need.key:
        return need.name
    parts = (part if isinstance(part, str) else _placeholder(part) for part in need.key)
    return f"{need.name}[{''.join(parts)}]"


def _placeholder(part: AnyTemplate) -> str:
    match part:
        case Tag(key):
            return f"{{{key}}}"
        case Param(name):
            return f"{{{name}}}"
        case _:
            return "{…}"


def check_pools(graph: Graph, limits: Limits) -> None:
    """Refuses what can never start: more slots than the pool has, or, with `strict_pools`, an unknown pool."""
    for index, node in enumerate(graph.nodes):
        for need in node.pools:
            shown, rule = spoken_pool(need), _rule_for(need, limits)
            field = f"nodes[{index}].pools.{shown}"
            if rule is None and limits.strict_pools:
                raise InvalidFlow(
                    f"step {node.name!r} needs pool {shown!r}, which was never set.",
                    field=field,
                    got=shown,
                    hint=_unknown_pool_hint(shown, limits.pools),
                )
            if rule is not None and rule.limit != UNLIMITED and need.slots > rule.limit:
                raise InvalidFlow(
                    f"step {node.name!r} needs {need.slots} slots of pool {shown!r}, whose limit is"
                    f" {rule.limit}: it could never start.",
                    field=field,
                    got=need.slots,
                    hint=f"Ask for {rule.limit} or fewer, or: locktender pools set {need.name} {need.slots}.",
                )


def _rule_for(need: PoolNeed, limits: Limits) -> PoolRule | None:
    literal = [part for part in need.key if isinstance(part, str)]
    if len(literal) == len(need.key):
        return limits.pool(spoken_pool(need))
    # The key is known only when a task is rendered: what holds for every key can be checked now.
    return limits.pools.get(f"{need.name}[*]")


def _unknown_pool_hint(shown: str, known: Mapping[str, PoolRule]) -> str:
    near = names.did_you_mean(shown, known)
    fix = f"Set it: locktender pools set {shown} N."
    return f"{near} {fix}" if near else fix
