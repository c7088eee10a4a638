"""Namespaces `runs`, `queue` and `workers`, for async code: one or many, by id or by filter."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from locktender.base import names
from locktender.base.errors import InvalidInput, NotFound
from locktender.base.ids import MAX_RUNS
from locktender.base.model import Request, RequestKind, RunRow
from locktender.base.names import did_you_mean
from locktender.base.states import TERMINAL_RUNS, RunState
from locktender.base.tracebacks import public
from locktender.client.core import Core
from locktender.client.pauses import pause_runs, resume_runs
from locktender.client.run import AsyncRun, retry_runs
from locktender.client.submit import TagValues
from locktender.client.views import QueueInfo, Requested, RunInfo, WorkerInfo
from locktender.engine import Engine
from locktender.observe.rebuilt import queue_in_order
from locktender.store.protocol import RunFilter

Ids = str | AsyncRun[Any] | Iterable[str | AsyncRun[Any]]
Status = str | Iterable[str]
PAGE = 500
SHORTEST_PREFIX = 4
ID_LENGTH = 26
_ACTIVE = (
    RunState.WAITING, RunState.QUEUED, RunState.RUNNING, RunState.CANCELLING, RunState.HELD,
)  # fmt: skip
_AGAIN = (RunState.FAILED, RunState.CANCELLED, RunState.TIMED_OUT)
_ID = re.compile(r"[0-9a-z]+")


@public
class AsyncRuns:
    """Namespace `client.runs`: find, cancel and retry runs."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def list(
        self,
        status: Status | None = None,
        tags: TagValues | None = None,
        flow: str | None = None,
        limit: int = 100,
        before: int | None = None,
    ) -> list[RunInfo]:
        """The newest runs that match, newest first.

        status  a state or several: "failed", "queued" …
        tags    runs with all of these tags
        flow    the flow's name
        limit   1 to 100,000; default 100
        before  only runs with a smaller `number`, for the next page; default None
        """
        self._core.guard.check()
        where = _where(status, tags, flow, names.count(limit, "limit", maximum=100_000))
        if before is not None:
            where = replace(where, before=names.count(before, "before", maximum=MAX_RUNS))
        return [RunInfo.of(row) for row in await self._core.store.runs(where)]

    async def get(self, run: str) -> AsyncRun[Any]:
        """A run by its whole id. Raises `NotFound`."""
        self._core.guard.check()
        return AsyncRun(self._core, await exact(self._core, run))

    async def find(self, beginning: str) -> AsyncRun[Any]:
        """A run by at least 4 characters that only its id begins with, as a person types them.

        Not for text from strangers: they could guess the beginning of an id that is not theirs.
        Raises `NotFound`, or `InvalidInput` where several begin with them.
        """
        self._core.guard.check()
        return AsyncRun(self._core, await resolve(self._core, beginning))

    async def cancel(
        self,
        run: Ids | None = None,
        *,
        status: Status | None = None,
        tags: TagValues | None = None,
        flow: str | None = None,
        reason: str = "",
        force: bool = False,
    ) -> Requested:
        """Asks for runs to end *cancelled*: one, several, or all active ones that match.

        run     a whole id, a run, or several
        status  a state or several: "failed", "queued" …
        tags    runs with all of these tags
        flow    the flow's name
        reason  kept in the history; default none
        force   True: without their clean-up steps (`run_if="always"`); default False
        """
        core = self._core
        core.guard.check()
        if run is None:
            _needs_filter(status, tags, flow, "cancel")
            rows = await _all(core, status or _ACTIVE, tags, flow)
        else:
            rows = [await core.row(each) for each in await _resolved(core, run)]
        return await ask(core, "cancel", rows, TERMINAL_RUNS, reason=reason, force=force)

    async def pause(self, run: Ids, reason: str = "") -> None:
        """Starts nothing more of runs that have not ended; tasks that run go on.

        run     a whole id, a run, or several
        reason  kept in the history and shown by `why`; default none
        """
        self._core.guard.check()
        await pause_runs(self._core, await _resolved(self._core, run), reason)

    async def resume(self, run: Ids) -> None:
        """Lets paused runs go on; `run`: a whole id, a run, or several."""
        self._core.guard.check()
        await resume_runs(self._core, await _resolved(self._core, run))

    async def retry(
        self,
        run: Ids | None = None,
        *,
        status: Status | None = None,
        tags: TagValues | None = None,
        flow: str | None = None,
    ) -> list[AsyncRun[Any]]:
        """Queues ended runs again: one, several, or all that match and did not succeed.

        run     a whole id, a run, or several
        status  a state or several: "failed", "queued" …
        tags    runs with all of these tags
        flow    the flow's name

        Where some of several cannot be queued, the others are, and the error says which:
        `AdmissionRejected.retried` and `.refused`.
        """
        core = self._core
        core.guard.check()
        if run is None:
            _needs_filter(status, tags, flow, "retry")
            rows = await _all(core, status or _AGAIN, tags, flow)
            # Of many by filter, what cannot be retried (it succeeded, it is active) was not meant.
            ids = [row.id for row in rows if row.state in _AGAIN]
        else:
            ids = await _resolved(core, run)
        await retry_runs(core, ids)
        return [AsyncRun(core, each) for each in ids]


