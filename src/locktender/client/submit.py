"""A call of a flow, traced, checked and stored as a run.

Tracing runs the user's own code, so it happens in the caller's thread; only
its result goes to the store. What does not depend on the call (options of the
flow, the caller's trace, the source of ids) is made once for many submissions.
"""

from __future__ import annotations

import os
import typing
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, cast

import msgspec

from locktender.base import codec, graph_check, names
from locktender.base.announced import AnnouncedFlow
from locktender.base.clock import Clock
from locktender.base.config import Settings
from locktender.base.durations import Duration, microseconds
from locktender.base.errors import InvalidFlow, InvalidInput
from locktender.base.graph import Graph, PoolNeed, Tag
from locktender.base.ids import ENTROPY, RunId, run_ids
from locktender.base.limits import Limits
from locktender.base.model import NewRun, OnDuplicate
from locktender.base.names import check_labels
from locktender.client.core import Core
from locktender.client.delays import delayed
from locktender.client.key_options import bounded, timed
from locktender.client.mailing import remember_graph
from locktender.client.submission import Submission, call_of
from locktender.flows.definitions import FlowDef
from locktender.flows.flows import Flow
from locktender.flows.registry import refuse_while_importing, registry
from locktender.flows.trace import Traced, trace
from locktender.observe import tracing
from locktender.store.blob_values import FILE_MARK
from locktender.store.protocol import Submit, Submitted
from locktender.store.retry import repeated

_ON_DUPLICATE: tuple[str, ...] = typing.get_args(OnDuplicate)


class Prepared(msgspec.Struct, frozen=True, gc=False):
    """A submission that only needs the store."""

    run: NewRun
    graph: Graph
    body: bytes
    """The graph as it is stored."""


def definition_of(flow: object) -> FlowDef:
    """A flow, or the name of one that is loaded here."""
    if isinstance(flow, Flow):
        return cast("Flow[..., Any]", flow).definition
    if isinstance(flow, FlowDef):
        return flow
    if isinstance(flow, str):
        return registry.flow(flow)
    hint = "Give it a function decorated with @flow, or the name of one."
    if getattr(flow, "call", None) is not None and getattr(flow, "definition", None) is not None:
        hint = "This is a step: call it inside a function decorated with @flow, and submit that."
    elif callable(flow):
        hint = "Decorate the function with @flow."
    raise InvalidInput("only flows can be submitted.", field="flow", got=flow, hint=hint)


def check_duplicate(value: object, key: object) -> None:
    """Refuses an unknown value, and any without a key. None: not given."""
    if value is None:
        return
    if value not in _ON_DUPLICATE:
        raise InvalidInput(
            f"on_duplicate must be one of {', '.join(_ON_DUPLICATE)}.",
            field="on_duplicate",
            got=value,
            hint=names.nearest(value, _ON_DUPLICATE),
        )
    if key is None:
        raise InvalidInput(
            f"on_duplicate={value!r} needs a key.",
            field="on_duplicate",
            got=value,
            hint='Without a key no run is a duplicate: add key="…".',
        )


MAX_IDS_AT_ONCE = 256
"""Made at a time."""
_PLAIN = Submission()


class SubmitOptions(NamedTuple):
    """The options of a run: the flow's own where the call gives none."""

    tags: dict[str, str]
    priority: int
    key: str | None
    on_duplicate: OnDuplicate
    deadline_us: int | None
    queue_timeout_us: int | None
    dispatch_deadline_us: int | None


def shaped(run: NewRun, call: Submission, clock: Clock) -> NewRun:
    """`run` with what its submission says of when it starts, and which runs of its key stay."""
    if call.delay is not None or call.start_at is not None:
        run = delayed(run, call.delay, call.start_at, clock.now())
    if (call.keep, call.max_queued) != (None, None):
        run = bounded(run, call.keep, call.max_queued)
    if (call.debounce, call.throttle) != (None, None):
        run = timed(run, call.debounce, call.throttle)
    return run


