"""One suite of the client over all ways to reach an engine: a SQLite file, PostgreSQL, and a server by HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from locktender import AsyncClient, Client, connect, connect_async, embedded
from locktender.client.core import Core
from locktender.server.web import bind, port_of, serving


@contextmanager
def served(engine: Client) -> Iterator[str]:
    """The address of a server over the store of an engine of this process."""
    core, call = engine._core, engine._bridge.call
    stack = AsyncExitStack()
    with bind("127.0.0.1", 0) as listener:
        call(stack.enter_async_context(serving(core, listener, demand=True, api=True)))
        try:
            yield f"http://127.0.0.1:{port_of(listener)}"
        finally:
            call(stack.aclose())


@contextmanager
def reached(how: str, engine: Client) -> Iterator[Client]:
    """A client of `engine`: itself, or one of a server in front of it."""
    if how != "http":
        yield engine
        return
    with served(engine) as address, connect(address) as client:
        yield client
