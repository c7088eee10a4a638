"""`/ui/live`: tells open pages that something has changed, at most twice a second.

One reader for all pages of this server looks for an event behind the last one it saw,
and only while a page is open: that is one small read, however much happens. A page
then asks for its own fragment again. The message says nothing of what changed, so
that it may go to anyone who may read.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from locktender.base.background import end_tasks, start_task
from locktender.base.errors import LocktenderError
from locktender.client.core import Core
from locktender.client.history import HistoryPages
from locktender.server.api.answers import HEADERS, Overloaded
from locktender.server.api.streams import until_gone

log: logging.Logger = logging.getLogger(__name__)
LIVE = "/ui/live"
READ_SECONDS = 0.5
AWAY_SECONDS = 5.0
"""Between two tries while the store cannot be read."""
QUIET_SECONDS = 15.0
LIFETIME_SECONDS = 600.0
SEND_SECONDS = 10.0
MAX_PAGES = 256


class LiveFeed:
    """The number of the last change that this server has noticed, and those who wait for the next."""

    def __init__(self, core: Core) -> None:
        self._reader = HistoryPages(core)
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._follows = False
        self.number: int = secrets.randbelow(1 << 40)
        """Begins anywhere: a page of another server, or from before a restart, has another number."""
        self.pages: int = 0
        self.closing: asyncio.Event = asyncio.Event()

    def open(self) -> None:
        if self.pages >= MAX_PAGES:
            raise Overloaded(f"{MAX_PAGES} pages are open here.", hint="Close some, or reload.")
        self.pages += 1
        if self._task is not None and self._task.done():
            self._unfollow()
        if self._task is None:
            self._task = start_task(self._read(), "follow the history for open pages")

    @property
    def mark(self) -> int | None:
        """What is read from now on has every change up to this number. None: nobody follows the history."""
        return self.number if self._follows else None

    async def closed(self) -> None:
        """One page is closed; with the last one the reader ends."""
        self.pages -= 1
        if self.pages == 0 and self._task is not None:
            task = self._task
            self._unfollow()
            await end_tasks([task])

    def _unfollow(self) -> None:
        """What was read until now may lack changes that nobody will have noticed."""
        self._task, self._follows, self.number = None, False, self.number + 1

    async def begun(self) -> int | None:
        """The number of the last change when the history is followed; None: not yet, after `QUIET_SECONDS`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(QUIET_SECONDS), self._changed:
                await self._changed.wait_for(lambda: self._follows)
        return self.mark

    async def next(self, seen: int) -> int:
        """The number of the last change when it is no longer `seen`; the same after `QUIET_SECONDS`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(QUIET_SECONDS), self._changed:
                await self._changed.wait_for(lambda: self.number != seen)
        return self.number

    async def close(self) -> None:
        self.closing.set()
        if self._task is not None:
            await end_tasks([self._task])

    async def _read(self) -> None:
        last: str | None = None
        while True:
            pause = READ_SECONDS
            try:
                if last is None:
                    last, changed = await self._reader.now(), False
                else:
                    last, changed = await self._reader.moved(last)
            except LocktenderError as error:
                log.debug("failed to read the end of the history: %s", error)
                pause = AWAY_SECONDS
            else:
                if changed or not self._follows:
                    async with self._changed:
                        self.number += changed
                        self._follows = True
                        self._changed.notify_all()
            await asyncio.sleep(pause)


class LiveStream(Response):
    """Server-sent events of one page: `changed`, with a number."""

    media_type = "text/event-stream"

    def __init__(self, feed: LiveFeed) -> None:
        super().__init__(headers={**HEADERS, "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        feed = self._feed
        feed.open()
        gone = asyncio.create_task(until_gone(receive))
        closing = asyncio.create_task(feed.closing.wait())
        sending = asyncio.create_task(self._send_all(send))
        try:
            await asyncio.wait(
                {gone, closing, sending},
                timeout=LIFETIME_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            await end_tasks([gone, closing, sending])
            await feed.closed()
        if gone.cancelled():
            with suppress(TimeoutError, OSError):
                async with asyncio.timeout(SEND_SECONDS):
                    await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_all(self, send: Send) -> None:
        with suppress(TimeoutError, OSError):  # it does not read
            async with asyncio.timeout(SEND_SECONDS):
                await send(
                    {
                        "type": "http.response.start",
                        "status": self.status_code,
                        "headers": self.raw_headers,
                    }
                )
            # Not ready before the history is followed: a change in between would never be noticed.
            while (seen := await self._feed.begun()) is None:
                await _send(send, ": quiet\n\n")
            said = f"retry: 2000\nevent: ready\ndata: {seen}\n\n"
            while True:
                await _send(send, said)
                number = await self._feed.next(seen)
                said = f"event: changed\ndata: {number}\n\n" if number != seen else ": quiet\n\n"
                seen = number


async def _send(send: Send, said: str) -> None:
    async with asyncio.timeout(SEND_SECONDS):
        await send({"type": "http.response.body", "body": said.encode(), "more_body": True})
