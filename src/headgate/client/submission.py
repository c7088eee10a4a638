"""A call of a flow, traced and checked, ready to be handed in; and what a refusal means.

Tracing runs the user's own code, so it happens in the caller's thread; only
what comes of it goes to the store.
"""

from __future__ import annotations

import os
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from headgate.base import names
from headgate.base.clock import SECOND, Clock
from headgate.base.config import Settings
from headgate.base.durations import Duration, microseconds, spoken
from headgate.base.errors import AdmissionRejected, DuplicateKey, InvalidInput
from headgate.base.graph import Graph, PoolNeed, Tag
from headgate.base.ids import run_id
from headgate.base.jsonable import BLOB_KEY
from headgate.base.model import NewRun, OnDuplicate
from headgate.flows.definitions import FlowDef
from headgate.flows.flows import Flow
from headgate.flows.registry import registry
from headgate.flows.trace import trace
from headgate.observe import tracing
from headgate.store.admission import MAX_ACTIVE
from headgate.store.protocol import Submitted

TagValues = Mapping[str, str | int | bool]
_ON_DUPLICATE: tuple[str, ...] = typing.get_args(OnDuplicate)
_ON_DEFAULT: OnDuplicate = "attach"


@dataclass(frozen=True, slots=True)
class Submission:
    """One call of a flow with its own options, for `submit_many`. What is None is taken from the flow."""

    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tags: TagValues | None = None
    priority: int | None = None
    key: str | None = None
    on_duplicate: OnDuplicate = _ON_DEFAULT
    deadline: Duration | None = None
    queue_timeout: Duration | None = None
    dispatch_deadline: Duration | None = None

    @classmethod
    def of(cls, item: object) -> Submission:
        """Of `submit_many`: a tuple is the arguments, `((…), {…})` has keywords too; else one argument."""
        if isinstance(item, Submission):
            return item
        if not isinstance(item, tuple):
            return cls((item,))
        several = cast("tuple[Any, ...]", item)
        if len(several) == 2 and isinstance(several[0], tuple) and isinstance(several[1], dict):
            return cls(cast("tuple[Any, ...]", several[0]), cast("dict[str, Any]", several[1]))
        return cls(several)


class Prepared(NamedTuple):
    """A submission that only needs the store."""

    run: NewRun
    graph: Graph
    body: bytes
    """The graph as it is stored."""
    flow: FlowDef


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


def prepare(
    flow: object, submission: Submission, settings: Settings, clock: Clock, index: int | None = None
) -> Prepared:
    """Traces the flow with these arguments and checks every option."""
    definition = definition_of(flow)
    traced = trace(definition, submission.args, submission.kwargs)
    shown = "" if index is None else f"[{index}]."
    _check_size(traced.params, f"{shown}the arguments of {definition.short!r}", settings)
    _check_size(traced.consts, f"{shown}the values in {definition.short!r}", settings)
    deadline = submission.deadline
    run = NewRun(
        id=run_id(clock.now(), os.urandom(11)),
        flow=definition.name,
        graph=traced.digest,
        params=traced.params,
        consts=traced.consts,
        tags=dict(definition.tags)
        if submission.tags is None
        else names.tags({**definition.tags, **names.tags(submission.tags)}),
        priority=definition.priority
        if submission.priority is None
        else names.priority(submission.priority),
        # Any text: a key is compared, never part of a path.
        key=None if submission.key is None else names.text(submission.key, "key"),
        on_duplicate=_on_duplicate(submission.on_duplicate, submission.key),
        deadline_us=definition.deadline_us
        if deadline is None
        else microseconds(deadline, "deadline"),
        queue_timeout_us=_span(submission.queue_timeout, "queue_timeout"),
        dispatch_deadline_us=_span(submission.dispatch_deadline, "dispatch_deadline"),
        trace=tracing.traceparent(),
    )
    _check_tags(traced.graph, run.tags)
    return Prepared(run, traced.graph, traced.body, definition)


