"""Connections of the HTTP server: how many there are, and how long each may do nothing.

Every client that reaches the port can open connections before it shows a token. A
connection is *idle* while no whole request of it is being answered: it shakes
hands for TLS, sends its request, or is kept for the next one. Beyond
`most_connections` the oldest idle one is closed for each new one, so that a
thousand silent clients keep nobody from `/health`. What is being answered has
bounds of its own (`app.MAX_REQUESTS`, `MAX_WAITING`, streams, pages), which
together are fewer.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from locktender.base import open_files
from locktender.base.background import end_tasks
from locktender.server.api.streams import MAX_STREAMS
from locktender.server.app import MAX_REQUESTS, MAX_WAITING, STREAMS
from locktender.server.ui.live import MAX_PAGES

MAX_CONNECTIONS = 2 * MAX_REQUESTS + MAX_WAITING + MAX_STREAMS + MAX_PAGES
OTHER_FILES = 256
"""Files that the process needs beside connections: the store, the log, children."""
ANSWER_SECONDS = 10.0
"""For a request to arrive, and for a TLS handshake."""
LONG_ANSWER_SECONDS = 40.0
"""For an answer to be read: a result may be waited for. A stream bounds itself."""


def most_connections() -> int:
    """As many as the process may have files for."""
    files = open_files.bound()
    return MAX_CONNECTIONS if files is None else max(1, min(MAX_CONNECTIONS, files - OTHER_FILES))


def allow_files() -> None:
    """Raises the bound of open files, where it may be raised, to what `MAX_CONNECTIONS` need."""
    open_files.allow(MAX_CONNECTIONS + OTHER_FILES)


class Closable(Protocol):
    """A connection, in whichever state."""

    def leave(self) -> None: ...


class Connections:
    """Those of one server."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._every: set[Closable] = set()
        self._idle: dict[Closable, None] = {}
        """The oldest first."""
        self.handshakes: set[asyncio.Task[None]] = set()

    def opened(self, one: Closable) -> None:
        self._every.add(one)
        self.idle(one)
        if len(self._every) > self._most:
            oldest = next(iter(self._idle))  # at the least the new one
            self.closed(oldest)
            oldest.leave()

    def idle(self, one: Closable) -> None:
        if one in self._every:
            self._idle[one] = None

    def busy(self, one: Closable) -> None:
        self._idle.pop(one, None)

    def closed(self, one: Closable) -> None:
        self._every.discard(one)
        self._idle.pop(one, None)

    async def close(self) -> None:
        await end_tasks([*self.handshakes])


class _Together:
    """A transport whose writes of one turn of the loop are one: an answer is sent in one piece, not in two."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def leave(self) -> None:
        """Closes after what is buffered is sent; aborts where nothing is buffered."""
        self._flush()
        if self._transport.get_write_buffer_size():
            self._transport.close()
        else:
            self._transport.abort()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts and not self._transport.is_closing():
            self._transport.write(b"".join(parts))


class HttpConnection(H11Protocol):
    """One that is not kept for ever, whatever its client does."""

    _end: asyncio.TimerHandle | None = None
    _answered: object = None

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        several: Connections,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._several = several

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast("asyncio.Transport", _Together(transport, self.loop)))
        self._wait()
        self._several.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._several.closed(self)
        if self._end is not None:
            self._end.cancel()
        super().connection_lost(exc)

    def leave(self) -> None:
        cast("_Together", self.transport).leave()

    def on_response_complete(self) -> None:
        self._wait()
        self._several.idle(self)
        super().on_response_complete()

    def handle_events(self) -> None:
        super().handle_events()
        cycle = cast("RequestResponseCycle | None", self.cycle)  # none before the first request
        if cycle is None or cycle is self._answered or cycle.more_body or cycle.response_complete:
            return
        # The request has arrived. An event of the same one that comes later changes nothing.
        self._answered = cycle
        self._several.busy(self)
        self._wait(None if self.scope["path"] in STREAMS else LONG_ANSWER_SECONDS)

    def _wait(self, seconds: float | None = -1) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None
        if seconds is not None:
            most = ANSWER_SECONDS if seconds < 0 else seconds
            self._end = self.loop.call_later(most, self.transport.abort)


class TlsHandshake(asyncio.Protocol):
    """A connection until its handshake is done; asyncio alone would wait a minute for each, without a bound."""

    def __init__(self, then: HttpConnection, context: ssl.SSLContext, several: Connections) -> None:
        self._then = then
        self._context = context
        self._several = several
        self._transport: asyncio.Transport | None = None
        self._early: list[bytes] = []
        """What came right behind the handshake, before this task went on."""
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.pause_reading()  # all bytes are those of the handshake
        task = asyncio.get_running_loop().create_task(self._shake(self._transport))
        self._several.handshakes.add(task)
        task.add_done_callback(self._several.handshakes.discard)
        self._several.opened(self)

    def data_received(self, data: bytes) -> None:
        self._early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._lost = True

    def leave(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def _shake(self, transport: asyncio.Transport) -> None:
        made: asyncio.Transport | None = None
        with suppress(OSError):  # too late, or no TLS: an SSLError and a TimeoutError are OSErrors
            try:
                made = await asyncio.get_running_loop().start_tls(
                    transport,
                    self,
                    self._context,
                    server_side=True,
                    ssl_handshake_timeout=ANSWER_SECONDS,
                    ssl_shutdown_timeout=ANSWER_SECONDS,
                )
            finally:
                self._several.closed(self)
                if made is None:
                    transport.abort()
        if made is not None and not self._lost:
            made.set_protocol(self._then)
            self._then.connection_made(made)
            for data in self._early:
                self._then.data_received(data)


def tls_context(cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    return context
