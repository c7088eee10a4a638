"""Calls of a flow, traced and checked one after another; what they have in common is made once.

A flow is submitted by the ten thousand: what does not depend on the call (the
options of the flow, the caller's trace, where ids come from) is no work of each.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from typing import NamedTuple, cast

from locktender.base import names
from locktender.base.clock import Clock
from locktender.base.config import Settings
from locktender.base.durations import Duration, microseconds
from locktender.base.errors import InvalidInput
from locktender.base.graph import Graph, PoolNeed, Tag
from locktender.base.ids import ENTROPY, RunId, run_ids
from locktender.base.importing import refuse_while_importing
from locktender.base.model import NewRun, OnDuplicate
from locktender.client.submission import (
    Prepared,
    Submission,
    call_of,
    check_duplicate,
    definition_of,
)
from locktender.flows.definitions import FlowDef
from locktender.flows.trace import Traced, trace
from locktender.observe import tracing

MOST_IDS = 256
"""Made at a time."""
_PLAIN = Submission()


class _Options(NamedTuple):
    """What is said of a run beside its arguments: the flow's own words where the call says nothing."""

    tags: dict[str, str]
    priority: int
    key: str | None
    on_duplicate: OnDuplicate
    deadline_us: int | None
    queue_timeout_us: int | None
    dispatch_deadline_us: int | None


class Preparing:
    """Calls of one flow, handed in together or one alone."""

    def __init__(self, flow: object, settings: Settings, clock: Clock) -> None:
        refuse_while_importing("submits a run")
        self._flow = definition_of(flow)
        self._settings = settings
        self._ids = _ids(clock)
        self._trace = tracing.traceparent()
        self._plain = _options(self._flow, _PLAIN)
        self._keyed: dict[str, list[tuple[str, PoolNeed, Tag]]] = {}

    def prepare(self, call: object, index: int | None = None) -> Prepared:
        """A `Submission`, or arguments as `submit_many` takes them, traced and with every option checked."""
        flow = self._flow
        if isinstance(call, Submission):
            traced = trace(flow, call.args, call.kwargs)
            self._check_size(traced, index)
            options = _options(flow, call)
        else:
            traced = trace(flow, *call_of(call))
            self._check_size(traced, index)
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
        return Prepared(run, traced.graph, traced.body, flow)

    def _check_size(self, traced: Traced, index: int | None) -> None:
        most = self._settings.max_value_bytes
        if len(traced.params) <= most and len(traced.consts) <= most:
            return
        what, size = "arguments of", len(traced.params)
        if size <= most:
            what, size = "values in", len(traced.consts)
        shown = "" if index is None else f"[{index}]."
        raise InvalidInput(
            f"{shown}the {what} {self._flow.short!r} are {size:,} bytes as JSON; at most {most:,} are"
            " allowed.",
            field="args",
            got=size,
            hint="Hand over a path or a URL in place of the data, and read it in a step.",
        )

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


def prepare(flow: object, submission: Submission, settings: Settings, clock: Clock) -> Prepared:
    """One call alone."""
    return Preparing(flow, settings, clock).prepare(submission)


def _ids(clock: Clock) -> Generator[RunId]:
    """Ever more at a time: who asks for one gets one."""
    count = 1
    while True:
        yield from run_ids(clock.now(), os.urandom(ENTROPY * count))
        count = min(2 * count, MOST_IDS)


def _options(flow: FlowDef, given: Submission) -> _Options:
    return _Options(
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
