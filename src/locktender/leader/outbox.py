"""Runs that applications submitted in transactions of their own: the leader's process takes them up.

A task beside the leader's cycles looks when it is told, and by itself: each tenth of a second where an
application has ever submitted so, each second elsewhere. To the leader they are submissions of another process.
The store moves an entry only while the term holds, so an entry becomes one run, under every leader.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from locktender.base import codec, graph_check, names
from locktender.base.announced import check_arguments
from locktender.base.background import until_done
from locktender.base.config import Settings
from locktender.base.errors import InvalidInput, LocktenderError, NotFound, NotLeader
from locktender.base.limits import Limits
from locktender.base.model import Failure, NewRun
from locktender.base.names import check_labels
from locktender.store.outbox import unpack_run
from locktender.store.protocol import OutboxEntry, OutboxMove, Store
from locktender.store.readable import is_fault, reason_of

log: logging.Logger = logging.getLogger(__name__)
MAX_ENTRIES = 500
"""Moved with one transaction."""
POLL_SECONDS = 0.1
UNUSED_POLL_SECONDS = 1.0
RETRY_SECONDS = 0.5
MAX_SPAN_US = 1 << 62
_DECIDED = ("tags", "priority", "deadline_us", "queue_timeout_us", "dispatch_deadline_us")
"""Options of a run that its flow may decide."""


class OutboxMover:
    def __init__(self, store: Store, settings: Settings, on_submitted: Callable[[], None]) -> None:
        self._store = store
        self._settings = settings
        self._on_submitted = on_submitted
        self._notified = asyncio.Event()
        self._used = False

    def notified(self) -> None:
        """An application has committed a submission."""
        self._notified.set()

    async def keep(self, term: int) -> None:
        """Moves what comes in until the term is over, which the leader learns by itself, or it is cancelled."""
        await until_done(
            lambda: self._follow(term), "take up submissions of applications", RETRY_SECONDS
        )

    async def _follow(self, term: int) -> None:
        with suppress(NotLeader):
            while True:
                while await self.move(term):
                    pass
                self._used = self._used or await self._store.outbox_used()
                seconds = POLL_SECONDS if self._used else UNUSED_POLL_SECONDS
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self._notified.wait()

    async def move(self, term: int) -> bool:
        """Moves the first entries. Whether there may be more."""
        self._notified.clear()
        entries = await self._store.outbox(MAX_ENTRIES)
        if not entries:
            return False
        limits, _ = await self._store.limits()
        if self._settings.strict_pools:
            limits = msgspec.structs.replace(limits, strict_pools=True)
        moves = [await self._judge(entry, limits) for entry in entries]
        try:
            moved = await self._store.move_outbox(term, moves)
        except Exception as error:
            if not is_fault(error):
                raise
            moved = await self._one_by_one(term, moves)
        if moved:
            self._on_submitted()
        return len(entries) == MAX_ENTRIES

    async def _one_by_one(self, term: int, moves: Sequence[OutboxMove]) -> int:
        """The store refuses the data of one of them: the others are moved."""
        moved = 0
        for move in moves:
            try:
                moved += await self._store.move_outbox(term, [move])
            except Exception as error:
                if not is_fault(error):
                    raise
                refused = OutboxMove(move.entry, failure=_failure(error))
                await self._store.move_outbox(term, [refused])
        return moved

    async def _judge(self, entry: OutboxEntry, limits: Limits) -> OutboxMove:
        try:
            return await checked(entry, limits, self._settings, self._store)
        except Exception as error:
            if not is_fault(error):
                raise
            return OutboxMove(entry, failure=_failure(error))


def _failure(error: Exception) -> Failure:
    code = error.code if isinstance(error, LocktenderError) else "internal"
    return Failure(code, reason_of(error), retryable=False)


async def checked(
    entry: OutboxEntry,
    limits: Limits,
    settings: Settings,
    store: Store,
) -> OutboxMove:
    """The entry as a run. Refuses wrong entries: every role that may call the function may write anything."""
    try:
        packed = unpack_run(entry.body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidInput(f"the submission cannot be read: {error}", field="body") from None
    run = packed.run
    graph = graph_check.checked_graph(packed.graph)
    digest, body = graph_check.digest(graph)
    if (run.id, run.graph, run.flow) != (entry.id, digest, graph.flow):
        raise InvalidInput("the submission's run, id and graph do not belong together.", field="id")
    graph_check.validate(graph)
    graph_check.check_pools(graph, limits)
    if settings.labels is not None:
        check_labels(graph, settings.labels)
    _check_options(run)
    for value, what in ((run.params, "arguments"), (run.consts, "values")):
        if len(value) > settings.max_value_bytes:
            raise InvalidInput(
                f"the {what} are {len(value):,} bytes as JSON; at most {settings.max_value_bytes:,} are allowed"
                " (max_value).",
                field="args",
            )
        _check_json(value)
    if graph.unfolds:
        run = await _named(run, packed.unset, store)
    stored = [
        codec.blob_ref(await store.put_blob(value), len(value))
        if len(value) > settings.blob_over_bytes
        else value
        for value in (run.params, run.consts)
    ]
    run = msgspec.structs.replace(run, params=stored[0], consts=stored[1])
    return OutboxMove(entry, run, body)


async def _named(run: NewRun, unset: Sequence[str], store: Store) -> NewRun:
    """A run of a flow by its name, checked by what workers announced, with what the flow decides."""
    found = await store.flows([run.flow])
    if not found:
        raise NotFound(
            f"there is no flow {run.flow!r}: no worker has announced one of that name.",
            field="flow",
        )
    flow = found[0]
    check_arguments(flow, msgspec.json.decode(run.params, type=dict[str, Any]))
    decided = {name: getattr(flow, name) for name in _DECIDED if name in unset and name != "tags"}
    if "tags" in unset:
        decided["tags"] = names.tags({**flow.tags, **run.tags})
    return msgspec.structs.replace(run, **decided)


def _check_json(value: bytes) -> None:
    try:
        codec.decode(value)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the arguments are not JSON: {error}", field="args") from None
    if codec.is_blob(value):
        raise InvalidInput("the arguments name a stored value.", field="args")


def _check_options(run: NewRun) -> None:
    names.tags(run.tags)
    names.priority(run.priority)
    if run.key is not None:
        names.text(run.key, "key")
    if run.kind != "flow" or run.scheduled is not None:
        raise InvalidInput("only runs of flows can be submitted.", field="kind", got=run.kind)
    spans = run.deadline_us, run.queue_timeout_us, run.dispatch_deadline_us, run.delay_us
    if any(span is not None and not 0 <= span < MAX_SPAN_US for span in (*spans, run.start_at)):
        raise InvalidInput("a duration of the submission is out of range.", field="deadline")