class Preparing:
    """Calls of one flow, submitted together or one alone."""

    def __init__(self, flow: object, settings: Settings, clock: Clock) -> None:
        refuse_while_importing("submits a run")
        self._flow = definition_of(flow)
        self._by_name = isinstance(flow, str)
        self._settings = settings
        self._clock = clock
        self._ids = made_ids(clock)
        self._trace = tracing.traceparent()
        self._plain = options_of(self._flow, _PLAIN)
        self._keyed: dict[str, list[tuple[str, PoolNeed, Tag]]] = {}

    def prepare(self, call: object, index: int | None = None) -> Prepared:
        """A `Submission`, or arguments as `submit_many` takes them, traced and with every option checked."""
        try:
            return self._prepared(call)
        except InvalidInput as error:
            say_which(error, index)
            raise

    def _prepared(self, call: object) -> Prepared:
        flow = self._flow
        if self._by_name:
            call = named_if_whole(flow, Submission.of(call))
        if isinstance(call, Submission):
            traced = trace(flow, call.args, call.kwargs)
            check_size(self._settings, flow.short, traced.params, traced.consts)
            options = options_of(flow, call)
        else:
            traced = trace(flow, *call_of(call))
            check_size(self._settings, flow.short, traced.params, traced.consts)
            options = self._plain
        run = NewRun(
            next(self._ids),
            flow.name,
            traced.digest,
            traced.params,
            traced.consts,
            *options,
            trace=self._trace,
        )
        self._check_tags(traced, options.tags)
        if isinstance(call, Submission):
            run = shaped(run, call, self._clock)
        return Prepared(run, traced.graph, traced.body)

    def _check_tags(self, traced: Traced, tags: Mapping[str, str]) -> None:
        """A pool keyed by a tag that the run does not have would fail its step, later."""
        keyed = self._keyed.get(traced.digest)
        if keyed is None:
            keyed = self._keyed[traced.digest] = _keyed(traced.graph)
        for step, need, tag in keyed:
            if tag.key not in tags:
                raise InvalidInput(
                    f"step {step!r} needs the pool {_pool_text(need)!r}, and the run has no tag"
                    f" {tag.key!r}.",
                    field="tags",
                    got=dict(tags),
                    hint=f"submit with tags={{{tag.key!r}: …}}",
                )


def named_if_whole(flow: FlowDef, call: Submission) -> Submission:
    """Of a flow given by name, one object whose keys are its parameters has the arguments."""
    if len(call.args) != 1 or call.kwargs or not isinstance(call.args[0], Mapping):
        return call
    given = cast("Mapping[str, Any]", call.args[0])
    if not given or not given.keys() <= flow.parameters.parameters.keys():
        return call
    return replace(call, args=(), kwargs=given)


def say_which(error: InvalidInput, index: int | None) -> None:
    """Adds to an error of which call of `submit_many` it is; `index` None: there is one alone."""
    if index is not None:
        error.message = f"[{index}]: {error.message}"
        error.field = f"[{index}].{error.field}" if error.field else f"[{index}]"


def check_size(settings: Settings, flow: str, params: bytes, consts: bytes) -> None:
    """Refuses arguments and values that are too large to be stored."""
    most = settings.max_value_bytes
    if len(params) <= most and len(consts) <= most:
        return
    what, size = "arguments of", len(params)
    if size <= most:
        what, size = "values in", len(consts)
    raise InvalidInput(
        f"the {what} {flow!r} are {size:,} bytes as JSON; at most {most:,} are"
        " allowed (max_value).",
        field="args",
        got=size,
        hint="Hand over a path or a URL in place of the data, and read it in a step.",
    )


def prepare(flow: object, submission: Submission, settings: Settings, clock: Clock) -> Prepared:
    """One call alone."""
    return Preparing(flow, settings, clock).prepare(submission)


def made_ids(clock: Clock) -> Generator[RunId]:
    """Ids, made in growing batches: the first call makes one."""
    count = 1
    while True:
        yield from run_ids(clock.now(), os.urandom(ENTROPY * count))
        count = min(2 * count, MAX_IDS_AT_ONCE)


def options_of(flow: FlowDef | AnnouncedFlow, given: Submission) -> SubmitOptions:
    """The options of a run: the call's own, else the flow's."""
    return SubmitOptions(
        tags=dict(flow.tags)
        if given.tags is None
        else names.tags({**flow.tags, **names.tags(given.tags)}),
        priority=flow.priority if given.priority is None else names.priority(given.priority),
        # Any text: a key is compared, never part of a path.
        key=None if given.key is None else names.text(given.key, "key"),
        on_duplicate=_on_duplicate(given.on_duplicate, given.key),
        deadline_us=flow.deadline_us
        if given.deadline is None
        else microseconds(given.deadline, "deadline"),
        queue_timeout_us=_span(given.queue_timeout, "queue_timeout"),
        dispatch_deadline_us=_span(given.dispatch_deadline, "dispatch_deadline"),
    )


