"""The socket and the HTTP server, on the engine's loop.

The socket is bound before the store is opened or a worker joins, so that a
taken port is reported at once. Every connection has a bounded time to send its
request and read its answer (`connections.py`). Beyond `MAX_REQUESTS` an answer
is 503. Connections that follow events last longer; `api/streams.py` bounds them.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from locktender.base.background import start_thread, until_done
from locktender.base.errors import InvalidInput, LocktenderError
from locktender.client.core import Core
from locktender.server.app import App
from locktender.server.connections import (
    Connections,
    HttpConnection,
    TlsHandshake,
    most_connections,
    tls_context,
)
from locktender.server.options import HttpOptions
from locktender.server.ui.pages import prepare_pages

BACKLOG = 64
"""Connections that are accepted in one turn of the loop: what is too many is closed after that."""
QUEUED = 1_024
"""Connections that the system keeps until they are accepted."""


def bind(host: str, port: int, *, option: str = "port") -> socket.socket:
    """A listening socket on `host`; port 0: any that is free. `option` is what the user calls the port."""
    family, address = _address(host, port, option)
    # asyncio sets TCP_NODELAY only where the protocol is named: without it an answer takes 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # At once: two sockets may be bound to one port as long as neither listens.
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise _refused(error, host, port, option) from error
    return listener


def url_of(listener: socket.socket, scheme: str = "http") -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def is_loopback(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def _address(host: str, port: int, option: str) -> tuple[socket.AddressFamily, tuple[object, ...]]:
    if not 0 <= port <= 65_535:
        raise InvalidInput(
            "a port is a number from 0 to 65535.",
            field=option,
            got=port,
            hint="0 picks a free one.",
        )
    try:
        if not host.strip():
            raise OSError("no name")
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InvalidInput(
            f"{host!r} is not an address.",
            field=option.replace("port", "host"),
            got=host,
            hint="Use 127.0.0.1 for this machine alone, 0.0.0.0 for every address it has.",
        ) from error
    # `localhost` is often both: most clients try this one first.
    found.sort(key=lambda each: each[0] != socket.AF_INET)
    return found[0][0], found[0][4]


def _refused(error: OSError, host: str, port: int, option: str) -> InvalidInput:
    where = option.replace("port", "host")
    if error.errno == errno.EADDRINUSE:
        return InvalidInput(
            f"port {port} of {host} is in use.",
            field=option,
            got=port,
            hint=f"Name another, or --{option} 0 for any that is free.",
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return InvalidInput(
            f"{host} is not an address of this machine.",
            field=where,
            got=host,
            hint="Try: 127.0.0.1",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return InvalidInput(
            f"port {port} of {host} may not be opened by this user.",
            field=option,
            got=port,
            hint="Ports below 1024 are the system's: name a larger one.",
        )
    return InvalidInput(f"{host}:{port} cannot be opened: {error.strerror}.", field=option)


KEEP_ALIVE_SECONDS = 5
MAX_HEADER_BYTES = 16 * 1024
CLOSE_SECONDS = 1
RESTART_SECONDS = 1.0
START_SECONDS = 5.0


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, answers: asyncio.Event) -> None:
        super().__init__(config)
        self._answers = answers

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(QUEUED)
        self._answers.set()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """The process has its own way to end: what runs is drained first."""
        yield


class Web:
    """Serves `app` on a listening socket, from `start` to `stop`."""

    def __init__(
        self, app: ASGIApp, listener: socket.socket, tls: tuple[Path, Path] | None = None
    ) -> None:
        """`tls`: certificate and key; None: plain HTTP."""
        self._app = app
        self._listener = listener
        self._tls = None if tls is None else tls_context(*tls)
        self._several = Connections(most_connections())
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._answers = asyncio.Event()
        self._server = self._new_server()

    def _new_server(self) -> _Server:
        return _Server(
            uvicorn.Config(
                self._app,
                http=self._connection,  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                log_level="critical",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=CLOSE_SECONDS,
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            ),
            self._answers,
        )

    def _connection(self, **given: Any) -> asyncio.Protocol:
        made = HttpConnection(**given, several=self._several)
        return made if self._tls is None else TlsHandshake(made, self._tls, self._several)

    async def start(self) -> None:
        """Returns when it answers, or failed to and tries again."""
        serve = until_done(self._serve, "answer by HTTP", RESTART_SECONDS)
        self._task = asyncio.create_task(serve, name="locktender-web")
        with suppress(TimeoutError):
            async with asyncio.timeout(START_SECONDS):
                await self._answers.wait()

    async def stop(self) -> None:
        """Returns when the last connection is closed: soon."""
        self._stopping = True
        task, self._task = self._task, None
        if task is not None:
            self._server.should_exit = True
            await asyncio.wait({task})
        await self._several.close()

    async def _serve(self) -> None:
        """Until `stop`. Where the server fails, its connections are closed, and the next call makes another."""
        server = self._server
        try:
            # Its own copy: a server closes what it listens on.
            await server.serve(sockets=[self._listener.dup()])
            if not self._stopping:
                raise LocktenderError("the HTTP server stopped unexpectedly.")
        finally:
            if not self._stopping:
                for each in getattr(server, "servers", ()):
                    each.close()
                self._server = self._new_server()


@asynccontextmanager
async def serving(
    core: Core,
    listener: socket.socket,
    *,
    demand: bool,
    api: bool = False,
    options: HttpOptions | None = None,
) -> AsyncGenerator[None]:
    """Answers by HTTP until the block ends; a drain within the block is answered to its end."""
    if core.engine is None:
        raise LookupError("there is no engine to answer for")
    reached = options or HttpOptions()
    if api and reached.auth == "none" and not is_loopback(listener):
        raise InvalidInput("without tokens the API is for this machine alone.", field="host")
    app = App(core, core.engine, await core.store.now(), demand=demand, api=api, options=reached)
    web = Web(app.asgi, listener, reached.tls)
    await web.start()
    if api:
        start_thread(prepare_pages, "locktender-pages")
    try:
        yield
    finally:
        await app.stop_streams()
        await web.stop()
        await app.close()
