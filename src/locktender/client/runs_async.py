"""Namespaces `runs` and `queue`, for async code: one or many, by id or by filter."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from locktender.base import names
from locktender.base.errors import InvalidInput, NotFound
from locktender.base.ids import MAX_RUNS
from locktender.base.model import Request, RequestKind, RunRow
from locktender.base.states import TERMINAL_RUNS, RunState
from locktender.base.tracebacks import public
from locktender.client.bulk import (
    MAX_PAUSED,
    Matching,
    ask_all,
    bounded_rows,
    filter_of,
    needs_filter,
)
from locktender.client.core import Core
from locktender.client.parts import runs_in_parts
from locktender.client.pauses import pause_runs, resume_runs
from locktender.client.retries import retry_runs, retry_slices
from locktender.client.run import AsyncRun
from locktender.client.submission import TagValues
from locktender.client.views import QueueInfo, Requested, RunInfo
from locktender.store.protocol import RunFilter

if TYPE_CHECKING:
    from locktender.client.explained import ExplainedQueue

Ids = str | AsyncRun[Any] | Iterable[str | AsyncRun[Any]]
Status = str | Iterable[str]
PAGE = 500
SHORTEST_PREFIX = 4
ID_LENGTH = 26
_ACTIVE = (
    RunState.WAITING, RunState.QUEUED, RunState.RUNNING, RunState.CANCELLING, RunState.HELD,
)  # fmt: skip
_AGAIN = (RunState.FAILED, RunState.CANCELLED, RunState.TIMED_OUT)
_STARTED = frozenset(RunState) - {RunState.QUEUED}
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

        status  a state or several: "failed", "queued" …; "active" is every run that has not ended,
                "ended" every other. Submissions in a transaction of an application that are no
                runs (*submitted*, *rejected*) are listed where they are asked for, before the others
        tags    runs with all of these tags
        flow    the flow's name
        limit   1 to 100,000; default 100
        before  only runs with a smaller `number`, for the next page; default None
        """
        self._core.guard.check()
        where = filter_of(status, tags, flow, names.count(limit, "limit", maximum=100_000))
        if before is not None:
            where = msgspec.structs.replace(
                where, before=names.count(before, "before", maximum=MAX_RUNS)
            )
        return [RunInfo.of(row) for row in (await runs_in_parts(self._core, where)).rows]

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
            needs_filter(status, tags, flow, "cancel")
            return await ask_all(
                core,
                Matching(status or _ACTIVE, tags, flow),
                lambda each: Request("cancel", each, force=force, who=core.who, reason=reason),
                TERMINAL_RUNS,
                lambda row: row.state not in {RunState.QUEUED, RunState.RUNNING, RunState.WAITING},
            )
        rows = [await core.row(each) for each in await _resolved(core, run)]
        return await ask(core, "cancel", rows, TERMINAL_RUNS, reason=reason, force=force)

    async def count(
        self,
        status: Status | None = None,
        tags: TagValues | None = None,
        flow: str | None = None,
    ) -> int:
        """How many runs match; without a filter all."""
        self._core.guard.check()
        return await Matching(status, tags, flow).count(self._core)

    async def pause(
        self,
        run: Ids | None = None,
        reason: str = "",
        *,
        status: Status | None = None,
        tags: TagValues | None = None,
        flow: str | None = None,
    ) -> list[str]:
        """Starts nothing more of runs that have not ended; tasks that run go on. Returns their ids.

        run     a whole id, a run, or several
        reason  kept in the history and shown by `why`; default none
        status  a state or several: "running", "queued" …; at most 1,000 runs may match
        tags    runs with all of these tags
        flow    the flow's name
        """
        core = self._core
        core.guard.check()
        if run is not None:
            return await pause_runs(
                core, [await core.row(each) for each in await _resolved(core, run)], reason
            )
        needs_filter(status, tags, flow, "pause")
        active = Matching(status or _ACTIVE, tags, flow)
        rows = await bounded_rows(core, active, MAX_PAUSED, _has_not_ended, "paused")
        return await pause_runs(core, rows, reason)

    async def resume(
        self,
        run: Ids | None = None,
        *,
        status: Status | None = None,
        tags: TagValues | None = None,
        flow: str | None = None,
    ) -> list[str]:
        """Lets paused runs go on, by id or by a filter as `pause` takes it. Returns their ids."""
        core = self._core
        core.guard.check()
        if run is not None:
            return await resume_runs(
                core, [await core.row(each) for each in await _resolved(core, run)]
            )
        needs_filter(status, tags, flow, "resume")
        resumed: list[str] = []
        async for rows in Matching(status or _ACTIVE, tags, flow).slices(core):
            resumed += await resume_runs(core, rows)
        return resumed

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
        if run is not None:
            ids = await _resolved(core, run)
            await retry_runs(core, [await core.row(each) for each in ids])
            return [AsyncRun(core, each) for each in ids]
        needs_filter(status, tags, flow, "retry")
        # Of many by filter, what cannot be retried (it succeeded, it is active) was not meant.
        matching = Matching(status or _AGAIN, tags, flow).slices(core)
        ids = await retry_slices(
            core, ([row for row in rows if row.state in _AGAIN] async for rows in matching)
        )
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
        from locktender.observe.rebuilt import queue_in_order

        self._core.guard.check()
        most = names.count(limit, "limit", maximum=100_000)
        entries = await queue_in_order(self._core.store, most)
        return [QueueInfo(entry.position, RunInfo.of(entry.run)) for entry in entries]

    async def explained(self, limit: int = 100) -> ExplainedQueue:
        """The same, each with what it waits for, and how many are queued in all."""
        from locktender.client.explained import ExplainedQueue, ExplainedRun
        from locktender.observe.rebuilt import queue_in_order
        from locktender.observe.why_queued import queued_whys

        self._core.guard.check()
        most, store = names.count(limit, "limit", maximum=100_000), self._core.store
        entries = await queue_in_order(store, most + 1)
        whys, total = await queued_whys(store, entries[:most])
        queue = [
            ExplainedRun(entry.position, RunInfo.of(entry.run), why)
            for entry, why in zip(entries[:most], whys, strict=False)
        ]
        return ExplainedQueue(queue, len(entries) > most, total)

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
            needs_filter(None, tags, flow, "cancel")
            return await ask_all(
                core,
                Matching((RunState.QUEUED,), tags, flow),
                lambda each: Request("cancel", each, who=core.who, reason=reason),
                _STARTED,
                lambda row: row.state != RunState.QUEUED,
            )
        rows = [await core.row(each) for each in await _resolved(core, run)]
        return await ask(core, "cancel", rows, _STARTED, reason=reason)

    async def reprioritise(
        self,
        run: Ids | None,
        priority: int,
        *,
        tags: TagValues | None = None,
        flow: str | None = None,
    ) -> Requested:
        """Gives queued runs another priority; a run that has started is unchanged.

        run       a whole id, a run, or several; None: all queued ones that match
        priority  -1,000,000 to 1,000,000
        tags      queued runs with all of these tags
        flow      queued runs of this flow
        """
        core = self._core
        core.guard.check()
        wanted = names.priority(priority)
        if run is None:
            needs_filter(None, tags, flow, "reprioritise")
            return await ask_all(
                core,
                Matching((RunState.QUEUED,), tags, flow),
                lambda each: Request("reprioritise", each, priority=wanted, who=core.who),
                _STARTED,
                lambda row: row.priority == wanted or row.state != RunState.QUEUED,
            )
        rows = [await core.row(each) for each in await _resolved(core, run)]
        return await ask(core, "reprioritise", rows, _STARTED, priority=wanted)


