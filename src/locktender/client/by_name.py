"""Runs of flows whose code is not in this process: checked by what workers announced, traced by one of them.

What workers announced stays in the store: a flow can be submitted while no worker is there. A name that was never
announced is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

import msgspec

from locktender.base import codec, graph_check
from locktender.base.announced import AnnouncedFlow, check_arguments
from locktender.base.clock import Clock
from locktender.base.config import Settings
from locktender.base.errors import InvalidInput, NotFound
from locktender.base.graph import Graph
from locktender.base.model import NewRun
from locktender.base.named_runs import tracing_graph
from locktender.base.names import MAX_NAME, did_you_mean
from locktender.client.core import Core
from locktender.client.submission import Submission
from locktender.client.submit import (
    Prepared,
    check_size,
    made_ids,
    options_of,
    say_which,
    shaped,
)
from locktender.flows.registry import refuse_while_importing, registry
from locktender.observe import tracing


def is_elsewhere(flow: object) -> bool:
    """Whether `flow` is the name of a flow that is not loaded here."""
    return isinstance(flow, str) and flow not in registry.flows


async def announced_flow(core: Core, name: str) -> AnnouncedFlow:
    """Raises `NotFound` where no worker has ever announced it."""
    found = await core.store.flows([name])
    if found:
        return found[0]
    known = {*registry.flows, *(each.name for each in await core.store.flows())}
    raise NotFound(
        f"there is no flow {name[:MAX_NAME]!r} here, and no worker has announced one of that name.",
        field="flow",
        got=name[:MAX_NAME],
        hint=did_you_mean(name, known)
        or "Start a worker that knows it: locktender worker FILE.py; or import its file here.",
    )


async def prepare_named(core: Core, name: str, calls: Iterable[object]) -> list[Prepared]:
    """Calls of a flow by its name, checked and ready to be stored."""
    return prepare_announced(core, await announced_flow(core, name), list(calls))


class Submitter(Protocol):
    """What is needed to prepare a run."""

    @property
    def settings(self) -> Settings: ...
    @property
    def clock(self) -> Clock: ...


def prepare_announced(
    core: Submitter, flow: AnnouncedFlow, calls: Sequence[object]
) -> list[Prepared]:
    """Calls of a flow that was announced, checked and ready to be stored."""
    refuse_while_importing("submits a run")
    ids, trace = made_ids(core.clock), tracing.traceparent()
    graphs: dict[tuple[str, ...], tuple[Graph, str, bytes]] = {}

    def prepare(call: object) -> Prepared:
        submission = Submission.of(call)
        params, raw = named_arguments(flow, submission.args, submission.kwargs)
        check_size(core.settings, flow.name, raw, b"")
        names = tuple(sorted(params))
        if names not in graphs:
            graph = msgspec.structs.replace(
                tracing_graph(flow.name, names),
                queue_timeout_us=flow.queue_timeout_us,
                dispatch_deadline_us=flow.dispatch_deadline_us,
            )
            graphs[names] = graph, *graph_check.digest(graph)
        graph, digest, body = graphs[names]
        options = options_of(flow, submission)
        run = NewRun(next(ids), flow.name, digest, raw, b"[]", *options, trace=trace)
        return Prepared(shaped(run, submission, core.clock), graph, body)

    prepared: list[Prepared] = []
    for index, call in enumerate(calls):
        try:
            prepared.append(prepare(call))
        except InvalidInput as error:
            say_which(error, index if len(calls) > 1 else None)
            raise
    return prepared


def named_arguments(
    flow: AnnouncedFlow, args: Iterable[Any], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], bytes]:
    """The arguments by name, and as JSON. Raises `InvalidInput` for what the announced parameters do not take."""
    named = dict(kwargs)
    for position, given in enumerate(args):
        if position or not isinstance(given, Mapping):
            raise InvalidInput(
                f"arguments of flow {flow.name!r} go by name: its code is not here.",
                field="args",
                got=given,
                hint=f'e.g. submit({flow.name!r}, {{"name": value}}); it is {flow.spoken}.',
            )
        named = {**cast("Mapping[str, Any]", given), **named}
    raw = {str(name): codec.encode(value, str(name)) for name, value in named.items()}
    plain = {name: msgspec.json.decode(value) for name, value in raw.items()}
    check_arguments(flow, plain)
    return plain, codec.join_object(raw)
