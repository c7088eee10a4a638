"""A proxy to PostgreSQL that lives in a thread, for tests that are not async themselves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.support.postgres_proxy import Proxy

START_SECONDS = 60.0


@contextmanager
def proxied(url: str, folder: Path) -> Generator[Proxy]:
    """A proxy in front of the server at `url`; its own url has its socket in `folder`."""
    folder.mkdir(exist_ok=True)
    proxy = Proxy(url, folder)
    ready, done = threading.Event(), threading.Event()

    async def serve() -> None:
        async with proxy.open():
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(START_SECONDS)
    try:
        yield proxy
    finally:
        done.set()
        thread.join()
