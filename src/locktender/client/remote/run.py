"""A run on a server: every method is a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec

from locktender.base import codec, names
from locktender.base.durations import Duration, microseconds
from locktender.base.states import TERMINAL_RUNS, RunState
from locktender.base.tracebacks import public
from locktender.client.mailing import EventWaitInfo, checked_payload, event_id
from locktender.client.remote.core import RemoteCore
from locktender.client.remote.http import path_of
from locktender.client.results import ReturnedBy, read_value
from locktender.client.run import AsyncRun
from locktender.client.run_logs import FOLLOW_SECONDS, MAX_LIMIT, LogCounts
from locktender.client.views import EventInfo, GraphInfo, LogInfo, Requested, RunInfo, TaskInfo

if TYPE_CHECKING:
    from locktender.observe.blame import Blame
    from locktender.observe.why import Why

T_co = TypeVar("T_co", covariant=True)
PART = 10_000


class SubmittedAnswer(msgspec.Struct, frozen=True):
    id: str
    submitted: str


class ResultAnswer(msgspec.Struct, frozen=True):
    """What `result` answers: with a result, or while the run goes on."""

    run: str
    state: str
    number: int = 0
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    returned_by: ReturnedBy = ReturnedBy()


_OUTCOMES = {"skipped": "finished", "repeated": "created"}
"""What a server answers → what the store calls it."""


@public
class RemoteRun(AsyncRun[T_co], Generic[T_co]):
    """One submission of a flow, on a server."""

    def __init__(self, core: RemoteCore, run_id: str, outcome: str = "") -> None:
        super().__init__(core, run_id, outcome)
        self._http = core.http
        self._ends = core.ends
        self._remote = core

    @classmethod
    def of(cls, core: RemoteCore, answer: SubmittedAnswer) -> RemoteRun[Any]:
        return RemoteRun(core, answer.id, _OUTCOMES.get(answer.submitted, answer.submitted))

    def _path(self, *parts: str | int) -> str:
        return path_of("runs", self._id, *parts)

    async def info(self) -> RunInfo:
        return await self._http.get(self._path(), RunInfo)

    async def wait(self, timeout: Duration | None = None) -> RunState:  # noqa: ASYNC109
        until, info = self._ends.until(_patience(timeout)), await self.info()
        if info.state in TERMINAL_RUNS:
            return info.state
        return await self._ends.ended(info.id, info.number, info.state, until)

    async def result(self, timeout: Duration | None = None) -> T_co:  # noqa: ASYNC109
        until = self._ends.until(_patience(timeout))
        found = await self._http.get(self._path("result"), ResultAnswer)
        while isinstance(found.result, msgspec.UnsetType):
            await self._ends.ended(found.run, found.number, found.state, until)
            found = await self._http.get(path_of("runs", found.run, "result"), ResultAnswer)
        return cast("T_co", read_value(bytes(found.result), found.returned_by))

    async def why(self) -> Why:
        from locktender.observe.why import Why

        return await self._http.get(self._path("why"), Why, "why")

    async def blame(self) -> Blame:
        from locktender.observe.blame import Blame

        return await self._http.get(self._path("blame"), Blame, "blame")

    async def cancel(self, reason: str = "", *, force: bool = False) -> Requested:
        # By the route of many: of a run that has ended it says so, as a store does, and refuses nothing.
        body = {"ids": [self._id], "reason": reason, "force": force}
        return await self._http.call("POST", "/runs/cancel", Requested, body=body, again=True)

    async def pause(self, reason: str = "") -> None:
        await self._http.do("POST", self._path("pause"), body={"reason": reason}, again=True)

    async def resume(self) -> None:
        await self._http.do("POST", "/runs/resume", body={"ids": [self._id]}, again=True)

    async def retry(
        self, *, from_step: str | None = None, args: Mapping[str, Any] | None = None
    ) -> AsyncRun[T_co]:
        if args is None and from_step is None:
            await self._http.do("POST", "/runs/retry", body={"ids": [self._id]})
            return self
        body: dict[str, Any] = {"from_step": from_step}
        if args is not None:
            body["args"] = {
                name: msgspec.Raw(codec.encode(value, name)) for name, value in args.items()
            }
        again = await self._http.call("POST", self._path("retry"), SubmittedAnswer, body=body)
        return self if again.id == self._id else RemoteRun.of(self._remote, again)

    async def send(self, event: str, payload: Any = None, *, id: str | None = None) -> bool:  # noqa: A002
        # An id of its own makes twice as once.
        body = {
            "event": event,
            "payload": msgspec.Raw(checked_payload(payload)),
            "id": event_id(id),
        }
        sent = await self._http.call(
            "POST", self._path("events"), bool, "new", body=body, again=True
        )
        return sent or id is None

    async def waits(self) -> list[EventWaitInfo]:
        return await self._http.get(self._path("waits"), list[EventWaitInfo], "waits")

    async def tasks(self) -> list[TaskInfo]:
        return await self._parts("tasks", TaskInfo)

    async def graph(self) -> GraphInfo:
        return await self._http.get(self._path("graph"), GraphInfo)

    async def logs(self, task: int | None = None, *, limit: int = 10_000) -> list[LogInfo]:
        most = names.count(limit, "limit", maximum=MAX_LIMIT)
        return await self._http.get(
            self._path("logs"), list[LogInfo], "logs", query={"task": task, "limit": most}
        )

    async def follow_logs(self, task: int | None = None) -> AsyncGenerator[LogInfo]:
        seen: dict[tuple[int, int], int] = {}
        while True:
            # First: what an attempt logged is stored before its end is.
            counts = await self._http.get(
                self._path("logs", "counts"), LogCounts, query={"task": task}
            )
            lines: list[LogInfo] = []
            for each in counts.attempts:
                known = seen.get((each.task, each.token), 0)
                if each.lines <= known:
                    continue
                query = {"task": each.task, "token": each.token, "known": known}
                lines += await self._http.get(
                    self._path("logs"), list[LogInfo], "logs", query=query
                )
                seen[each.task, each.token] = each.lines
            for line in sorted(lines, key=lambda line: line.at):
                yield line
            ended = counts.state in TERMINAL_RUNS
            if ended and not lines:
                return
            if not ended:
                await asyncio.sleep(FOLLOW_SECONDS)

    async def events(self) -> list[EventInfo]:
        return await self._parts("events", EventInfo)

    async def _parts(self, name: str, kind: type[Any]) -> list[Any]:
        """A long list, part by part."""
        found: list[Any] = []
        after: int | None = 0
        while after is not None:
            query = {"limit": PART, "after": after}
            raw = await self._http.get(self._path(name), dict[str, msgspec.Raw], query=query)
            found += self._http.read(bytes(raw[name]), list[kind])
            after = self._http.read(bytes(raw["next"]), cast("Any", int | None))
        return found


def _patience(timeout: Duration | None) -> int | None:
    return None if timeout is None else microseconds(timeout, "timeout", minimum=0)
