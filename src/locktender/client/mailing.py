"""Events of clients: what is checked before one is sent, and who waits for which."""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from locktender.base import codec, names
from locktender.base.durations import MAX_MICROSECONDS
from locktender.base.errors import AdmissionRejected, InvalidInput, NotFound, WaitOver
from locktender.base.graph import Graph
from locktender.base.names import did_you_mean
from locktender.client.core import Core
from locktender.client.views import instant, moment
from locktender.store.graphs import required_graph
from locktender.store.protocol import MAX_MAIL, EventWaiter, SendEvent, Store
from locktender.store.retry import repeated

MAX_PAYLOAD_BYTES = 256 * 1024
MAX_ID = 200
MAX_KNOWN_GRAPHS = 1_000
_KNOWN: WeakKeyDictionary[Store, dict[str, Graph]] = WeakKeyDictionary()
"""Graphs of runs that wait for events, by id, as long as the client's store is open."""


@dataclass(frozen=True, slots=True)
class EventWaitInfo:
    """A task that waits for an event."""

    run: str
    flow: str
    task: int
    event: str
    since: datetime
    until: datetime | None
    """Then it times out; None: never."""
    token: str = field(default="", repr=False)
    """Of `run.waits()`: a program that has it can answer this wait, once, with `client.events.answer`."""
    match: dict[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def of(cls, row: EventWaiter) -> EventWaitInfo:
        """Out of the store's row; the token is not in it."""
        until = row.until if row.until - row.since < MAX_MICROSECONDS else 0
        return cls(
            row.run_id,
            row.flow,
            row.task,
            row.name,
            instant(row.since),
            moment(until),
            match=msgspec.json.decode(row.match),
        )


async def tokens_of(core: Core, run_id: str) -> list[EventWaitInfo]:
    """The waits of a run, each with its token."""
    await core.row(run_id)
    rows = await core.store.event_waits(run_id)
    if not rows:
        return []
    secret = await core.store.event_secret(os.urandom(32))
    return [replace(EventWaitInfo.of(row), token=_token(secret, row)) for row in rows]


def _token(secret: bytes, row: EventWaiter) -> str:
    """It names the wait; signed, so that clients cannot make one up."""
    named = f"{row.run_id}.{row.task}.{row.since}"
    return f"{named}.{hmac.new(secret, named.encode(), 'sha256').hexdigest()}"


async def answer(core: Core, token: object, payload: object) -> bool:
    """Whether it is the first answer of that wait."""
    text, raw = names.text(token, "token"), checked_payload(payload)
    named, _, signature = text.rpartition(".")
    run_id, _, rest = named.partition(".")
    secret = await core.store.event_secret(os.urandom(32))
    expected = hmac.new(secret, named.encode(), "sha256").hexdigest()
    if not hmac.compare_digest(signature.encode(), expected.encode()):
        raise InvalidInput(
            "this is not the token of a wait.",
            field="token",
            got=f"{text[:12]}…",
            hint="run.waits() shows the token of each wait.",
        )
    rows = await core.store.event_waits(run_id)
    row = next((each for each in rows if f"{each.task}.{each.since}" == rest), None)
    if row is None:
        raise await _over(core, run_id, int(rest.partition(".")[0]), f"{text[:12]}…")
    value = msgspec.json.decode(raw)
    return await send_to_run(core, run_id, row.name, value, f"token {rest}", row)


async def _over(core: Core, run_id: str, task: int, got: str) -> WaitOver:
    """What became of a wait that cannot be answered any more."""
    run = await core.store.run(run_id)
    rows = [] if run is None else await core.store.tasks(run.seq)
    ended = next((str(each.state) for each in rows if each.id == task), "gone")
    state = "gone" if run is None else str(run.state)
    became = {"completed": "it was answered, or went on without an answer"}
    error = WaitOver(
        f"the wait of run {run_id} that this token answers is over:"
        f" {became.get(ended, f'its task is {ended}')}.",
        field="token",
        got=got,
        hint=f"The run is {state}.",
    )
    error.state = state
    return error


async def waits_of(core: Core, limit: int) -> list[EventWaitInfo]:
    """Of all runs."""
    limit = names.count(limit, "limit", maximum=1_000_000)
    return [EventWaitInfo.of(row) for row in await core.store.event_waits(None, limit)]


async def send_to_run(
    core: Core,
    run_id: str,
    event: object,
    payload: object,
    given_id: object,
    wait: EventWaiter | None = None,
) -> bool:
    """Whether it is new. Raises for a run that cannot take it. `wait`: no other wait of the run takes it."""
    label, raw = names.name(event, "event"), checked_payload(payload)
    core.guard.check()
    graph = _KNOWN.get(core.store, {}).get(run_id)
    if graph is None:
        row = await core.row(run_id)
        graph = await required_graph(core.store, row)
        remember_graph(core, run_id, graph)
    if not graph.unfolds:
        await _check(core, run_id, graph, label, raw, wait)
    task, since = (0, 0) if wait is None else (wait.task, wait.since)
    sent = SendEvent(run_id, label, event_id(given_id), raw, task=task, since=since)
    answer = await repeated(
        lambda: core.store.send(sent), f"event {label!r}", core.clock, core.guard.check
    )
    match answer.outcome:
        case "unknown":
            raise NotFound(f"there is no run {run_id!r}.", field="run", got=run_id)
        case "ended":
            raise _ended(run_id, answer.state)
        case "over":
            raise await _over(core, run_id, task, label)
        case "full":
            raise AdmissionRejected(
                f"the mailbox of run {run_id} is full: {MAX_MAIL:,} events that no wait has taken.",
                retry_after=1.0,
                field="mailbox",
                got=MAX_MAIL,
                hint="Send again when the run has taken some.",
            )
        case "sent" | "repeated":
            core.changed()
            return answer.outcome == "sent"


def remember_graph(core: Core, run_id: str, graph: Graph) -> None:
    """Who sends to this run next need not read which events it waits for."""
    # One that unfolds gets another graph; of all others it stays.
    if not graph.unfolds and any(node.event is not None for node in graph.nodes):
        known = _KNOWN.setdefault(core.store, {})
        if len(known) >= MAX_KNOWN_GRAPHS:
            known.pop(next(iter(known)), None)
        known[run_id] = graph


async def send_to_topic(
    core: Core, topic: object, payload: object, match: Mapping[str, Any] | None, given_id: object
) -> bool:
    """Whether it is new."""
    label, raw = names.name(topic, "topic"), checked_payload(payload)
    given = codec.encode(dict(match or {}), "match")
    for key, value in msgspec.json.decode(given).items():
        if not isinstance(value, str | int | float | None):
            shown = codec.encode(value, "match").decode()
            raise InvalidInput(
                f"match.{key} must be a plain value.", field=f"match.{key}", got=shown
            )
    sent = SendEvent(None, label, event_id(given_id), raw, given.decode())
    answer = await repeated(
        lambda: core.store.send(sent), f"event {label!r}", core.clock, core.guard.check
    )
    core.changed()
    return answer.outcome == "sent"


def checked_payload(payload: object) -> bytes:
    raw = codec.encode(payload, "payload")
    if len(raw) > MAX_PAYLOAD_BYTES:
        raise InvalidInput(
            f"the payload has {len(raw):,} bytes.",
            field="payload",
            got=len(raw),
            hint=f"At most {MAX_PAYLOAD_BYTES:,} are kept: store it elsewhere and send where it is.",
        )
    return raw


def event_id(given: object) -> str:
    """The id of an event, checked; one of its own where none is given."""
    if given is None:
        return os.urandom(12).hex()
    text = names.text(given, "id")
    if not 0 < len(text) <= MAX_ID:
        raise InvalidInput(
            f"id must have 1 to {MAX_ID} characters.", field="id", got=f"{text[:40]}…"
        )
    return text


async def _check(
    core: Core, run_id: str, graph: Graph, label: str, raw: bytes, wait: EventWaiter | None
) -> None:
    """Against `wait`, else the waits that stand, else all of the flow that may come."""
    awaited = [node.event for node in graph.nodes if node.event is not None]
    fitting = [each for each in awaited if each.name == label]
    if not fitting:
        known = sorted({each.name for each in awaited})
        raise InvalidInput(
            f"run {run_id} of flow {graph.flow!r} waits for no event {label!r}.",
            field="event",
            got=label,
            hint=did_you_mean(label, known)
            or (f"It waits for {', '.join(known)}." if known else "Its flow has no wait_event."),
        )
    if len({msgspec.json.encode(each.schema) for each in fitting}) > 1:
        standing = await core.store.event_waits(run_id) if wait is None else [wait]
        tasks = {row.task for row in standing if row.name == label}
        rows = await core.store.tasks((await core.row(run_id)).seq) if tasks else []
        nodes = [graph.nodes[row.node].event for row in rows if row.id in tasks]
        fitting = [each for each in nodes if each is not None] or fitting
    from locktender.kernel.mailboxes import payload_fault

    faults = [payload_fault(each, raw) for each in fitting]
    found = [each for each in faults if each is not None]
    if len(found) == len(faults):
        raise found[0]


def _ended(run_id: str, state: str) -> InvalidInput:
    return InvalidInput(
        f"run {run_id} takes no event: it has ended {state}.",
        field="run",
        got=run_id,
        hint="Only a run that has not ended has a mailbox.",
    )
