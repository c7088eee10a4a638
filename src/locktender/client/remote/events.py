"""Namespace `events` over HTTP: the history is read page by page, and then followed by server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

import msgspec

from locktender.base import names
from locktender.base.errors import InvalidInput, StoreError
from locktender.base.events import Event
from locktender.base.states import TERMINAL_RUNS
from locktender.base.tracebacks import public
from locktender.client.events import AsyncEvents
from locktender.client.history import (
    NOW,
    START,
    EventReaderInfo,
    HistoryEvent,
    check_room,
    checked_reader,
)
from locktender.client.mailing import EventWaitInfo, checked_payload, event_id
from locktender.client.remote.core import RemoteCore
from locktender.client.remote.http import path_of
from locktender.client.run_waiter import STORE_AWAY_SECONDS
from locktender.client.runs_async import checked_id

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0


class ReadPart(msgspec.Struct, frozen=True):
    events: list[HistoryEvent]
    cursor: str
    ended: bool


class ChangesMessage(msgspec.Struct, frozen=True):
    events: list[HistoryEvent] = []


_message = msgspec.json.Decoder(ChangesMessage).decode


@public
class RemoteEvents(AsyncEvents):
    """Namespace `client.events`, on a server."""

    def __init__(self, core: RemoteCore) -> None:
        super().__init__(core)
        self._http = core.http
        self._remote = core

    async def send(
        self,
        topic: str,
        payload: Any = None,
        *,
        match: Mapping[str, Any] | None = None,
        id: str | None = None,  # noqa: A002
    ) -> bool:
        body = {
            "payload": msgspec.Raw(checked_payload(payload)),
            "match": None if match is None else dict(match),
            "id": event_id(id),
        }
        sent = await self._http.call(
            "POST",
            path_of("topics", names.text(topic, "topic")),
            bool,
            "new",
            body=body,
            again=True,
        )
        return sent or id is None

    async def answer(self, token: str, payload: Any = None) -> bool:
        if not isinstance(token, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput("token must be text.", field="token", got=token)
        body = {"token": token, "payload": msgspec.Raw(checked_payload(payload))}
        return await self._http.call("POST", "/waits/answer", bool, "new", body=body)

    async def follow(
        self,
        run: str | None = None,
        *,
        after: str | None = None,
        reader: str | None = None,
        wait: bool = True,
        skip_pruned: bool = False,
    ) -> AsyncGenerator[HistoryEvent]:
        following = _Following(
            self._remote,
            None if run is None else checked_id(run),
            checked_reader(reader),
            skip_pruned=skip_pruned,
        )
        try:
            async for event in following.events(after, wait=wait):
                yield event
                # Asked for the next one: this one was taken.
                following.taken = event.cursor
        finally:
            await following.keep()

    async def latest(self, limit: int = 100) -> list[Event]:
        most = names.count(limit, "limit", maximum=100_000)
        pages = await self._http.pages("/events/latest", list[Event], "events", most)
        # The last page has the oldest.
        return [event for page in reversed(pages) for event in page]

    async def readers(self) -> list[EventReaderInfo]:
        return await self._http.get("/event-readers", list[EventReaderInfo], "readers")

    async def forget_reader(self, name: str) -> bool:
        path = path_of("event-readers", name)
        return await self._http.call("DELETE", path, bool, "removed")

    async def waiting(self, *, limit: int = 10_000) -> list[EventWaitInfo]:
        most = names.count(limit, "limit", maximum=100_000)
        pages = await self._http.pages("/waits", list[EventWaitInfo], "waits", most)
        return [wait for page in pages for wait in page]


class _Following:
    """One reader of the history, on a server."""

    def __init__(
        self, core: RemoteCore, run: str | None, reader: str | None, *, skip_pruned: bool
    ) -> None:
        self._http = core.http
        self._guard = core.guard
        self._run = run
        self._reader = reader
        self._skip_pruned = skip_pruned
        self._place = ""
        self.taken: str | None = None
        self._kept: str | None = None

    async def events(self, after: str | None, *, wait: bool) -> AsyncIterator[HistoryEvent]:
        self._place = await self._begin(after)
        while True:
            part = await self._page()
            for event in part.events:
                yield event
            await self.keep()
            self._place = part.cursor
            if part.events:
                continue
            if part.ended or not wait:
                return
            async for event in self._stream():
                yield event

    async def _begin(self, after: str | None) -> str:
        if after is None and self._reader is not None:
            readers = await self._http.get("/event-readers", list[EventReaderInfo], "readers")
            known = {each.name: each.cursor for each in readers}
            check_room(self._reader, known)
            return known.get(self._reader, START)
        if after is None:
            return NOW if self._run is None else START
        return after

    async def _page(self) -> ReadPart:
        query = {"after": self._place, "run": self._run, "skip_pruned": self._skip_pruned}
        return await self._http.get("/history", ReadPart, query=query)

    async def _stream(self) -> AsyncIterator[HistoryEvent]:
        """What happens, until it must be read by pages again: the run has ended, or the history was replaced."""
        clock = asyncio.get_running_loop().time
        pause, heard = FIRST_PAUSE_SECONDS, clock()
        while True:
            try:
                async with self._http.stream(
                    "/events", {"run": self._run}, self._place
                ) as messages:
                    async for place, kind, data in messages:
                        pause, heard = FIRST_PAUSE_SECONDS, clock()
                        if kind == "reset":
                            return
                        found = _message(data).events if kind == "changes" else []
                        for event in found:
                            yield event
                        await self.keep()
                        self._place = place or self._place
                        if self._run is not None and any(_ends(event) for event in found):
                            return
            except StoreError:
                self._guard.check()
                if clock() - heard >= STORE_AWAY_SECONDS:
                    raise
            # The server has ended the stream, or is away: the place says where to go on.
            await asyncio.sleep(pause)
            self._guard.check()
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def keep(self) -> None:
        """Stores how far a named reader came."""
        if self._reader is None or self.taken is None or self.taken == self._kept:
            return
        taken = self.taken
        path = path_of("event-readers", self._reader)
        await self._http.do("PUT", path, body={"cursor": taken}, again=True)
        self._kept = taken


def _ends(event: HistoryEvent) -> bool:
    return event.subject == "run" and event.after in TERMINAL_RUNS
