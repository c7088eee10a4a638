"""A call of a flow as its submitter writes it, what is handed in for it, and what a refusal means.

Tracing runs the user's own code, so it happens in the caller's thread; only
what comes of it goes to the store.
"""

from __future__ import annotations

import math
import shlex
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from locktender.base import names
from locktender.base.clock import SECOND
from locktender.base.durations import Duration, spoken
from locktender.base.errors import AdmissionRejected, DuplicateKey, InvalidInput
from locktender.base.graph import Graph
from locktender.base.jsonable import BLOB_KEY
from locktender.base.model import NewRun, OnDuplicate
from locktender.flows.definitions import FlowDef
from locktender.flows.flows import Flow
from locktender.flows.registry import registry
from locktender.store.admission import MAX_ACTIVE
from locktender.store.protocol import Submitted

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
        return cls(*call_of(item))


def call_of(item: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and the named arguments of an entry of `submit_many`."""
    if not isinstance(item, tuple):
        return (item,), {}
    several = cast("tuple[Any, ...]", item)
    if len(several) == 2 and isinstance(several[0], tuple) and isinstance(several[1], dict):
        return cast("tuple[Any, ...]", several[0]), cast("dict[str, Any]", several[1])
    return several, {}


class Prepared(msgspec.Struct, frozen=True, gc=False):
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


def check_duplicate(value: object, key: object) -> None:
    """Refuses what is no word for it, and any that has no key to be about. None: not given."""
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


def refusal(submitted: Submitted, run: NewRun) -> AdmissionRejected | DuplicateKey | None:
    """What the caller is told about a submission that was not taken; None where it was."""
    if submitted.outcome == "duplicate":
        return _duplicate(submitted, run)
    if submitted.outcome != "rejected":
        return None
    if submitted.ceiling == "duplicate":
        return AdmissionRejected(
            f"run of {run.flow!r} was not taken because another of the same call was refused.",
            retry_after=0.0,
            field="key",
            hint="All or none were to be taken: use partial=True to take what can be taken.",
        )
    return AdmissionRejected(
        f"{_reached(submitted)}; nothing was stored.",
        retry_after=wait_at(submitted),
        field=submitted.ceiling,
        got=submitted.active,
        hint=way_in(submitted),
    )


def _reached(submitted: Submitted) -> str:
    ceiling, wanted = submitted.ceiling, submitted.wanted
    whose = "" if ceiling == MAX_ACTIVE else f" with {ceiling}"
    active, limit = submitted.active, f"{submitted.limit:,}"
    if wanted == 1:
        return f"the ceiling {ceiling} is reached: {active:,} of {limit} runs{whose} are active"
    if wanted > submitted.limit:
        return (
            f"{wanted:,} runs{whose} handed in together can never pass the ceiling {ceiling},"
            f" which is {limit}"
        )
    return (
        f"{wanted:,} runs{whose} handed in together do not fit under the ceiling {ceiling} now:"
        f" {active:,} of {limit} are active"
    )


def wait_at(submitted: Submitted) -> float:
    """`retry_after` in seconds: infinite where waiting does not help."""
    never = submitted.wanted > submitted.limit
    return math.inf if never else submitted.retry_after_us / SECOND


def way_in(submitted: Submitted) -> str:
    """What to do about a ceiling."""
    rule = submitted.rule or submitted.ceiling
    command = (
        f"locktender limits set {MAX_ACTIVE} N"
        if rule == MAX_ACTIVE
        else f"locktender limits set tag {shlex.quote(rule)} --max-active N"
    )
    if submitted.wanted > submitted.limit:
        return (
            f"Hand in at most {submitted.limit:,} at a time, use partial=True to take what fits,"
            f" or raise the ceiling: {command}"
        )
    return f"Try again in {spoken(submitted.retry_after_us)}, or raise the ceiling: {command}"


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
