"""`/api/v1/events`: the history as it grows, by server-sent events.

One message has all changes of one read, and its id is the place behind them: a
client that comes back with `Last-Event-ID` misses nothing and gets nothing
twice. All connections at one place share one read, so that a hundred of them
cost the store what one does. A connection that came with an old place reads
alone until it is closed, ten minutes later, and comes back.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from locktender.base.background import end_tasks
from locktender.base.errors import HistoryReplaced, InvalidInput, LocktenderError
from locktender.client.core import Core
from locktender.client.history import FollowedEvent, HistoryEvent, HistoryPages
from locktender.server.api.answers import HEADERS, Malformed, Overloaded

log: logging.Logger = logging.getLogger(__name__)
T = TypeVar("T")
MAX_STREAMS = 512
POLL_SECONDS = 0.25
QUIET_SECONDS = 15.0
"""Then a comment is sent: proxies close connections that say nothing."""
LIFETIME_SECONDS = 600.0
SEND_SECONDS = 10.0
"""A client that does not read for so long is cut off."""
MAX_PAGES_KEPT = 64
RESET = b"event: reset\ndata: {}\n\n"
Page = tuple[str, list[FollowedEvent]]


class Changes(msgspec.Struct, frozen=True):
    """The data of one message: changes in their order."""

    events: list[HistoryEvent]


class Followers:
    """All who follow the history through this server."""

    def __init__(self, core: Core) -> None:
        self._reader = HistoryPages(core)
        self._pages: OrderedDict[str, Page] = OrderedDict()
        """Place → what comes next, of the last reads."""
        self._reads: dict[str, asyncio.Task[Page]] = {}
        self._frame: tuple[Page, bytes] | None = None
        """The last page as those get it who want everything: it is encoded once for all."""
        self._tip: str | None = None
        """Where a read waits for what comes next."""
        self.streams = 0
        self.closing: asyncio.Event = asyncio.Event()

    async def begin(self, last_event_id: str | None) -> str:
        """The place to follow from. Raises `Malformed` for an id that is none."""
        if self.streams >= MAX_STREAMS:
            raise Overloaded(
                f"{MAX_STREAMS} connections follow events here, and no more are taken.",
                hint="Try again later, or on another server.",
            )
        if not last_event_id:
            return await self._join()
        place = last_event_id
        if place not in self._pages:
            try:
                self._keep(place, await self._reader.read(place))
            except HistoryReplaced:
                return ""
            except InvalidInput as error:
                raise Malformed(
                    error.message,
                    field="last-event-id",
                    got=place[:80],
                    hint="Leave it out to follow from now on.",
                ) from None
        return place

    async def _join(self) -> str:
        """The place behind all that is visible now: that of those who wait, so that reads are shared."""
        if self._tip is None:
            return await self._reader.now()
        tip = self._tip
        page = await self._reader.read(tip)
        if not page[1]:
            return tip
        self._keep(tip, page)  # those who wait go on with this page
        return page[0]

    async def next(self, place: str) -> Page:
        """What follows `place`; nothing after `QUIET_SECONDS`."""
        page = self._pages.get(place)
        if page is not None:
            return page
        read = self._reads.get(place)
        if read is None:
            read = self._reads[place] = asyncio.create_task(self._read(place))
        # A connection that is closed does not cancel the read of the others.
        await asyncio.wait({read})
        return read.result()

    def frame(self, page: Page) -> bytes:
        """A whole page as one message."""
        if self._frame is None or self._frame[0] is not page:
            self._frame = page, frame_of(page[0], [each.event for each in page[1]])
        return self._frame[1]

    async def close(self) -> None:
        self.closing.set()
        await end_tasks([*self._reads.values()])

    async def _read(self, place: str) -> Page:
        try:
            left = QUIET_SECONDS
            while True:
                page = self._pages.get(place) or await self._reader.read(place)
                if page[1] or left <= 0:
                    self._keep(place, page)
                    return page
                self._tip = place
                left -= POLL_SECONDS
                await asyncio.sleep(POLL_SECONDS)
        finally:
            del self._reads[place]
            if self._tip == place:
                self._tip = None

    def _keep(self, place: str, page: Page) -> None:
        if page[0] == place:
            return  # nothing has happened: the next read starts at the same place
        self._pages[place] = page
        while len(self._pages) > MAX_PAGES_KEPT:
            self._pages.popitem(last=False)


def frame_of(place: str, events: list[HistoryEvent]) -> bytes:
    """One message; a comment where there is nothing to say."""
    if not events:
        return f"id: {place}\n: quiet\n\n".encode()
    data = msgspec.json.encode(Changes(events))
    return b"id: %s\nevent: changes\ndata: %s\n\n" % (place.encode(), data)


class EventStream(Response):
    """Sends what `followers` read until the client goes, the server ends, or the lifetime is over."""

    media_type = "text/event-stream"

    def __init__(
        self,
        followers: Followers,
        place: str,
        wanted: Callable[[FollowedEvent], bool] | None,
        ended: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """`wanted`: None for everything. `ended` returns when the follower has lost its right."""
        super().__init__(headers={**HEADERS, "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._followers = followers
        self._place = place
        self._wanted = wanted
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        self._followers.streams += 1
        gone = asyncio.create_task(until_gone(receive))
        closing = asyncio.create_task(self._followers.closing.wait())
        sending = asyncio.create_task(self._send_all(send))
        ended = asyncio.create_task(self._ended())
        try:
            await asyncio.wait(
                {gone, closing, sending, ended},
                timeout=LIFETIME_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            self._followers.streams -= 1
            await end_tasks([gone, closing, sending, ended])
        if gone.cancelled():
            with suppress(TimeoutError, OSError):
                await _bounded(
                    send({"type": "http.response.body", "body": b"", "more_body": False})
                )

    async def _send_all(self, send: Send) -> None:
        try:
            await _bounded(
                send(
                    {
                        "type": "http.response.start",
                        "status": self.status_code,
                        "headers": self.raw_headers,
                    }
                )
            )
            if not self._place:
                self._place = await self._followers.begin(None)
                await self._send(send, RESET)
            await self._send(send, f"retry: 2000\nid: {self._place}\n\n".encode())
            while True:
                page = await self._followers.next(self._place)
                self._place = page[0]
                if self._wanted is None:
                    frame = self._followers.frame(page)
                else:
                    found = [each.event for each in page[1] if self._wanted(each)]
                    frame = frame_of(self._place, found)
                await self._send(send, frame)
        except (TimeoutError, OSError):
            return  # it does not read
        except HistoryReplaced:
            await self._send(send, RESET)
        except LocktenderError as error:
            log.warning("failed to follow the history: %s", error)

    async def _send(self, send: Send, body: bytes) -> None:
        await _bounded(send({"type": "http.response.body", "body": body, "more_body": True}))


async def _bounded(sending: Any) -> None:
    async with asyncio.timeout(SEND_SECONDS):
        await sending


async def until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_asked(
    request: Request, closing: asyncio.Event, work: Coroutine[Any, Any, T]
) -> T | None:
    """What `work` returns; None if the client goes, or the server ends, before that."""
    doing = asyncio.create_task(work)
    gone = asyncio.create_task(until_gone(request.receive))
    closed = asyncio.create_task(closing.wait())
    try:
        await asyncio.wait({doing, gone, closed}, return_when=asyncio.FIRST_COMPLETED)
        return doing.result() if doing.done() else None
    finally:
        await end_tasks([doing, gone, closed])
