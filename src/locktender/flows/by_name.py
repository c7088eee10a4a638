"""Flows for those who do not have their code: what a worker announces, and the step that traces one for a run.

A run submitted by name begins with one task, whose step is `TRACE`. The worker that accepts it calls the flow's
body with the submitted arguments, read by its annotations, and returns the traced graph. Secrets stay references:
a flow has no use for their values, and what it returns is stored.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, cast
from weakref import WeakKeyDictionary

import msgspec

from locktender.base import codec
from locktender.base.announced import MAX_SCHEMA_BYTES, AnnouncedFlow
from locktender.base.errors import LocktenderError
from locktender.base.graph import TRACE, Node
from locktender.base.secrets import MARK, SECRET_KEY, Secret
from locktender.flows.annotations import schema_of
from locktender.flows.definitions import FlowDef, StepDef
from locktender.flows.registry import Registry
from locktender.flows.trace import trace

_announced: WeakKeyDictionary[FlowDef, AnnouncedFlow] = WeakKeyDictionary()


def announcement(flow: FlowDef) -> AnnouncedFlow:
    """What a worker says of a flow that it knows; made once."""
    found = _announced.get(flow)
    if found is None:
        found = _announced[flow] = _announcement(flow)
    return found


def _announcement(flow: FlowDef) -> AnnouncedFlow:
    parameters, result = _parameters(flow), schema_of(_hint(flow, "return"))
    if len(msgspec.json.encode([parameters, result])) > MAX_SCHEMA_BYTES:
        parameters, result = {key: parameters[key] for key in ("type", "required")}, {}
    return AnnouncedFlow(
        name=flow.name,
        signature=flow.signature,
        spoken=flow.spoken,
        parameters=parameters,
        result=result,
        tags=flow.tags,
        priority=flow.priority,
        deadline_us=flow.deadline_us,
        queue_timeout_us=flow.queue_timeout_us,
        dispatch_deadline_us=flow.dispatch_deadline_us,
    )


def _parameters(flow: FlowDef) -> dict[str, Any]:
    """JSON schema of the object of a flow's parameters."""
    properties: dict[str, Any] = {}
    required: list[str] = []
    defs: dict[str, Any] = {}
    others: Any = False
    for name, parameter in flow.parameters.parameters.items():
        schema = schema_of(_hint(flow, name))
        defs |= schema.pop("$defs", {})
        if parameter.kind is parameter.VAR_KEYWORD:
            others = schema or True
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            properties[name] = schema
            if parameter.default is parameter.empty:
                required.append(name)
            else:
                # A default is its author's own business: `n: int = None` is common.
                _allow_default(schema, parameter.default, properties, name)
    found = {"type": "object", "properties": properties, "required": required}
    found["additionalProperties"] = others
    return {**found, "$defs": defs} if defs else found


def _allow_default(
    schema: dict[str, Any], default: object, properties: dict[str, Any], name: str
) -> None:
    try:
        value = msgspec.json.decode(codec.encode(default, name))
    except LocktenderError:
        return
    properties[name] = {**schema, "default": value}
    if value is None and schema:
        properties[name] = {"anyOf": [schema, {"type": "null"}], "default": None}


def _hint(flow: FlowDef, name: str) -> Any:
    try:
        return flow.hints.get(name, Any)
    except LocktenderError:  # an annotation that cannot be resolved
        return Any


class TracingStep(StepDef):
    """The step `TRACE` of one flow."""

    opens_secrets: ClassVar[bool] = False

    def __init__(self, flow: FlowDef) -> None:
        super().__init__(_traced, {"name": TRACE})
        self._flow = flow

    def decode_call(self, raw: bytes) -> tuple[list[Any], dict[str, Any]]:
        """The flow, and its arguments by name, each read by its annotation."""
        _, named = codec.read_call(raw)
        plain = {name: value for name, value in named.items() if MARK not in value}
        _, arguments = self._flow.decode_call(codec.render_call((), plain))
        for name in named.keys() - plain.keys():
            arguments[name] = _with_secrets(msgspec.json.decode(named[name]))
        return [self._flow, {name: arguments[name] for name in named}], {}

    def encode_result(self, value: object) -> bytes:
        return cast("bytes", value)


def _traced(flow: FlowDef, arguments: Mapping[str, Any]) -> bytes:
    named = dict(arguments)
    several = flow.parameters.parameters.values()
    by_position = [each.name for each in several if each.kind is inspect.Parameter.POSITIONAL_ONLY]
    args = [named.pop(name) for name in by_position if name in named]
    traced = trace(flow, args, named)
    return codec.join_object(
        {"graph": traced.body, "params": traced.params, "consts": traced.consts}
    )


def _with_secrets(value: Any) -> Any:
    """Plain JSON with its references to secrets as such."""
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        if set(members) == {SECRET_KEY}:
            return Secret(members[SECRET_KEY])
        return {key: _with_secrets(each) for key, each in members.items()}
    if isinstance(value, list):
        return [_with_secrets(each) for each in cast("list[Any]", value)]
    return value


def named_code(node: Node) -> str:
    """What code a task of `node` needs, for messages."""
    return f"flow {node.signature}" if node.step == TRACE else f"step {node.step}"


def step_for(known: Registry, node: Node) -> StepDef | None:
    """The step that runs a task of `node`; None: its code is not here."""
    if node.step != TRACE:
        return known.steps.get(node.step)
    flow = known.flows.get(node.signature)
    return None if flow is None else TracingStep(flow)