def _has_not_ended(row: RunRow) -> bool:
    return row.state not in TERMINAL_RUNS


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
    return (await core.row(checked_id(run))).id


def checked_id(run: str) -> str:
    """A whole id, as it is stored."""
    text = _spelled(run)
    if len(text) != ID_LENGTH:
        raise NotFound(
            f"this is not the id of a run: an id has {ID_LENGTH} letters and digits.",
            field="run",
            got=run,
            hint="client.runs.find(...) takes the beginning of an id.",
        )
    return text


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


def checked_beginning(run: str) -> str:
    """At least as much of an id as a person must type."""
    text = _spelled(run)
    if len(text) < SHORTEST_PREFIX:
        raise InvalidInput(
            f"{text!r} is too short for the beginning of an id.",
            field="run",
            got=run,
            hint=f"Give at least {SHORTEST_PREFIX} characters.",
        )
    return text


async def resolve(core: Core, run: str) -> str:
    """The full id that `run` is, or begins."""
    text = checked_beginning(run)
    if len(text) == ID_LENGTH:
        return (await core.row(text)).id
    found = await core.store.runs(RunFilter(id_prefix=text, limit=3))
    return one_beginning(text, [row.id for row in found], run)


def one_beginning(text: str, found: Sequence[str], run: str) -> str:
    """The only one of `found`, ids that begin with `text`, the spelling of `run`."""
    if len(found) == 1:
        return found[0]
    if not found:
        raise NotFound(
            f"no run's id begins with {text!r}.",
            field="run",
            got=run,
            hint="locktender runs list shows ids.",
        )
    shown = ", ".join(found[:2])
    raise InvalidInput(
        f"several runs begin with {text!r}: {shown}{', …' if len(found) > 2 else ''}.",
        field="run",
        got=run,
        hint="Give more of the id.",
    )


async def runs_beginning(core: Core, prefix: str, limit: int = 2) -> list[RunInfo]:
    """Runs whose id begins with `prefix`, at most `limit`."""
    found = await core.store.runs(RunFilter(id_prefix=_spelled(prefix), limit=limit))
    return [RunInfo.of(row) for row in found]


async def _resolved(core: Core, run: Ids) -> list[str]:
    several = [run] if isinstance(run, str | AsyncRun) else list(run)
    return [each.id if isinstance(each, AsyncRun) else await exact(core, each) for each in several]
