"""Namespaces `runs` and `queue` over HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from locktender.base import names
from locktender.base.ids import MAX_RUNS
from locktender.base.tracebacks import public
from locktender.client.bulk import filter_of, needs_filter
from locktender.client.remote.core import RemoteCore
from locktender.client.remote.http import path_of
from locktender.client.remote.run import RemoteRun
from locktender.client.run import AsyncRun
from locktender.client.runs_async import (
    AsyncQueue,
    AsyncRuns,
    Ids,
    Status,
    checked_beginning,
    checked_id,
    one_beginning,
)
from locktender.client.submission import TagValues
from locktender.client.views import QueueInfo, Requested, RunInfo
from locktender.store.protocol import RunFilter

if TYPE_CHECKING:
    from locktender.client.explained import ExplainedQueue

PAGE = 1_000


class RunsPart(msgspec.Struct, frozen=True):
    runs: list[RunInfo]
    next: str | None


MAX_CANDIDATES = 3


@public
class RemoteRuns(AsyncRuns):
    """Namespace `client.runs`, on a server."""

    def __init__(self, core: RemoteCore) -> None:
        super().__init__(core)
        self._http = core.http
        self._remote = core

    async def list(
        self,
        status: Status | None = None,
        tags: TagValues | None = None,
        flow: str | None = None,
        limit: int = 100,
        before: int | None = None,
    ) -> list[RunInfo]:
        left = names.count(limit, "limit", maximum=100_000)
        where = _query(filter_of(status, tags, flow, left))
        cursor = None if before is None else str(names.count(before, "before", maximum=MAX_RUNS))
        found: list[RunInfo] = []
        while left > 0:
            query = {**where, "limit": min(left, PAGE), "cursor": cursor}
            page = await self._http.get("/runs", RunsPart, query=query)
            found += page.runs
            cursor, left = page.next, limit - len(found)
            if cursor is None:
                break
        return found

    async def get(self, run: str) -> AsyncRun[Any]:
        info = await self._http.get(path_of("runs", checked_id(run)), RunInfo)
        return RemoteRun(self._remote, info.id)

    async def find(self, beginning: str) -> AsyncRun[Any]:
        text = checked_beginning(beginning)
        query = {"beginning": text, "limit": MAX_CANDIDATES}
        found = await self._http.get("/runs", list[RunInfo], "runs", query=query)
        return RemoteRun(self._remote, one_beginning(text, [each.id for each in found], beginning))

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
        which = _which(run, status, tags, flow, "cancel")
        body = {**which, "reason": reason, "force": force}
        return await self._http.call("POST", "/runs/cancel", Requested, body=body, again=True)

    async def count(
        self,
        status: Status | None = None,
        tags: TagValues | None = None,
        flow: str | None = None,
    ) -> int:
        where = _query(filter_of(status, tags, flow, 1))
        return await self._http.get("/runs/count", int, "count", query=where)

    async def pause(
        self,
        run: Ids | None = None,
        reason: str = "",
        *,
        status: Status | None = None,
        tags: TagValues | None = None,
        flow: str | None = None,
    ) -> list[str]:
        body = {**_which(run, status, tags, flow, "pause"), "reason": reason}
        return await self._changed("pause", body)

    async def resume(
        self,
        run: Ids | None = None,
        *,
        status: Status | None = None,
        tags: TagValues | None = None,
        flow: str | None = None,
    ) -> list[str]:
        return await self._changed("resume", _which(run, status, tags, flow, "resume"))

    async def retry(
        self,
        run: Ids | None = None,
        *,
        status: Status | None = None,
        tags: TagValues | None = None,
        flow: str | None = None,
    ) -> list[AsyncRun[Any]]:
        body = _which(run, status, tags, flow, "retry")
        found = await self._http.call("POST", "/runs/retry", list[str], "ids", body=body)
        return [RemoteRun(self._remote, each) for each in found]

    async def _changed(self, verb: str, body: dict[str, Any]) -> list[str]:
        return await self._http.call(
            "POST", f"/runs/{verb}", list[str], "ids", body=body, again=True
        )


@public
class RemoteQueue(AsyncQueue):
    """Namespace `client.queue`, on a server."""

    def __init__(self, core: RemoteCore) -> None:
        super().__init__(core)
        self._http = core.http

    async def list(self, limit: int = 100) -> list[QueueInfo]:
        most = names.count(limit, "limit", maximum=100_000)
        pages = await self._http.pages("/queue", list[QueueInfo], "queue", most)
        return [entry for page in pages for entry in page]

    async def explained(self, limit: int = 100) -> ExplainedQueue:
        from locktender.client.explained import ExplainedQueue

        query = {"limit": names.count(limit, "limit", maximum=100_000)}
        return await self._http.get("/queue/why", ExplainedQueue, query=query)

    async def cancel(
        self,
        run: Ids | None = None,
        *,
        tags: TagValues | None = None,
        flow: str | None = None,
        reason: str = "",
    ) -> Requested:
        body = {**_queued(run, tags, flow, "cancel"), "reason": reason}
        return await self._http.call("POST", "/queue/cancel", Requested, body=body, again=True)

    async def reprioritise(
        self,
        run: Ids | None,
        priority: int,
        *,
        tags: TagValues | None = None,
        flow: str | None = None,
    ) -> Requested:
        wanted = names.priority(priority)
        body = {**_queued(run, tags, flow, "reprioritise"), "priority": wanted}
        return await self._http.call("POST", "/queue/priority", Requested, body=body, again=True)


def _query(where: RunFilter) -> dict[str, Any]:
    """A checked filter as a query string has it."""
    tags = {names.text(key, "tags"): value for key, value in (where.tags or {}).items()}
    return {
        "status": None if where.states is None else ",".join(where.states),
        "tags": _pairs(tags) if tags else None,
        "flow": where.flow,
    }


def _pairs(tags: Mapping[str, str]) -> str:
    # In a query string a comma in a value ends it: a backslash says that this one does not.
    return ",".join(f"{_escaped(key)}={_escaped(value)}" for key, value in tags.items())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace(",", "\\,")


def _which(
    run: Ids | None,
    status: Status | None,
    tags: TagValues | None,
    flow: str | None,
    verb: str,
) -> dict[str, Any]:
    """Runs by id, or a checked filter, as a body has them."""
    if run is not None:
        return {"ids": _ids(run)}
    needs_filter(status, tags, flow, verb)
    where = filter_of(status, tags, flow, 1)
    return {
        "status": None if where.states is None else [*where.states],
        "tags": where.tags or None,
        "flow": where.flow,
    }


def _queued(run: Ids | None, tags: TagValues | None, flow: str | None, verb: str) -> dict[str, Any]:
    found = _which(run, None, tags, flow, verb)
    found.pop("status", None)
    return found


def _ids(run: Ids) -> list[str]:
    several: Iterable[Any] = [run] if isinstance(run, str | AsyncRun) else run
    return [each.id if isinstance(each, AsyncRun) else checked_id(each) for each in several]
