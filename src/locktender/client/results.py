"""An ended run as its value, read by the annotations, or as the error that names the failed step."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, cast

import msgspec

from locktender.base import codec
from locktender.base.codec import StepError
from locktender.base.errors import InvalidFlow, RunCancelled, RunFailed, RunTimedOut
from locktender.base.graph import Graph, Output
from locktender.base.model import Failure
from locktender.base.secrets import MARK, SECRET_KEY, secret
from locktender.base.states import RunState
from locktender.client.core import Core
from locktender.client.run_waiter import RunOutcome
from locktender.store.graphs import graph_of

if TYPE_CHECKING:
    from locktender.flows.function import Function


class ReturnedBy(msgspec.Struct, frozen=True):
    """Whose annotation a run's value has: the flow's, else that of the step whose whole result it is."""

    flow: str = ""
    step: str = ""
    """Empty: it is put together."""
    signature: str = ""
    mapped: bool = False
    collects: bool = False
    """Errors of items stand among the results."""


MAX_KNOWN_GRAPHS = 256
_known: dict[tuple[str, str], ReturnedBy] = {}
"""Graph (the hash of its text) and flow → what reads the value; emptied above `MAX_KNOWN_GRAPHS`."""


async def returned_by(core: Core, ended: RunOutcome) -> ReturnedBy:
    known = _known.get((ended.graph, ended.flow))
    if known is not None:
        return known
    graph = await graph_of(core.store, ended.graph)
    if graph is None:
        return ReturnedBy(ended.flow)  # its result is there all the same, as plain JSON
    if len(_known) >= MAX_KNOWN_GRAPHS:
        _known.clear()
    found = _known[ended.graph, ended.flow] = _returned_by(graph, ended.flow)
    return found


def _returned_by(graph: Graph, flow: str) -> ReturnedBy:
    template = graph.result
    if not isinstance(template, Output) or template.path:
        return ReturnedBy(flow)
    node = graph.nodes[template.node]
    return ReturnedBy(
        flow, node.step, node.signature, node.over is not None, node.on_error == "collect"
    )


def annotated_type(by: ReturnedBy) -> Any:
    """`Any` where neither the flow nor the step is known here: plain JSON then."""
    if "locktender.flows.registry" not in sys.modules:
        return Any  # nothing is registered: to load it for that takes a tenth of a command's time
    from locktender.flows.registry import registry

    flow = registry.flows.get(by.flow)
    if flow is None:
        return Any
    annotated = _annotation(flow)
    if annotated is not Any:
        return annotated
    step = registry.steps.get(by.step)
    if step is None or step.signature != by.signature:
        return Any
    one = _annotation(step)
    if not by.mapped or one is Any:
        return one
    return list[one | StepError] if by.collects else list[one]


def _annotation(function: Function) -> Any:
    try:
        return function.returns
    except InvalidFlow:  # a name that exists only for the type checker
        return Any


_failure = msgspec.json.Decoder(Failure).decode
_BLOB = b'"$locktender.blob"'
_ERRORS: dict[str, type[RunFailed]] = {
    RunState.CANCELLED: RunCancelled,
    RunState.TIMED_OUT: RunTimedOut,
}


async def value_of(core: Core, ended: RunOutcome) -> Any:
    """The value of a run that has ended. Raises what it ended with."""
    if ended.state == RunState.REJECTED:
        from locktender.client.outbox_rows import rejection

        raise await rejection(core.store, ended.id)
    if ended.state != RunState.SUCCEEDED:
        raise await error_of(core, ended)
    if ended.output is None:
        return None
    return read_value(await open_blobs(core, ended.output), await returned_by(core, ended))


def read_value(output: bytes, by: ReturnedBy) -> Any:
    """The value of a run out of its JSON."""
    if MARK in output:
        # A flow that returns an argument: the reference is all that a run knows of it.
        return with_secrets(codec.decode(output))
    return codec.decode(output, annotated_type(by), "result")


async def raw_value(
    core: Core, run_id: str, timeout_us: int | None
) -> tuple[str, bytes, ReturnedBy]:
    """The id of a run that has succeeded, its value as JSON and what reads it. Raises as `result()` does."""
    ended = await core.waiting.until_ended(run_id, timeout_us)
    if ended.state != RunState.SUCCEEDED:
        await value_of(core, ended)
    if ended.output is None:
        return ended.id, b"null", ReturnedBy()
    return ended.id, await open_blobs(core, ended.output), await returned_by(core, ended)


def with_secrets(value: Any) -> Any:
    """Plain JSON with its references to secrets as such."""
    if isinstance(value, list):
        return [with_secrets(each) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        found = cast("dict[str, Any]", value)
        if found.keys() == {SECRET_KEY}:
            return secret(found[SECRET_KEY])
        return {key: with_secrets(each) for key, each in found.items()}
    return value


async def open_blobs(core: Core, value: bytes) -> bytes:
    """`value` with every blob it refers to put in place, also inside lists and objects."""
    if _BLOB not in value:
        return value
    if (ref := codec.is_blob(value)) is not None:
        return await core.store.get_blob(ref[0])
    if value.lstrip()[:1] == b"[":
        return codec.join_list([await open_blobs(core, each) for each in codec.split_list(value)])
    from locktender.kernel import render

    members = render.split_object(value)
    return codec.join_object({key: await open_blobs(core, each) for key, each in members.items()})


def failure_of(raw: bytes | None) -> Failure | None:
    if raw is None:
        return None
    try:
        return _failure(raw)
    except msgspec.DecodeError:
        return Failure("internal", raw.decode(errors="replace"))


async def error_of(core: Core, ended: RunOutcome) -> RunFailed:
    """What `result()` raises for a run that ended otherwise than well."""
    failure = failure_of(ended.error)
    kind = _ERRORS.get(ended.state, RunFailed)
    step = None if failure is None else failure.node
    at = "" if step is None else f" at step {step!r}"
    what = "" if failure is None else f": {failure.text()}"
    error = kind(
        f"run {ended.id} of {ended.flow} {_VERBS[ended.state]}{at}{what}",
        field=step,
        got=None if failure is None else failure.type,
        hint=f"See: locktender runs show {ended.id}.",
    )
    error.run_id, error.step = ended.id, step
    if failure is not None:
        error.error_type, error.error_message = failure.type, failure.message
        error.traceback = failure.traceback or await _traceback(core, ended, failure)
        if error.traceback:
            # Shown below our own lines wherever Python prints the error.
            error.add_note(f"In the worker:\n{error.traceback.rstrip()}")
    return error


async def _traceback(core: Core, ended: RunOutcome, failure: Failure) -> str | None:
    """A run keeps its error short; the task that failed has all of it."""
    if failure.node is None:
        return None
    graph = await graph_of(core.store, ended.graph)
    if graph is None:
        return None  # that the graph cannot be read is why it failed
    for task in await core.store.tasks(ended.seq):
        found = failure_of(task.error)
        if found is not None and graph.nodes[task.node].name == failure.node and found.traceback:
            return found.traceback
    return None


_VERBS: dict[str, str] = {
    RunState.FAILED: "failed",
    RunState.CANCELLED: "was cancelled",
    RunState.TIMED_OUT: "passed its deadline",
}