def _span(value: Duration | None, field: str) -> int | None:
    return None if value is None else microseconds(value, field)


def _on_duplicate(value: object, key: object) -> OnDuplicate:
    # In code the default cannot be told from the same word written out.
    check_duplicate(None if value == _PLAIN.on_duplicate else value, key)
    return cast("OnDuplicate", value)


def _keyed(graph: Graph) -> list[tuple[str, PoolNeed, Tag]]:
    """Pools whose key has a tag in it, each with the step that needs it."""
    return [
        (node.name, need, part)
        for node in graph.nodes
        for need in node.pools
        for part in need.key
        if isinstance(part, Tag)
    ]


def _pool_text(need: PoolNeed) -> str:
    parts = [
        part if isinstance(part, str) else f"{{{part.key}}}" if isinstance(part, Tag) else "…"
        for part in need.key
    ]
    return f"{need.name}[{''.join(parts)}]"


MAX_RUNS_PER_COMMIT = 10_000
"""Runs in one transaction: these cost a fraction of a second, in which no other process can write."""
FRESH_US = 500_000


async def store_runs(core: Core, prepared: Sequence[Prepared], *, partial: bool) -> list[Submitted]:
    """One answer per run, in order. All or none, unless `partial`; once each, even if an answer is lost."""
    if not partial and len(prepared) > MAX_RUNS_PER_COMMIT:
        raise InvalidInput(
            f"{len(prepared):,} runs cannot be submitted all or none; at most {MAX_RUNS_PER_COMMIT:,} can.",
            field="runs",
            got=len(prepared),
            hint="Use partial=True, or several calls.",
        )
    graphs = {each.run.graph: each.graph for each in prepared}.values()
    if (declared := core.settings.labels) is not None:
        for graph in graphs:
            check_labels(graph, declared)
    await check_pools(core, graphs)
    results: list[Submitted] = []
    for start in range(0, len(prepared), MAX_RUNS_PER_COMMIT):
        chunk = prepared[start : start + MAX_RUNS_PER_COMMIT]
        runs = [each.run for each in chunk]
        most = core.settings.blob_over_bytes
        for index, run in enumerate(runs):
            if len(run.params) > most or len(run.consts) > most:
                params, consts = (
                    await _put_away(core, run.params),
                    await _put_away(core, run.consts),
                )
                runs[index] = msgspec.structs.replace(run, params=params, consts=consts)
        bodies = {each.run.graph: each.body for each in chunk}
        submit = Submit(runs, bodies, partial)
        results += await repeated(
            lambda submit=submit: core.store.submit(submit),
            "a submission",
            core.clock,
            core.guard.check,
        )
        for each, answer in zip(chunk, results[start:], strict=True):
            if answer.outcome == "created":
                remember_graph(core, answer.id, each.graph)
        core.changed()
    return results


async def check_pools(core: Core, graphs: Iterable[Graph]) -> None:
    """Refuses what can never start, by the limits in force now, as the leader will see them."""
    needing = [graph for graph in graphs if any(node.pools for node in graph.nodes)]
    if not needing:
        return
    seen = core.limits_read
    if seen is not None and core.clock.monotonic() - seen[0] < FRESH_US:
        # A read of its own for every submission would cost as much as the submission. A limit that was
        # lowered meanwhile is as one that is lowered a moment later: `why` says *never*.
        with suppress(InvalidInput, InvalidFlow):
            _check_all(core, needing, seen[1])
            return
    read_at = core.clock.monotonic()
    limits, _ = await core.store.limits()
    core.limits_read = read_at, limits
    _check_all(core, needing, limits)


def _check_all(core: Core, graphs: Sequence[Graph], limits: Limits) -> None:
    if core.settings.strict_pools:
        limits = msgspec.structs.replace(limits, strict_pools=True)
    for graph in graphs:
        graph_check.check_pools(graph, limits)


async def _put_away(core: Core, raw: bytes) -> bytes:
    if len(raw) <= core.settings.blob_over_bytes:
        return raw
    if FILE_MARK in raw:
        raise InvalidInput(
            f"arguments that name files may have {core.settings.blob_over_bytes:,} bytes (blob_over);"
            f" these have {len(raw):,}.",
            field="params",
            hint="Hand over fewer files, or store one file with all of them.",
        )
    return codec.blob_ref(await core.store.put_blob(raw), len(raw))
