"""A worker in a process of its own: `python -m headgate.cli.worker_process SOURCE URL SETTINGS`.

It takes tasks that another process offers and never leads. It ends when it is
told to, when its lease is lost, or when whoever started it has gone: then its
standard input ends. SETTINGS is JSON and should be what the leader has: an engine
declares the limits of its settings when it joins.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import msgspec

from headgate.cli.targets import load_source, parse
from headgate.client.opening import settings_for, store_for
from headgate.stages.engine import Engine

GRACE_US = 1_000_000


async def work(source: str, url: str, overrides: dict[str, Any]) -> None:
    load_source(parse(source))
    settings = settings_for(url, {"exit_when_stuck": True, **overrides})
    store = store_for(settings)
    await store.open()
    try:
        engine = Engine(store, settings, lead=False)
        await engine.start()
        sys.stdout.write(f"{engine.worker.id}\n")
        sys.stdout.flush()
        await _until_told(engine)
        await engine.stop(GRACE_US)
    finally:
        await store.close()


async def _until_told(engine: Engine) -> None:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    loop.add_reader(0, lambda: None if os.read(0, 4096) else told.set())
    lost = asyncio.create_task(engine.lost.wait())
    waiting = asyncio.create_task(told.wait())
    await asyncio.wait({lost, waiting}, return_when=asyncio.FIRST_COMPLETED)
    loop.remove_reader(0)
    lost.cancel()
    waiting.cancel()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2], msgspec.json.decode(sys.argv[3])))
