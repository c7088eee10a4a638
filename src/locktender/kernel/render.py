"""Renders templates to values. Values are JSON bytes and are decoded only where a path or a condition needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from locktender.base import codec
from locktender.base.errors import InvalidInput
from locktender.base.graph import (
    AllOf,
    AnyCondition,
    AnyOf,
    AnyTemplate,
    Compare,
    Const,
    DictOf,
    FailureOf,
    Graph,
    Item,
    ListOf,
    Node,
    Not,
    Output,
    Param,
    Tag,
    Truthy,
    outputs,
    templates,
)
from locktender.base.limits import pool_name
from locktender.kernel.node_state import NodeState, output_of

_load = msgspec.json.Decoder().decode
_dump = msgspec.json.Encoder().encode
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
NULL = b"null"


class RenderScope:
    """Where a template's values come from: the run, and the outputs of what it waited for.

    It refers to the nodes, not to the `RunGraph` that has it: an ended run is freed without the garbage collector.
    """

    __slots__ = ("_nodes", "consts", "params", "tags")

    def __init__(
        self,
        params: Mapping[str, bytes],
        consts: Sequence[bytes],
        tags: Mapping[str, str],
        nodes: Sequence[NodeState],
    ) -> None:
        self.params: Mapping[str, bytes] = params
        self.consts: Sequence[bytes] = consts
        self.tags: Mapping[str, str] = tags
        self._nodes = nodes

    def output(self, node: int) -> bytes:
        """A node's output as a value; nothing (null) where it has none."""
        return output_of(self._nodes[node], self._nodes) or NULL


def split_object(raw: bytes) -> dict[str, bytes]:
    """The members of a JSON object, unread."""
    return {key: bytes(value) for key, value in _members(raw).items()}


def render(template: AnyTemplate, scope: RenderScope, item: bytes | None = None) -> bytes:
    match template:
        case Const(index):
            return scope.consts[index]
        case Param(name):
            return scope.params[name]
        case Item(path):
            value = NULL if item is None else item
            return codec.pick(value, path) if path else value
        case FailureOf():
            return NULL if item is None else item
        case Output(node, path):
            value = scope.output(node)
            # A part of nothing is nothing: the node was skipped or failed and we run all the same.
            return codec.pick(value, path) if path and value != NULL else value
        case ListOf(items):
            return codec.join_list([render(each, scope, item) for each in items])
        case DictOf(items):
            return _dump(
                {key: msgspec.Raw(render(each, scope, item)) for key, each in items.items()}
            )
        case Tag(key):
            return _dump(scope.tags.get(key))


def call(node: Node, scope: RenderScope, item: bytes | None = None) -> bytes:
    """The whole call of a step as stored in its task's input; `item`: of a step after a failure, that failure."""
    return codec.render_call(
        [render(each, scope, item) for each in node.args],
        {name: render(each, scope, item) for name, each in node.kwargs.items()},
    )


def shared(node: Node, scope: RenderScope) -> bytes | None:
    """What all items of a map have in common, rendered once; None where an item is all there is."""
    if not node.kwargs and len(node.args) == 1 and isinstance(node.args[0], Item):
        return None
    return call(node, scope)


_PLACE = b"\0"
"""Stands for the item: no JSON text has this byte."""


class ItemCall:
    """The calls of all items of a map: what they share, read once, with places for the item."""

    __slots__ = ("_paths", "_texts", "_whole")

    def __init__(self, node: Node, common: bytes | None) -> None:
        """`common`: what `shared` gave."""
        args, kwargs = ([NULL], dict[str, bytes]()) if common is None else codec.read_call(common)
        self._paths: list[tuple[str | int, ...]] = []
        for index, template in enumerate(node.args):
            if isinstance(template, Item):
                args[index] = _PLACE
                self._paths.append(template.path)
        for name in kwargs:
            if isinstance(template := node.kwargs[name], Item):
                kwargs[name] = _PLACE
                self._paths.append(template.path)
        self._texts: list[bytes] = codec.render_call(args, kwargs).split(_PLACE)
        self._whole: bool = not any(self._paths)

    def of(self, item: bytes) -> bytes:
        if self._whole:
            return item.join(self._texts)
        call = self._texts[0]
        for path, text in zip(self._paths, self._texts[1:], strict=True):
            call += codec.pick(item, path) + text
        return call


def holds(condition: AnyCondition, scope: RenderScope) -> bool:
    """Whether `condition` is true. Whatever is wrong with it is raised: a bad condition never means true."""
    match condition:
        case Truthy(value):
            return bool(_load(render(value, scope)))
        case Compare(op, left, right):
            return _checked_compare(op, _load(render(left, scope)), _load(render(right, scope)))
        case Not(inner):
            return not holds(inner, scope)
        case AllOf(several):
            return all(holds(each, scope) for each in several)
        case AnyOf(several):
            return any(holds(each, scope) for each in several)


def _checked_compare(op: str, left: Any, right: Any) -> bool:
    try:
        return _compare(op, left, right)
    except TypeError as problem:
        for side in (left, right):
            if isinstance(side, dict) and codec.is_error(_dump(side)):
                error = codec.decode(_dump(side), codec.StepError)
                of = "" if error.node is None else f" of {error.node!r}"
                raise InvalidInput(
                    f"a collected error{of} ({error}) cannot be compared with {op}.",
                    field="when",
                    hint="Test it in a step that takes StepError.",
                ) from problem
        raise


def _compare(op: str, left: Any, right: Any) -> bool:
    match op:
        case "==":
            return left == right
        case "!=":
            return left != right
        case "<":
            return left < right
        case "<=":
            return left <= right
        case ">":
            return left > right
        case ">=":
            return left >= right
        case "in":
            return left in right
        case _:
            raise InvalidInput(f"unknown comparison {op!r}.", field="when", got=op)


def pool_needs(
    node: Node, scope: RenderScope, item: bytes | None = None
) -> tuple[tuple[str, int], ...]:
    """The slots a task needs, by pool, with keys rendered; sorted, so that equal needs are equal."""
    if not node.pools:
        return ()
    needs = [(need.name if not need.key else _keyed(need.name, need.key, scope, item), need.slots)
             for need in node.pools]  # fmt: skip
    return tuple(sorted(needs))


def _keyed(
    pool: str, key: tuple[str | AnyTemplate, ...], scope: RenderScope, item: bytes | None
) -> str:
    parts: list[str] = []
    for part in key:
        if isinstance(part, str):
            parts.append(part)
            continue
        value = _load(render(part, scope, item))
        if not isinstance(value, str | int | float):
            raise InvalidInput(
                f"the key of pool {pool!r} came out as {value!r}: it must be text, a number or a boolean.",
                field="pools",
            )
        parts.append(value if isinstance(value, str) else _dump(value).decode())
    return pool_name(f"{pool}[{''.join(parts)}]")


def looked_into(graph: Graph) -> frozenset[int]:
    """Nodes whose output is read here (mapped over, tested, keyed by): their blobs must be fetched first."""
    found: set[int] = {0} if graph.unfolds else set()
    for node in graph.nodes:
        for template in templates(node):
            for ref in outputs(template):
                if ref.path or template is node.over or node.when is not None or node.pools:
                    found.add(ref.node)
    if graph.result is not None:
        found |= {ref.node for ref in outputs(graph.result) if ref.path}
    for index in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[index]
        if node.wait is not None:
            # Its result is that of another: what is read of it is read of that one. Its time is read here.
            passed = outputs(node.args[0]) if index in found else []
            found |= {ref.node for ref in (*passed, *outputs(node.args[1]))}
    return frozenset(found)