@public
class AsyncQueue:
    """Namespace `client.queue`: runs that have not started."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def list(self, limit: int = 100) -> list[QueueInfo]:
        """Queued runs in the order in which they start: priority, then fair turn, then age.

        `limit`: 1 to 100,000; default 100.
        """
        self._core.guard.check()
        most = names.count(limit, "limit", maximum=100_000)
        entries = await queue_in_order(self._core.store, most)
        return [QueueInfo(entry.position, RunInfo.of(entry.run)) for entry in entries]

    async def cancel(
        self,
        run: Ids | None = None,
        *,
        tags: TagValues | None = None,
        flow: str | None = None,
        reason: str = "",
    ) -> Requested:
        """Asks for queued runs to be cancelled; a run that has started by then goes on.

        run     a whole id, a run, or several
        tags    queued runs with all of these tags
        flow    queued runs of this flow
        reason  kept in the history; default none
        """
        core = self._core
        core.guard.check()
        if run is None:
            _needs_filter(None, tags, flow, "cancel")
            rows = await _all(core, (RunState.QUEUED,), tags, flow)
        else:
            rows = [await core.row(each) for each in await _resolved(core, run)]
        started = frozenset(RunState) - {RunState.QUEUED}
        return await ask(core, "cancel", rows, started, reason=reason)

    async def reprioritise(self, run: Ids, priority: int) -> Requested:
        """Gives queued runs another priority, -1,000,000 to 1,000,000; a run that has started is unchanged."""
        core = self._core
        core.guard.check()
        wanted = names.priority(priority)
        rows = [await core.row(each) for each in await _resolved(core, run)]
        started = frozenset(RunState) - {RunState.QUEUED}
        return await ask(core, "reprioritise", rows, started, priority=wanted)


async def ask(
    core: Core,
    kind: RequestKind,
    rows: Iterable[RunRow],
    over: frozenset[RunState],
    *,
    priority: int | None = None,
    reason: str = "",
    force: bool = False,
) -> Requested:
    """Leaves requests for the leader, for all of `rows` that are not in a state of `over`."""
    several = list(rows)
    wanted = [row.id for row in several if row.state not in over]
    requests = [
        Request(kind, each, priority=priority, force=force, who=core.who, reason=reason)
        for each in wanted
    ]
    for start in range(0, len(requests), PAGE):
        await core.store.ask(requests[start : start + PAGE])
    core.changed()
    left = [row for row in several if row.state in over]
    return Requested(
        tuple(wanted),
        await core.leader(),
        over=tuple(row.id for row in left if row.state in TERMINAL_RUNS),
        started=tuple(row.id for row in left if row.state not in TERMINAL_RUNS),
    )


async def exact(core: Core, run: str) -> str:
    """The id of a run that exists; never by a part of it."""
    text = _spelled(run)
    if len(text) != ID_LENGTH:
        raise NotFound(
            f"this is not the id of a run: an id has {ID_LENGTH} letters and digits.",
            field="run",
            got=run,
            hint="client.runs.find(...) takes the beginning of an id.",
        )
    return (await core.row(text)).id


def _spelled(run: object) -> str:
    text = run.strip().lower() if isinstance(run, str) else ""
    if not _ID.fullmatch(text) or len(text) > ID_LENGTH:
        raise NotFound(
            "this is not the id of a run.",
            field="run",
            got=run,
            hint="locktender runs list shows ids.",
        )
    return text


async def resolve(core: Core, run: str) -> str:
    """The full id that `run` is, or begins."""
    text = _spelled(run)
    if len(text) == ID_LENGTH:
        return (await core.row(text)).id
    if len(text) < SHORTEST_PREFIX:
        raise InvalidInput(
            f"{text!r} is too short for the beginning of an id.",
            field="run",
            got=run,
            hint=f"Give at least {SHORTEST_PREFIX} characters.",
        )
    found = await core.store.runs(RunFilter(id_prefix=text, limit=3))
    if len(found) == 1:
        return found[0].id
    if not found:
        raise NotFound(
            f"no run's id begins with {text!r}.",
            field="run",
            got=run,
            hint="locktender runs list shows ids.",
        )
    shown = ", ".join(row.id for row in found[:2])
    raise InvalidInput(
        f"several runs begin with {text!r}: {shown}{', …' if len(found) > 2 else ''}.",
        field="run",
        got=run,
        hint="Give more of the id.",
    )


async def runs_beginning(core: Core, prefix: str) -> list[RunInfo]:
    """Runs whose id begins with `prefix`, two at most."""
    found = await core.store.runs(RunFilter(id_prefix=_spelled(prefix), limit=2))
    return [RunInfo.of(row) for row in found]


async def _resolved(core: Core, run: Ids) -> list[str]:
    several = [run] if isinstance(run, str | AsyncRun) else list(run)
    return [each.id if isinstance(each, AsyncRun) else await exact(core, each) for each in several]


def _needs_filter(
    status: Status | None, tags: Mapping[str, Any] | None, flow: str | None, verb: str
) -> None:
    if status is None and not tags and flow is None:
        raise InvalidInput(
            f"say which runs to {verb}.",
            field="run",
            hint='Give an id, several, or a filter such as tags={"tenant": "acme"}.',
        )


def _where(
    status: Status | None, tags: TagValues | None, flow: str | None, limit: int
) -> RunFilter:
    states = None
    if status is not None:
        states = [status] if isinstance(status, str) else list(status)
        for each in states:
            if each not in set(RunState):
                known = [state.value for state in RunState]
                raise InvalidInput(
                    f"{each!r} is not a state of a run.",
                    field="status",
                    got=each,
                    hint=names.did_you_mean(str(each), known),
                )
    if flow is not None:
        flow = names.text(flow, "flow")
    return RunFilter(states=states, tags=names.tags(tags), flow=flow, limit=limit)


async def _all(
    core: Core, status: Status, tags: TagValues | None, flow: str | None
) -> list[RunRow]:
    """Every run that matches, page by page."""
    found: list[RunRow] = []
    where = _where(status, tags, flow, PAGE)
    before: int | None = None
    while True:
        page = await core.store.runs(
            RunFilter(states=where.states, tags=where.tags, flow=flow, limit=PAGE, before=before)
        )
        found += page
        if len(page) < PAGE:
            return found
        before = page[-1].seq


WorkerInfos = list[WorkerInfo]


def _no_undrain(worker: str, why: str, hint: str) -> InvalidInput:
    return InvalidInput(f"worker {worker!r} {why}.", field="worker", got=worker, hint=hint)


@public
class AsyncWorkers:
    """Namespace `client.workers`: the workers there are."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def drain(self, worker: str) -> Requested:
        """Asks a worker, by its id or the beginning of it, to accept no more tasks; its running tasks finish."""
        worker = (await self.get(worker)).id
        if (engine := self._engine_of(worker)) is not None:
            await engine.drain()
            return Requested((worker,), leader=True)
        return await self._ask("drain", worker)

    async def undrain(self, worker: str) -> Requested:
        """Takes back `drain`: the worker, by its id or the beginning of it, accepts tasks again.

        Raises `NotFound`, or `InvalidInput` if it does not drain, has left, or drains because its process ends.
        """
        found = await self.get(worker)
        if not found.alive and not found.stalled:
            raise _no_undrain(found.id, "has left", "Start a new one: locktender worker FILE.py.")
        if found.ending:
            raise _no_undrain(found.id, "was told to end", "A worker that ends cannot be kept.")
        if not found.draining and not await self._drain_asked(found.id):
            raise _no_undrain(found.id, "does not drain", "locktender workers list shows who does.")
        if (engine := self._engine_of(found.id)) is not None:
            if not await engine.undrain():
                raise _no_undrain(found.id, "is about to end", "It cannot be kept.")
            return Requested((found.id,), leader=True)
        return await self._ask("undrain", found.id)

    def _engine_of(self, worker: str) -> Engine | None:
        """The engine of this process, if the worker is its own."""
        engine = self._core.engine
        own = engine is not None and engine.membership is not None and engine.worker.id == worker
        return engine if own else None

    async def _ask(self, kind: RequestKind, worker: str) -> Requested:
        core = self._core
        await core.store.ask([Request(kind, worker, who=core.who)])
        core.changed()
        return Requested((worker,), await core.leader())

    async def _drain_asked(self, worker: str) -> bool:
        """Whether a drain is on its way: asked of the leader, or ordered and not read yet."""
        asked = [each.request for each in (await self._core.store.load()).requests]
        mine = [each.kind for each in asked if each is not None and each.subject == worker]
        if mine:
            return mine[-1] == "drain"
        orders = [each for each in await self._core.store.orders(worker) if each.task < 0]
        newest = min(orders, key=lambda order: order.task, default=None)
        return newest is not None and newest.kind == "drain"

    async def get(self, worker: str) -> WorkerInfo:
        """One worker by its id, or by as much of it as only one id begins with. Raises `NotFound`."""
        found = await self.list()
        fits = [each for each in found if each.id == worker] or [
            each for each in found if worker and each.id.startswith(worker)
        ]
        if len(fits) == 1:
            return fits[0]
        if fits:
            raise InvalidInput(
                f"{len(fits)} workers have an id that begins with {worker!r}.",
                field="worker",
                got=worker,
                hint=f"Name one of them: {', '.join(each.id for each in fits[:5])}.",
            )
        raise NotFound(
            f"there is no worker {worker!r}.",
            field="worker",
            got=worker,
            hint=did_you_mean(worker, [each.id for each in found]) or "No worker is running.",
        )

    async def list(self) -> WorkerInfos:
        """Every worker as it last described itself; processes that only hold slots are left out."""
        core = self._core
        core.guard.check()
        now = await core.store.now()
        rows = await core.store.workers()
        return [WorkerInfo.of(row, now) for row in rows if "hold" not in row.permits]
