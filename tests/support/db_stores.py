"""Stores of both kinds with real runs in them, for the tests of `locktender db`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from locktender import embedded_async, flow, step
from locktender.observe.checkpoint import HistoryMarks, audit
from locktender.store.open import settings_for, store_for
from locktender.store.protocol import Store
from locktender.testing import load_history

LARGE = 300_000
"""Characters: kept as a blob."""


@step(pool="db")
async def fetch(x: int) -> int:
    await asyncio.sleep(0.001)
    return x


@step
async def large(x: int) -> str:
    return str(x) * LARGE


@step
async def total(xs: list[int]) -> int:
    return sum(xs)


@step
async def until(path: str) -> str:
    while not Path(path).exists():  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.01)
    return "there"


@flow
def build(n: int = 3):
    return total(fetch.map(range(n), window=2))


@flow
def big(x: int):
    return large(x)


@flow
def waiting(path: str):
    return until(path)


async def fill(url: str, runs: int, start: int = 0) -> None:
    """An engine works `runs` runs off."""
    async with embedded_async(url, max_concurrent_runs=4) as engine:
        await engine.pools.set("db", limit=2)
        several = [await engine.submit(build, n=3 + n % 3) for n in range(start, start + runs)]
        for run in several:
            await run.result(timeout="60s")


def store_at(url: str) -> Store:
    return store_for(settings_for(url, {}))


async def judged(url: str) -> tuple[list[str], HistoryMarks]:
    """What the checker finds in what is left of the history, and what it says of itself."""
    store = store_at(url)
    await store.open()
    try:
        done = await audit(store)
        return [str(violation) for violation in done.violations], done.marks
    finally:
        await store.close()


async def numbers(url: str) -> tuple[int, int, int]:
    """The highest numbers of runs and of the history, and the highest token."""
    events = load_history(url).events
    return (
        max(event.run for event in events),
        max(event.seq for event in events),
        max(event.token for event in events),
    )
