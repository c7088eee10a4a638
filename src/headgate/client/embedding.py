"""Where clients come from: embedded() runs an engine in this process, connect() only asks one."""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any

from headgate.base.config import Settings
from headgate.client.client import Client
from headgate.client.client_async import AsyncClient
from headgate.client.core import Core
from headgate.client.opening import Url, settings_for


def embedded(url: Url | None = None, **overrides: Any) -> Client:
    """Client, coordinator and worker in this process, on a SQLite file (default `.headgate/headgate.db`).

    `overrides` are settings by name: `embedded(max_concurrent_runs=4, grace="5s")`.
    Close it, or use it in a `with` block.
    """
    return Client(settings_for(url, overrides), engine=True)


def connect(url: Url | None = None) -> Client:
    """Only a client: it submits and asks; an engine in another process does the work.

    A store that is not there yet is made, as by `embedded()`: who submits may come first.
    """
    return Client(settings_for(url, {}), engine=False)


class Opening:
    """An async client that is not open yet: `await` it, or use it in `async with`."""

    def __init__(self, settings: Callable[[], Settings], *, engine: bool) -> None:
        self._settings = settings
        self._engine = engine
        self._client: AsyncClient | None = None

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        return self._open().__await__()

    async def _open(self) -> AsyncClient:
        return AsyncClient(await Core.open(self._settings(), engine=self._engine))

    async def __aenter__(self) -> AsyncClient:
        self._client = await self._open()
        return await self._client.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._client is not None:
            await self._client.__aexit__(kind, error, trace)


def embedded_async(url: Url | None = None, **overrides: Any) -> Opening:
    """As `embedded()`, on the caller's loop: `async with embedded_async() as hg:`, or `await` it."""
    return Opening(lambda: settings_for(url, overrides), engine=True)


def connect_async(url: Url | None = None) -> Opening:
    """As `connect()`, on the caller's loop: `async with connect_async() as hg:`, or `await` it."""
    return Opening(lambda: settings_for(url, {}), engine=False)
