"""What one process of a cluster has, inside the test's own: an engine, and what it tells by HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from locktender.client.core import Core
from locktender.engine import Engine
from locktender.server.options import HttpOptions
from locktender.server.web import bind, port_of, serving
from locktender.store.open import settings_for

PATIENCE = 60.0


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str

    @property
    def data(self) -> Any:
        return json.loads(self.text)


@asynccontextmanager
async def process(
    url: str | os.PathLike[str], *, lead: bool, work: bool, **settings: object
) -> AsyncIterator[tuple[Core, Engine]]:
    """A server (`lead`), a worker (`work`), or both."""
    core = await Core.open(settings_for(url, settings), engine=True, lead=lead, work=work)
    assert core.engine is not None
    try:
        yield core, core.engine
    finally:
        await core.close(0)


@asynccontextmanager
async def served(
    core: Core, *, api: bool = False, options: HttpOptions | None = None
) -> AsyncIterator[int]:
    """The port on which `core` tells of itself."""
    with bind("127.0.0.1", 0) as listener:
        async with serving(core, listener, demand=True, api=api, options=options):
            yield port_of(listener)


async def fetch(
    port: int,
    path: str,
    method: str = "GET",
    body: object = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """`body`: bytes as they are, anything else as JSON."""

    def ask() -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            given = {"content-type": "application/json"} if body is not None else {}
            sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            connection.request(method, path, sent, {**given, **(headers or {})})
            got = connection.getresponse()
            named = {key.lower(): value for key, value in got.getheaders()}
            return Answer(got.status, named, got.read().decode())
        finally:
            connection.close()

    return await asyncio.to_thread(ask)


async def until(ready: Callable[[], object | Awaitable[object]], what: str) -> None:
    async def asked() -> object:
        answer = ready()
        return await answer if isinstance(answer, Awaitable) else answer

    try:
        async with asyncio.timeout(PATIENCE):
            while not await asked():  # noqa: ASYNC110 — of an engine beside the test, or elsewhere
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"waited {PATIENCE} s for {what}, in vain") from None
