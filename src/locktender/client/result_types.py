"""The type a run's value is read by: the flow's annotation, else what its steps are annotated with."""

from __future__ import annotations

from typing import Any

import msgspec

from locktender.base.codec import StepError
from locktender.base.errors import InvalidFlow
from locktender.base.graph import AnyTemplate, Graph, Output
from locktender.base.model import RunRow
from locktender.client.core import Core
from locktender.flows.function import Function
from locktender.flows.registry import registry

_graph = msgspec.json.Decoder(Graph).decode


async def returned_type(core: Core, row: RunRow) -> Any:
    """`Any` where neither is known here: plain JSON then."""
    flow = registry.flows.get(row.flow)
    if flow is None:
        return Any
    annotated = _annotation(flow)
    if annotated is not Any:
        return annotated
    graph = _graph(await core.store.graph(row.graph))
    return Any if graph.result is None else _type_of(graph, graph.result)


def _type_of(graph: Graph, template: AnyTemplate) -> Any:
    """The type of a step's whole result, mapped or not; of anything put together, `Any`."""
    if not isinstance(template, Output) or template.path:
        return Any
    node = graph.nodes[template.node]
    step = registry.steps.get(node.step)
    if step is None or step.signature != node.signature:
        return Any
    one = _annotation(step)
    if node.over is None or one is Any:
        return one
    return list[one | StepError] if node.on_error == "collect" else list[one]


def _annotation(function: Function) -> Any:
    try:
        return function.returns
    except InvalidFlow:  # a name that exists only for the type checker
        return Any
