"""Where clients come from: embedded() runs an engine in this process, connect() only asks one."""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any

from locktender.base.config import Settings
from locktender.base.importing import refuse_while_importing
from locktender.client.client import Client
from locktender.client.client_async import AsyncClient
from locktender.client.core import Core
from locktender.client.more_workers import MoreWorkers, more_workers
from locktender.client.provisioners import GivenProvisioner
from locktender.store.open import Url, settings_for
from locktender.worker.executors.sources import refuse_too_deep

Prepared = tuple[Settings, MoreWorkers | None]


def embedded(
    url: Url | None = None, *, provisioner: GivenProvisioner | None = None, **overrides: Any
) -> Client:
    """Client, coordinator and worker in this process, on a SQLite file (default `.locktender/locktender.db`).

    `overrides` are settings by name: `embedded(max_concurrent_runs=4, grace="5s")`.
    With `max_workers=3` up to three more worker processes are started when this
    one cannot take what waits; they load the files that define the steps, end
    themselves when idle, and all end with the engine. `provisioner` starts them
    elsewhere: any `locktender.Provisioner`, or who makes one from the settings.
    Close it, or use it in a `with` block.
    """
    settings, more = _prepared(url, provisioner, overrides)
    return Client(settings, engine=True, more=more)


def connect(url: Url | None = None) -> Client:
    """Only a client: it submits and asks; an engine in another process does the work.

    A store that is not there yet is made, as by `embedded()`: who submits may come first.
    """
    return Client(settings_for(url, {}), engine=False)


class Opening:
    """An async client that is not open yet: `await` it, or use it in `async with`."""

    def __init__(self, prepared: Callable[[], Prepared], *, engine: bool) -> None:
        self._prepared = prepared
        self._engine = engine
        self._client: AsyncClient | None = None

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        return self._open().__await__()

    async def _open(self) -> AsyncClient:
        settings, more = self._prepared()
        return AsyncClient(await Core.open(settings, engine=self._engine, more=more))

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


def embedded_async(
    url: Url | None = None, *, provisioner: GivenProvisioner | None = None, **overrides: Any
) -> Opening:
    """As `embedded()`, on the caller's loop: `async with embedded_async() as client:`, or `await` it."""
    return Opening(lambda: _prepared(url, provisioner, overrides), engine=True)


def connect_async(url: Url | None = None) -> Opening:
    """As `connect()`, on the caller's loop: `async with connect_async() as client:`, or `await` it."""
    return Opening(lambda: (settings_for(url, {}), None), engine=False)


def _prepared(
    url: Url | None, provisioner: GivenProvisioner | None, overrides: dict[str, Any]
) -> Prepared:
    refuse_while_importing("starts an engine")
    refuse_too_deep()
    settings = settings_for(url, overrides)
    return settings, more_workers(settings, provisioner)
