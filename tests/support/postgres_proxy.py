"""A proxy between a store and its server, for tests of answers that are lost or late on their way."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit


def _prepares(data: bytes, part: bytes) -> list[bytes]:
    """Names under which asyncpg prepares statements that have `part` in their text."""
    return re.findall(rb"(__asyncpg_stmt_\w+__)\x00[^\x00]*" + re.escape(part), data)


class Proxy:
    """Passes everything on. Armed, it lets one more request through and cuts the connection at its answer.

    Other requests may be on their way on other connections: whichever is first is the one.
    Stalled, it keeps every connection and passes nothing, as a network that drops packets does.
    """

    def __init__(self, url: str, folder: Path) -> None:
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query))
        self._server = query.get("host") or parts.hostname or "localhost"
        self._port = int(query.get("port") or parts.port or 5432)
        self._folder = folder
        query |= {"host": str(folder), "port": "5432"}
        user = parts.netloc.rpartition("@")[0]
        self.url: str = urlunsplit(
            parts._replace(netloc=f"{user}@" if user else "", query=urlencode(query))
        )
        self.only: bytes = b""
        """A part of a statement's text: armed, it waits for a request that executes such a one."""
        self.armed: bool = False
        self.stalled: bool = False
        """Set from any thread; what was held back goes on when it is unset."""
        self.cut: int = 0
        """How many answers were cut off."""
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Proxy]:
        path = self._folder / ".s.PGSQL.5432"
        async with await asyncio.start_unix_server(self._serve, path):
            yield self
            while self._tasks:
                for task in self._tasks:
                    task.cancel()
                await asyncio.sleep(0.01)

    async def _passing(self) -> None:
        while self.stalled:  # noqa: ASYNC110 — a thread unsets it
            await asyncio.sleep(0.01)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server.startswith("/"):
            path = f"{self._server}/.s.PGSQL.{self._port}"
            upward, out = await asyncio.open_unix_connection(path)
        else:
            upward, out = await asyncio.open_connection(self._server, self._port)
        asked = False
        prepared: set[bytes] = set()

        async def requests() -> None:
            nonlocal asked
            while data := await reader.read(65_536):
                if self.only and (names := _prepares(data, self.only)):
                    prepared.update(names)
                    asked = False
                else:
                    asked = self.armed and (not self.only or any(n in data for n in prepared))
                await self._passing()
                out.write(data)

        async def answers() -> None:
            while data := await upward.read(65_536):
                if self.armed and asked:
                    self.armed = False
                    self.cut += 1
                    break
                await self._passing()
                writer.write(data)

        pair = [asyncio.ensure_future(requests()), asyncio.ensure_future(answers())]
        self._tasks.update(pair)
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await asyncio.wait(pair, return_when=asyncio.FIRST_COMPLETED)
        for task in pair:
            task.cancel()
        await asyncio.gather(*pair, return_exceptions=True)
        for stream in (writer, out):
            stream.close()
            with contextlib.suppress(ConnectionError, BrokenPipeError):
                await stream.wait_closed()
        self._tasks.difference_update(pair)