def _check_tags(graph: Graph, tags: Mapping[str, str]) -> None:
    """A pool keyed by a tag that the run does not have would fail its step, later."""
    for node in graph.nodes:
        for need in node.pools:
            for part in need.key:
                if isinstance(part, Tag) and part.key not in tags:
                    raise InvalidInput(
                        f"step {node.name!r} needs the pool {_pool_text(need)!r}, and the run has no"
                        f" tag {part.key!r}.",
                        field="tags",
                        got=dict(tags),
                        hint=f"submit with tags={{{part.key!r}: …}}",
                    )


def _pool_text(need: PoolNeed) -> str:
    parts = [
        part if isinstance(part, str) else f"{{{part.key}}}" if isinstance(part, Tag) else "…"
        for part in need.key
    ]
    return f"{need.name}[{''.join(parts)}]"


def _span(value: Duration | None, field: str) -> int | None:
    return None if value is None else microseconds(value, field)


def _on_duplicate(value: object, key: object) -> OnDuplicate:
    # In code the default cannot be told from the same word written out.
    check_duplicate(None if value == _ON_DEFAULT else value, key)
    return cast("OnDuplicate", value)


def check_duplicate(value: object, key: object) -> None:
    """Refuses what is no word for it, and any that has no key to be about. None: not given."""
    if value is None:
        return
    if value not in _ON_DUPLICATE:
        raise InvalidInput(
            f"on_duplicate must be one of {', '.join(_ON_DUPLICATE)}.",
            field="on_duplicate",
            got=value,
            hint=names.did_you_mean(str(value), _ON_DUPLICATE),
        )
    if key is None:
        raise InvalidInput(
            f"on_duplicate={value!r} needs a key.",
            field="on_duplicate",
            got=value,
            hint='Without a key no run is a duplicate: add key="…".',
        )


def _check_size(raw: bytes, what: str, settings: Settings) -> None:
    if len(raw) > settings.max_value_bytes:
        raise InvalidInput(
            f"{what} are {len(raw):,} bytes as JSON; at most {settings.max_value_bytes:,} are allowed.",
            field="args",
            got=len(raw),
            hint="Hand over a path or a URL in place of the data, and read it in a step.",
        )


def refusal(
    submitted: Submitted, run: NewRun, together: int = 1
) -> AdmissionRejected | DuplicateKey | None:
    """What the caller is told about a submission that was not taken; None where it was.

    `together`: how many were handed in with it, all or none.
    """
    if submitted.outcome == "duplicate":
        return _duplicate(submitted, run)
    if submitted.outcome != "rejected":
        return None
    retry_after = submitted.retry_after_us / SECOND
    if submitted.ceiling == "duplicate":
        return AdmissionRejected(
            f"run of {run.flow!r} was not taken because another of the same call was refused.",
            retry_after=retry_after,
            field="key",
            hint="All or none were to be taken: use partial=True to take what can be taken.",
        )
    text = f"{submitted.active:,} of {submitted.limit:,} runs are active"
    if together > 1:
        text = f"{together:,} runs at once do not fit under {submitted.limit:,} beside those active"
    return AdmissionRejected(
        f"the ceiling {submitted.ceiling} is reached: {text}; nothing was stored.",
        retry_after=retry_after,
        field=submitted.ceiling,
        got=submitted.active,
        hint=_way_in(submitted, together),
    )


def _way_in(submitted: Submitted, together: int) -> str:
    if submitted.ceiling == MAX_ACTIVE:
        command = "headgate limits set max_active N"
        if together > submitted.limit:
            # However long they wait: all or none of them never fit.
            return f"Use partial=True or smaller calls, or raise the ceiling: {command}."
    else:
        command = (
            "headgate limits set tag RULE --max-active N (headgate limits list names the rule)"
        )
    return f"Try again in {spoken(submitted.retry_after_us)}, or raise the ceiling: {command}."


def _duplicate(submitted: Submitted, run: NewRun) -> DuplicateKey:
    difference = submitted.difference
    if difference == BLOB_KEY:
        difference = "the arguments"  # both large: kept as blobs, of which only the hashes differ
    differs = f" and was submitted with another {difference}" if difference else ""
    return DuplicateKey(
        f"key {run.key!r} belongs to the active run {submitted.id}{differs}.",
        field="key",
        got=run.key,
        hint='Use another key, wait for that run, or on_duplicate="replace" to cancel it.',
    )
