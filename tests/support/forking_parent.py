"""A process that forks while it holds the write lock of its store: python forking_parent.py URL

The child prints its pid, and what it is told when it uses the store of its parent.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import time

from locktender.base.config import Settings
from locktender.base.errors import StoreError
from locktender.base.model import WorkerRow
from locktender.store.open import store_for
from locktender.store.protocol import Heartbeat, Store
from locktender.store.sqlite.store import SqliteStore

FOREVER = 600.0


def child(store: Store) -> None:
    said = ""
    try:
        asyncio.run(store.workers())
    except StoreError as error:
        said = str(error)
    sys.stdout.write(f"{os.getpid()} {said}\n")
    sys.stdout.flush()
    time.sleep(FOREVER)


def fork(store: Store) -> None:
    multiprocessing.get_context("fork").Process(target=child, args=[store]).start()
    time.sleep(FOREVER)


async def main(url: str) -> None:
    store = store_for(Settings(url=url))
    await store.open()
    row = WorkerRow("forked", "host", 1, "0", {"async": 1}, 1, 1)
    await store.heartbeat(Heartbeat(row, 3_600_000_000))
    if isinstance(store, SqliteStore):
        await store._write(lambda _: fork(store))  # pyright: ignore[reportPrivateUsage]
    fork(store)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
