"""A flow and its arguments, traced into what a submission stores.

Checked graphs are kept, the last used ones within a bound of bytes, so that
runs with the same graph check and encode it once.
"""

from __future__ import annotations

import inspect
import linecache
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from locktender.base import codec, graph_check
from locktender.base.errors import InvalidFlow, LocktenderError, Unserialisable
from locktender.base.graph import GRAPH_VERSION, PLAIN_VERSION, AnyTemplate, Graph
from locktender.flows.definitions import FlowDef
from locktender.flows.flows import Flow
from locktender.flows.tracer import Tracer, recording

MAX_GRAPHS = 1_000
MAX_BYTES = 8 * 1024 * 1024
"""Of all their JSON together. In memory a graph takes a few times as much."""


class Checked(NamedTuple):
    """A graph that was found sound, as it is stored."""

    graph: Graph
    digest: str
    body: bytes


class KnownGraphs:
    """By digest. Several threads may ask: at worst a graph is checked twice."""

    def __init__(self, most_bytes: int = MAX_BYTES) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, Checked] = OrderedDict()
        self._bytes = 0
        self._keeping = threading.Lock()

    @property
    def size(self) -> int:
        """Bytes of JSON that are kept."""
        return self._bytes

    def get(self, digest: str) -> Checked | None:
        found = self._kept.get(digest)
        if found is None:
            return None
        try:
            self._kept.move_to_end(digest)
        except KeyError:  # another thread has just let it go
            return found
        return found

    def checked(self, graph: Graph) -> Checked:
        """`graph`, validated unless one like it was before."""
        digest, body = graph_check.digest(graph)
        found = self.get(digest)
        if found is None:
            graph_check.validate(graph)
            found = Checked(graph, digest, body)
            self._keep(found)
        return found

    def _keep(self, new: Checked) -> None:
        if len(new.body) > self._most_bytes:
            return
        with self._keeping:
            if new.digest in self._kept:
                return
            self._kept[new.digest] = new
            self._bytes += len(new.body)
            while self._bytes > self._most_bytes or len(self._kept) > MAX_GRAPHS:
                _, old = self._kept.popitem(last=False)
                self._bytes -= len(old.body)


known_graphs: KnownGraphs = KnownGraphs()


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
    # Before the body: what it does to its arguments is not what was submitted.
    params = encoded_arguments(definition, bound)
    tracer = Tracer(definition, bound.arguments, params)
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
    place = tracer.place
    digest = None if place is None else place.end(output)
    known = None if digest is None else known_graphs.get(digest)
    if known is None:
        known = known_graphs.checked(_graph(definition, tracer, output))
        if place is not None and digest is None:
            place.ended(output, known.digest)
    return Traced(*known, codec.join_object(params), tracer.values.consts())


def _graph(flow: FlowDef, tracer: Tracer, result: AnyTemplate | None) -> Graph:
    newest = any(node.wait or node.in_order for node in tracer.nodes)
    return Graph(
        flow=flow.name,
        nodes=tuple(tracer.nodes),
        result=result,
        max_parallel=flow.max_parallel,
        max_parallel_by=flow.max_parallel_by,
        sequential=flow.sequential,
        fail=flow.fail,
        queue_timeout_us=flow.queue_timeout_us,
        dispatch_deadline_us=flow.dispatch_deadline_us,
        version=GRAPH_VERSION if newest else PLAIN_VERSION,
    )


def encoded_arguments(flow: FlowDef, bound: inspect.BoundArguments) -> dict[str, bytes]:
    """Each argument as JSON, checked against its annotation."""
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
    return fields


def _located(error: Exception, flow: FlowDef, files: set[str]) -> LocktenderError:
    """`error` with the line of the user's own code that caused it."""
    place = _users_line(error, files)
    if isinstance(error, LocktenderError):
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
