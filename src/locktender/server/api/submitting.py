"""Submissions of many requests, written together; and `Idempotency-Key`.

While one group is being written the next one gathers, as in the leader: there is
no timer. Each request has an answer of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request

from locktender.base.announced import AnnouncedFlow
from locktender.base.errors import InvalidInput
from locktender.base.ids import id_of
from locktender.client.by_name import announced_flow, is_elsewhere, prepare_announced
from locktender.client.client_async import AsyncClient, Refusal
from locktender.client.core import Core
from locktender.client.run import AsyncRun
from locktender.client.runs_async import runs_beginning
from locktender.client.submission import Submission
from locktender.client.submit import Prepared, Preparing
from locktender.client.tokens import claim_keys
from locktender.observe.tracing import valid_parent
from locktender.server.api.answers import Malformed, StateConflict

MAX_TOGETHER = 1_000
FLOW_KEPT_SECONDS = 0.5
MAX_FLOWS_KEPT = 1_000
MAX_KEY = 200
KEY_CHARACTERS = 16
"""Of an id, those that the key decides: 80 bits. The other ten are the body's."""
TIME_CHARACTERS = 10
TIMED_CHARACTERS = 20
"""The same of a key that is spelled as an id: its time is the id's, and 50 bits more are the key's."""
_SPELLED = re.compile(r"[0-9a-hjkmnp-tv-z]{26}")
_sorted = msgspec.json.Encoder(order="deterministic").encode
Answered = AsyncRun[Any] | Refusal


def in_trace(prepared: list[Prepared], request: Request) -> list[Prepared]:
    """In the trace of the caller, unless this server's own tracing goes on with it."""
    parent = valid_parent(request.headers.get("traceparent", ""))
    return [
        each
        if parent is None or each.run.trace is not None
        else msgspec.structs.replace(each, run=msgspec.structs.replace(each.run, trace=parent))
        for each in prepared
    ]


class SubmitGroups:
    """Accepts runs one by one and submits them in groups."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._client = AsyncClient(core)
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None
        self._flows: dict[str, tuple[float, AnnouncedFlow]] = {}

    async def submit(self, prepared: Prepared, key: IdempotencyKey | None = None) -> AsyncRun[Any]:
        """Raises what `AsyncClient.submit` raises, and `StateConflict` where the key has another body."""
        future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(prepared, future, key))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._serve(), name="locktender-submissions")
        found = await future
        if isinstance(found, AsyncRun):
            return found
        raise found

    async def close(self) -> None:
        """Returns when what was accepted is written."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def prepare(self, flow: str, calls: Sequence[Submission]) -> list[Prepared]:
        """Checked by the code that is here, or by what workers announced."""
        if not is_elsewhere(flow):
            preparing = Preparing(flow, self._core.settings, self._core.clock)
            several = len(calls) > 1
            return [
                preparing.prepare(call, index if several else None)
                for index, call in enumerate(calls)
            ]
        return prepare_announced(self._core, await self._announced(flow), calls)

    async def _announced(self, name: str) -> AnnouncedFlow:
        now = asyncio.get_running_loop().time()
        until, flow = self._flows.get(name, (0.0, None))
        if flow is not None and now < until:
            return flow
        found = await announced_flow(self._core, name)
        if len(self._flows) >= MAX_FLOWS_KEPT:
            self._flows.clear()
        self._flows[name] = now + FLOW_KEPT_SECONDS, found
        return found

    async def _serve(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting[:MAX_TOGETHER], self._waiting[MAX_TOGETHER:]
            try:
                await self._claim([each.key for each in group if each.key is not None])
            except Exception as error:  # noqa: BLE001 — the error is the answer to every request
                for each in group:
                    _fail(each.future, error)
                continue
            for each in group:
                if each.key is not None and each.key.refused is not None:
                    _fail(each.future, each.key.refused)
            await self._group([each for each in group if not each.future.done()])

    async def _claim(self, keys: Sequence[IdempotencyKey]) -> None:
        """Of requests with one key and different bodies the first counts, also where another server has it."""
        bodies: dict[str, bytes] = {}
        for key in keys:
            bodies.setdefault(key.claim, key.body)
        found = await claim_keys(self._core, bodies) if bodies else {}
        for key in keys:
            if found.get(key.claim, key.body) != key.body:
                key.refused = key.conflict("submitted", None)

    async def claim(self, key: IdempotencyKey) -> None:
        """Raises `StateConflict` where another body came first."""
        await self._claim([key])
        if key.refused is not None:
            raise key.refused

    async def _group(self, group: list[_Waiting]) -> None:
        if not group:
            return
        try:
            found = await self._client.submit_all_prepared(
                [each.prepared for each in group], partial=True
            )
        except InvalidInput as error:
            if len(group) == 1:
                _fail(group[0].future, error)
                return
            # One of them can never start, and would refuse the others.
            for each in group:
                await self._group([each])
            return
        except Exception as error:  # noqa: BLE001 — the error is the answer to every request
            for each in group:
                _fail(each.future, error)
            return
        for each, answer in zip(group, found, strict=True):
            if not each.future.done():
                each.future.set_result(answer)


def _fail(future: asyncio.Future[Answered], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


class IdempotencyKey:
    """Ids of runs, made from a key and a body: the store takes each id once."""

    def __init__(self, key: str, whose: str, body: object) -> None:
        """`whose`: keys of different principals are different keys."""
        if not 0 < len(key) <= MAX_KEY or not key.isascii() or not key.isprintable():
            raise Malformed(
                f"Idempotency-Key must have 1 to {MAX_KEY} printable characters.",
                field="idempotency-key",
                got=key[:40],
            )
        self._key = key
        self._seed = f"{whose}\0{key}".encode()
        self.body: bytes = hashlib.sha256(_sorted(body)).digest()
        self.claim: str = hashlib.sha256(self._seed).hexdigest()
        self.refused: StateConflict | None = None
        """Another body came first with this key."""
        self._time = key[:TIME_CHARACTERS] if _SPELLED.fullmatch(key) else ""
        self._own = TIMED_CHARACTERS if self._time else KEY_CHARACTERS

    def run_id(self, index: int = 0) -> str:
        """Of the run of this index."""
        ours = hashlib.sha256(b"%s\0%d" % (self._seed, index)).digest()
        head = self._time + id_of(ours)[: self._own - len(self._time)]
        return head + id_of(self.body)[self._own :]

    def given_to(self, prepared: Sequence[Prepared]) -> list[Prepared]:
        """`prepared` with the ids of this key."""
        return [
            msgspec.structs.replace(
                each, run=msgspec.structs.replace(each.run, id=self.run_id(index))
            )
            for index, each in enumerate(prepared)
        ]

    async def earlier(self, core: Core) -> AsyncRun[Any] | None:
        """The run of this key and body, if there is one. Raises `StateConflict` if the key had another body."""
        ours = self.run_id()
        found = await runs_beginning(core, ours[: self._own])
        for info in found:
            if info.id != ours:
                raise self.conflict(info.state, info.id)
        return AsyncRun(core, ours) if found else None

    def conflict(self, state: str, run: str | None) -> StateConflict:
        return StateConflict(
            f"the key {self._key!r} was used with another body.",
            state=state,
            run=run,
            field="idempotency-key",
            got=self._key,
            hint="Use a new key for a new submission.",
        )


class _Waiting(NamedTuple):
    """A run to submit, and who waits for the answer."""

    prepared: Prepared
    future: asyncio.Future[Answered]
    key: IdempotencyKey | None
