"""Namespaces `flows`, `schedules`, `workers`, `cache` and `tokens` over HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from locktender.base import codec, names
from locktender.base.durations import Duration
from locktender.base.errors import NotFound, StateConflict
from locktender.base.names import did_you_mean
from locktender.base.names import name as checked_name
from locktender.base.schedule_options import make_spec
from locktender.base.schedules import CatchUp, Overlap
from locktender.base.tracebacks import public
from locktender.client.pauses import (
    AsyncFlows,
    FlowDetail,
    FlowInfo,
    FlowInfos,
    PausedFlow,
    PausedFlows,
)
from locktender.client.remote.core import RemoteCore
from locktender.client.remote.http import path_of
from locktender.client.remote.run import RemoteRun, SubmittedAnswer
from locktender.client.remote.settings import span
from locktender.client.result_cache import (
    MAX_LISTED,
    AsyncCache,
    CachedInfo,
    CachedInfos,
    checked_key,
)
from locktender.client.run import AsyncRun
from locktender.client.schedules import AsyncSchedules, ScheduleChangeInfo, ScheduleInfo
from locktender.client.submit import definition_of
from locktender.client.tokens import (
    AsyncTokens,
    CreatedToken,
    TokenInfo,
    TokenInfos,
    checked_scopes,
)
from locktender.client.views import Requested, WorkerInfo
from locktender.client.workers import AsyncWorkers, WorkerInfos
from locktender.flows.flows import Flow


@public
class RemoteFlows(AsyncFlows):
    """Namespace `client.flows`, on a server."""

    def __init__(self, core: RemoteCore) -> None:
        super().__init__(core)
        self._http = core.http

    async def get(self, flow: str) -> FlowDetail:
        return await self._http.get(path_of("flows", flow), FlowDetail)

    async def pause(self, flow: str, reason: str = "") -> None:
        path = path_of("flows", names.name(flow, "flow"), "pause")
        await self._http.do("POST", path, body={"reason": reason}, again=True)

    async def resume(self, flow: str) -> None:
        try:
            await self._http.do("POST", path_of("flows", flow, "resume"))
        except (StateConflict, NotFound):
            paused = [each.name for each in await self.paused()]
            raise NotFound(
                f"flow {flow!r} is not paused.",
                field="flow",
                got=flow,
                hint=did_you_mean(flow, paused) or "locktender flows list",
            ) from None

    async def list(self) -> FlowInfos:
        return await self._http.get("/flows", list[FlowInfo], "flows")

    async def paused(self) -> PausedFlows:
        return [
            PausedFlow(each.name, each.paused_by or "", each.paused_since, each.reason)
            for each in await self.list()
            if each.state == "paused"
        ]


@public
class RemoteSchedules(AsyncSchedules):
    """Namespace `client.schedules`, on a server."""

    def __init__(self, core: RemoteCore) -> None:
        super().__init__(core)
        self._http = core.http
        self._remote = core

    async def set(
        self,
        name: str,
        flow: Flow[..., Any] | str,
        args: Mapping[str, Any] | None = None,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        at: datetime | str | None = None,
        tz: str = "UTC",
        jitter: Duration | None = None,
        overlap: Overlap = "skip",
        catch_up: CatchUp = "none",
        max_active: int | None = None,
        paused: bool = False,
        tags: Mapping[str, str | int | bool] | None = None,
    ) -> ScheduleInfo:
        path = path_of("schedules", checked_name(name, "name"))
        named = flow if isinstance(flow, str) else definition_of(flow).name
        spec = make_spec(
            named, args, cron=cron, every=every, at=at, tz=tz, jitter=jitter, overlap=overlap,
            catch_up=catch_up, max_active=max_active, paused=paused, tags=tags,
        )  # fmt: skip
        body = {
            "flow": named,
            "args": {
                key: msgspec.Raw(codec.encode(value, key)) for key, value in (args or {}).items()
            },
            "cron": cron,
            "every": None if every is None else span(every, "every"),
            "at": at if isinstance(at, str) or at is None else at.isoformat(),
            "tz": tz,
            "jitter": None if jitter is None else span(jitter, "jitter", 0),
            "overlap": spec.overlap,
            "catch_up": spec.catch_up,
            "max_active": max_active,
            "paused": paused,
            "tags": names.tags(tags),
        }
        return await self._http.call("PUT", path, ScheduleInfo, body=body, again=True)

    async def get(self, name: str) -> ScheduleInfo:
        return await self._http.get(path_of("schedules", name), ScheduleInfo)

    async def list(self) -> list[ScheduleInfo]:
        return await self._http.get("/schedules", list[ScheduleInfo], "schedules")

    async def pause(self, name: str) -> None:
        await self._http.do("POST", path_of("schedules", name, "pause"), again=True)

    async def resume(self, name: str) -> None:
        await self._http.do("POST", path_of("schedules", name, "resume"), again=True)

    async def reset(self, name: str) -> None:
        await self._http.do("POST", path_of("schedules", name, "reset"))

    async def delete(self, name: str) -> None:
        await self._http.do("DELETE", path_of("schedules", name))

    async def run_now(self, name: str) -> AsyncRun[Any]:
        answer = await self._http.call("POST", path_of("schedules", name, "run"), SubmittedAnswer)
        return RemoteRun.of(self._remote, answer)

    async def history(self, name: str, limit: int = 100) -> list[ScheduleChangeInfo]:
        path = path_of("schedules", name, "changes")
        query = {"limit": names.count(limit, "limit", maximum=100_000)}
        return await self._http.get(path, list[ScheduleChangeInfo], "changes", query=query)


@public
class RemoteWorkers(AsyncWorkers):
    """Namespace `client.workers`, on a server."""

    def __init__(self, core: RemoteCore) -> None:
        super().__init__(core)
        self._http = core.http

    async def drain(self, worker: str) -> Requested:
        path = path_of("workers", (await self.get(worker)).id, "drain")
        return await self._http.call("POST", path, Requested, again=True)

    async def undrain(self, worker: str) -> Requested:
        path = path_of("workers", (await self.get(worker)).id, "undrain")
        return await self._http.call("POST", path, Requested)

    async def list(self) -> WorkerInfos:
        return await self._http.get("/workers", list[WorkerInfo], "workers")


@public
class RemoteCache(AsyncCache):
    """Namespace `client.cache`, on a server."""

    def __init__(self, core: RemoteCore) -> None:
        super().__init__(core)
        self._http = core.http

    async def list(
        self, *, step: str | None = None, flow: str | None = None, limit: int = 1_000
    ) -> CachedInfos:
        most = names.count(limit, "limit", maximum=MAX_LISTED)
        query = {"step": step, "flow": flow, "limit": most}
        return await self._http.get("/cache", list[CachedInfo], "results", query=query)

    async def get(self, key: str) -> CachedInfo:
        return await self._http.get(path_of("cache", checked_key(key)), CachedInfo)

    async def clear(self, *, step: str | None = None, flow: str | None = None) -> int:
        body = {"step": step, "flow": flow}
        return await self._http.call("POST", "/cache/clear", int, "cleared", body=body)


@public
class RemoteTokens(AsyncTokens):
    """Namespace `client.tokens`, on a server."""

    def __init__(self, core: RemoteCore) -> None:
        super().__init__(core)
        self._http = core.http

    async def create(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        tags: Mapping[str, str | int | bool] | None = None,
        expires: Duration | None = None,
    ) -> CreatedToken:
        body = {
            "name": names.name(name, "name"),
            "scopes": [*checked_scopes(scopes)],
            "tags": names.tags(tags),
            "expires": None if expires is None else span(expires, "expires"),
        }
        return await self._http.call("POST", "/tokens", CreatedToken, body=body)

    async def list(self) -> TokenInfos:
        return await self._http.get("/tokens", list[TokenInfo], "tokens")

    async def revoke(self, token: str) -> TokenInfo:
        path = path_of("tokens", names.text(token, "token"))
        return await self._http.call("DELETE", path, TokenInfo)
