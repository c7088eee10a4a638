"""A flow and its arguments, traced into what a submission stores."""

from __future__ import annotations

import inspect
import linecache
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headgate.base import codec, graph_check
from headgate.base.errors import HeadgateError, InvalidFlow, Unserialisable
from headgate.base.graph import Graph
from headgate.flows.definitions import FlowDef
from headgate.flows.flows import Flow
from headgate.flows.tracer import Tracer, recording

_KNOWN_GRAPHS = 1_000


class Traced(NamedTuple):
    """One submission: the graph, which other runs share, and the values, which are this run's."""

    graph: Graph
    digest: str
    body: bytes
    """The graph as canonical JSON."""
    params: bytes
    """JSON object: the flow's parameters by name."""
    consts: bytes
    """JSON array: what `Const` points to."""


def trace(
    flow: Flow[..., Any] | FlowDef,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Traced:
    """Calls the flow's body with these arguments and records what it wires together."""
    definition = flow.definition if isinstance(flow, Flow) else flow
    named = kwargs or {}
    bound = definition.bind(args, named)
    if len(bound.arguments) < len(definition.parameters.parameters):
        bound.apply_defaults()
    tracer = Tracer(definition, bound.arguments)
    params = _encode_params(definition, bound)
    try:
        with recording(tracer):
            result = definition.fn(*args, **named)
            tracer.close()
            output = (
                None
                if result is None
                else tracer.values.template(result, f"result of {definition.short}")
            )
    except Exception as error:
        raise _located(error, definition, tracer.files) from error
    graph = Graph(
        flow=definition.name,
        nodes=tuple(tracer.nodes),
        result=output,
        max_parallel=definition.max_parallel,
        max_parallel_by=definition.max_parallel_by,
        sequential=definition.sequential,
        fail=definition.fail,
        queue_timeout_us=definition.queue_timeout_us,
        dispatch_deadline_us=definition.dispatch_deadline_us,
    )
    return _validated(graph, params, tracer.values.consts())


_valid: OrderedDict[str, tuple[Graph, bytes]] = OrderedDict()


def _validated(graph: Graph, params: bytes, consts: bytes) -> Traced:
    """A graph seen before was sound before: thousands of submissions of one flow check it, and keep it, once."""
    digest, body = graph_check.digest(graph)
    known = _valid.get(digest)
    if known is not None:
        return Traced(known[0], digest, known[1], params, consts)
    graph_check.validate(graph)
    _valid[digest] = graph, body
    if len(_valid) > _KNOWN_GRAPHS:
        _valid.popitem(last=False)
    return Traced(graph, digest, body, params, consts)


def _encode_params(flow: FlowDef, bound: inspect.BoundArguments) -> bytes:
    try:
        fields = {name: codec.encode(value, name) for name, value in bound.arguments.items()}
    except Unserialisable as error:
        raise Unserialisable(
            f"flow {flow.short!r} cannot take this argument: {error.message}",
            field=error.field,
            got=error.got,
            hint=error.hint,
        ) from error
    flow.check_arguments(fields, bound)
    return codec.join_object(fields)


def _located(error: Exception, flow: FlowDef, files: set[str]) -> HeadgateError:
    """`error` with the line of the user's own code that caused it."""
    place = _users_line(error, files)
    if isinstance(error, HeadgateError):
        located = Unserialisable if isinstance(error, Unserialisable) else InvalidFlow
        return located(
            f"flow {flow.short!r}{place}: {error.message}",
            field=error.field,
            got=error.got,
            hint=error.hint,
        )
    return InvalidFlow(
        f"flow {flow.short!r} could not be traced{place}: {type(error).__name__}: {error}",
        field=flow.short,
        got=type(error).__name__,
        hint="A flow's body runs at submission, with its real arguments but no results of steps.",
    )


def _users_line(error: Exception, files: set[str]) -> str:
    """` at file.py:12 (the line)`: the innermost frame in a file that defines one of the flows."""
    place = ""
    frame = error.__traceback__
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if file in files:
            text = linecache.getline(file, frame.tb_lineno).strip()
            place = f" at {file}:{frame.tb_lineno}" + (f" ({text})" if text else "")
        frame = frame.tb_next
    return place
