"""The async client of a server, and the calls of flows that it sends."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import msgspec

from locktender.base import codec, names
from locktender.base.clock import SystemClock
from locktender.base.config import Settings
from locktender.base.durations import Duration
from locktender.base.errors import InvalidInput
from locktender.base.ids import run_id
from locktender.base.secrets import MARK
from locktender.base.tracebacks import public
from locktender.client.client_async import AsyncClient, Refusal
from locktender.client.remote.core import RemoteCore
from locktender.client.remote.faults import from_fault
from locktender.client.remote.http import path_of
from locktender.client.remote.run import RemoteRun, SubmittedAnswer
from locktender.client.remote.settings import span
from locktender.client.run import AsyncRun
from locktender.client.submission import Submission
from locktender.observe import tracing
from locktender.store.open import needs_database

if TYPE_CHECKING:
    from locktender.client.remote.events import RemoteEvents
    from locktender.client.remote.others import (
        RemoteCache,
        RemoteFlows,
        RemoteSchedules,
        RemoteTokens,
        RemoteWorkers,
    )
    from locktender.client.remote.runs import RemoteQueue, RemoteRuns
    from locktender.client.remote.settings import RemoteLimits, RemotePools
    from locktender.client.slots import AsyncSlots
    from locktender.flows.definitions import FlowDef
    from locktender.observe.why import Why

MAX_RUNS = 10_000
"""Runs in one request."""
MAX_BYTES = 1024 * 1024
"""Of the calls that go into one request where they may go in several."""
_SPANS = ("deadline", "queue_timeout", "dispatch_deadline", "delay", "debounce")
_PLAIN = ("priority", "key", "keep", "max_queued", "throttle")


class NamedCall(msgspec.Struct, frozen=True):
    """One call of a flow by its name, as a request has it."""

    flow: str
    body: dict[str, Any]
    size: int
    trace: str | None
    """Of the caller, as a W3C `traceparent`."""


class SubmittedPart(msgspec.Struct, frozen=True):
    run: SubmittedAnswer | None = None
    error: dict[str, Any] | None = None


class NamedCalls:
    """Calls of one flow: bound and checked here where its code is here, and made by a worker or the server.

    The graph is not traced here and not sent: with one, any token could run any step of a worker with
    any arguments, beside the flow that its author wrote.
    """

    def __init__(self, flow: object, settings: Settings) -> None:
        from locktender.client.by_name import is_elsewhere
        from locktender.client.submit import definition_of
        from locktender.flows.registry import refuse_while_importing

        refuse_while_importing("submits a run")
        self._by_name = isinstance(flow, str)
        self._flow: FlowDef | None = None if is_elsewhere(flow) else definition_of(flow)
        self._name = str(flow) if self._flow is None else self._flow.name
        self._settings = settings
        self._trace = tracing.traceparent()
        self.is_elsewhere: bool = self._flow is None

    def prepare(self, call: object, index: int | None = None) -> NamedCall:
        """As `Preparing.prepare`: a `Submission`, or arguments as `submit_many` takes them."""
        from locktender.client.submit import say_which

        try:
            return self._prepared(call)
        except InvalidInput as error:
            say_which(error, index)
            raise

    def _prepared(self, call: object) -> NamedCall:
        from locktender.client.submit import check_size

        given = Submission.of(call)
        args = self._arguments(given)
        short = self._name if self._flow is None else self._flow.short
        check_size(self._settings, short, codec.join_object(args), b"")
        for name, raw in args.items():
            if MARK in raw:
                raise _no_secret(name)
        size = sum(len(raw) for raw in args.values())
        body: dict[str, Any] = {"args": {name: msgspec.Raw(raw) for name, raw in args.items()}}
        return NamedCall(self._name, body | _options(given), size, self._trace)

    def _arguments(self, call: Submission) -> dict[str, bytes]:
        from locktender.client.submit import named_if_whole
        from locktender.flows.trace import encoded_arguments

        flow = self._flow
        if flow is None:
            return _encoded(self._by_names(call))
        if self._by_name:
            call = named_if_whole(flow, call)
        bound = flow.bind(call.args, call.kwargs)
        fields = encoded_arguments(flow, bound)
        named: dict[str, bytes] = {}
        for name, raw in fields.items():
            kind = flow.parameters.parameters[name].kind
            if kind is kind.VAR_POSITIONAL:
                raise InvalidInput(
                    f"flow {flow.short!r} takes any number of arguments, and a server takes them by name.",
                    field="args",
                    got=bound.arguments[name],
                    hint=f"Give it a list: {flow.spoken}; or submit to the database.",
                )
            named |= _encoded(bound.arguments[name]) if kind is kind.VAR_KEYWORD else {name: raw}
        return named

    def _by_names(self, call: Submission) -> dict[str, Any]:
        named = dict(call.kwargs)
        for position, given in enumerate(call.args):
            if position or not isinstance(given, Mapping):
                raise InvalidInput(
                    f"arguments of flow {self._name!r} go by name: its code is not here.",
                    field="args",
                    got=given,
                    hint=f'e.g. submit({self._name!r}, {{"name": value}}).',
                )
            named = {**cast("Mapping[str, Any]", given), **named}
        return named


def _no_secret(argument: str) -> InvalidInput:
    return InvalidInput(
        f"{argument} is a secret, and a server takes none: a client with a token could have a step show any"
        " variable of a worker.",
        field=argument,
        hint="Let the step read os.environ itself, or submit to the database.",
    )


def _encoded(named: Mapping[str, Any]) -> dict[str, bytes]:
    return {str(name): codec.encode(value, str(name)) for name, value in named.items()}


def _options(given: Submission) -> dict[str, Any]:
    from locktender.client.submit import check_duplicate

    found: dict[str, Any] = {
        name: value for name in _PLAIN if (value := getattr(given, name)) is not None
    }
    for name in _SPANS:
        value: Duration | None = getattr(given, name)
        if value is not None:
            found[name] = span(value, name)
    if given.priority is not None:
        found["priority"] = names.priority(given.priority)
    if given.key is not None:
        found["key"] = names.text(given.key, "key")
    if given.tags is not None:
        found["tags"] = names.tags(given.tags)
    if given.start_at is not None:
        found["start_at"] = _moment(given.start_at)
    if given.on_duplicate != "attach":
        check_duplicate(given.on_duplicate, given.key)
        found["on_duplicate"] = given.on_duplicate
    return found


def _moment(value: object) -> str:
    from locktender.client.delays import instant_of
    from locktender.client.views import instant

    return instant(instant_of(value, "start_at", SystemClock().now())).isoformat()


@public
class RemoteClient(AsyncClient):
    """An async client of a server: `connect_async("https://…")`."""

    def __init__(self, core: RemoteCore) -> None:
        super().__init__(core)
        self._remote = core
        self._http = core.http

    @cached_property
    def runs(self) -> RemoteRuns:
        from locktender.client.remote.runs import RemoteRuns

        return RemoteRuns(self._remote)

    @cached_property
    def queue(self) -> RemoteQueue:
        from locktender.client.remote.runs import RemoteQueue

        return RemoteQueue(self._remote)

    @cached_property
    def pools(self) -> RemotePools:
        from locktender.client.remote.settings import RemotePools

        return RemotePools(self._remote)

    @cached_property
    def limits(self) -> RemoteLimits:
        from locktender.client.remote.settings import RemoteLimits

        return RemoteLimits(self._remote)

    @cached_property
    def schedules(self) -> RemoteSchedules:
        from locktender.client.remote.others import RemoteSchedules

        return RemoteSchedules(self._remote)

    @cached_property
    def flows(self) -> RemoteFlows:
        from locktender.client.remote.others import RemoteFlows

        return RemoteFlows(self._remote)

    @cached_property
    def events(self) -> RemoteEvents:
        from locktender.client.remote.events import RemoteEvents

        return RemoteEvents(self._remote)

    @cached_property
    def cache(self) -> RemoteCache:
        from locktender.client.remote.others import RemoteCache

        return RemoteCache(self._remote)

    @cached_property
    def tokens(self) -> RemoteTokens:
        from locktender.client.remote.others import RemoteTokens

        return RemoteTokens(self._remote)

    @cached_property
    def workers(self) -> RemoteWorkers:
        from locktender.client.remote.others import RemoteWorkers

        return RemoteWorkers(self._remote)

    def preparing(self, flow: object) -> Any:
        several = NamedCalls(flow, self.settings)
        return None if several.is_elsewhere else several

    def refuse_connection(self) -> None:
        raise InvalidInput(
            f"connection= needs the database itself, and {self._http.url} is a server: the run could not"
            " be part of your transaction.",
            field="connection",
            hint="Connect to the database that your transaction is in: connect('postgresql://…').",
        )

    async def submit_named(
        self, flow: str, calls: Iterable[object], *, partial: bool
    ) -> list[AsyncRun[Any] | Refusal]:
        several, given = NamedCalls(flow, self.settings), list(calls)
        try:
            prepared = [
                several.prepare(call, index if len(given) > 1 else None)
                for index, call in enumerate(given)
            ]
        except InvalidInput as error:
            # An unknown name is the first mistake to report.
            found = await self.flows.get(flow)
            error.hint = f"{error.hint or ''} It is {found.spoken}.".strip()
            raise
        if len(prepared) == 1 and not partial:
            return [await self.submit_prepared(prepared[0])]
        return await self.submit_all_prepared(prepared, partial=partial)

    async def submit_prepared(self, prepared: Any) -> AsyncRun[Any]:
        call: NamedCall = prepared
        body = {"flow": call.flow, **call.body}
        answer = await self._http.call(
            "POST", "/runs", SubmittedAnswer, body=body, key=_key(), trace=call.trace, again=True
        )
        return RemoteRun.of(self._remote, answer)

    async def submit_all_prepared(
        self, prepared: Sequence[Any], *, partial: bool
    ) -> list[AsyncRun[Any] | Refusal]:
        calls = cast("Sequence[NamedCall]", prepared)
        if not calls:
            return []
        if not partial and len(calls) > MAX_RUNS:
            raise InvalidInput(
                f"{len(calls):,} runs cannot be submitted all or none; at most {MAX_RUNS:,} can.",
                field="runs",
                got=len(calls),
                hint="Use partial=True, or several calls.",
            )
        made: list[AsyncRun[Any] | Refusal] = []
        for part in _parts(calls) if partial else [calls]:
            body = {
                "flow": part[0].flow,
                "runs": [call.body for call in part],
                "partial": partial,
            }
            try:
                answers = await self._http.call(
                    "POST",
                    "/runs/batch",
                    list[SubmittedPart],
                    "runs",
                    body=body,
                    key=_key(),
                    trace=part[0].trace,
                    again=True,
                )
            except InvalidInput as error:
                _name_call(error, len(made))
                raise
            made += [self._submitted(answer) for answer in answers]
        return made

    def _submitted(self, answer: SubmittedPart) -> AsyncRun[Any] | Refusal:
        if answer.run is not None:
            return RemoteRun.of(self._remote, answer.run)
        return cast("Refusal", from_fault(answer.error or {}, 429))

    async def why(self, subject: str | int) -> Why:
        from locktender.observe.why import Why

        if isinstance(subject, int):
            return await self._http.get(path_of("tasks", subject, "why"), Why, "why")
        return await (await self.runs.get(subject)).why()

    def slots(
        self,
        pool: str,  # noqa: ARG002
        n: int = 1,  # noqa: ARG002
        *,
        timeout: Duration | None = None,  # noqa: ARG002
        lease: Duration | None = None,  # noqa: ARG002
    ) -> AsyncSlots:
        """Refused: slots are kept by a lease that this process renews in the database."""
        raise needs_database(
            "slots() holds them by a lease that this process renews every few seconds: it",
            self._http.url,
        )


_OF_RUN = re.compile(r"runs\[(\d+)\]")


def _name_call(error: InvalidInput, before: int) -> None:
    """The server names the run of its request; the caller knows calls, `before` of them sent earlier."""
    if (found := _OF_RUN.match(error.field or "")) is not None:
        ours = f"[{int(found[1]) + before}]"
        error.field = f"{ours}{(error.field or '')[found.end() :]}"
        error.message = f"{ours}{error.message.removeprefix(found[0])}"


def _key() -> str:
    """Of one submission: a repetition after a lost answer finds the run of the first.

    It is spelled as an id, so that the server makes ids in the order of time of it.
    """
    return run_id(SystemClock().now(), os.urandom(11))


def _parts(calls: Sequence[NamedCall]) -> list[list[NamedCall]]:
    """Each fits into one request."""
    parts: list[list[NamedCall]] = [[]]
    size = 0
    for call in calls:
        if parts[-1] and (len(parts[-1]) >= MAX_RUNS or size + call.size > MAX_BYTES):
            parts.append([])
            size = 0
        parts[-1].append(call)
        size += call.size
    return parts
