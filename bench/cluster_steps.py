"""Flows for `bench.cluster`; imported by the client and by every worker it starts."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime

from bench import engine  # noqa: F401 — its flow of a real graph runs on workers too
from locktender import flow, sleep, sleep_until, step, wait_event


@step
async def plain(x: int) -> int:
    return x


@step(pools={"wide": 1})
async def noop(x: int) -> int:
    return x


@step
async def stamp(_n: int) -> float:
    return time.time()


@step(pools={"ten": 1})
async def sleep_in_ten(seconds: float) -> None:
    await asyncio.sleep(seconds)


@step(pools={"one": 1})
async def turn(_n: int) -> tuple[float, float]:
    began = time.time()
    await asyncio.sleep(0.002)
    return began, time.time()


@step
async def five_ms(_n: int) -> None:
    await asyncio.sleep(0.005)


@step(needs={"place": "nowhere"})
async def nowhere(n: int) -> int:
    return n


@flow
def never(n: int) -> int:
    return nowhere(n)


@flow
def many(items: list[int]) -> list[int]:
    return noop.map(items)


@flow
def plains(items: list[int]) -> list[int]:
    """As ours in `make bench-peers`: the steps need no pool."""
    return plain.map(items)


@flow
def single(x: int) -> int:
    return plain(x)


@flow
def once(n: int) -> float:
    return stamp(n)


@flow
def pool_of_ten(items: list[float]) -> None:
    sleep_in_ten.map(items)


@flow
def turns(items: list[int]) -> list[tuple[float, float]]:
    return turn.map(items)


@flow
def fives(items: list[int]) -> None:
    five_ms.map(items)


@flow
def nap() -> object:
    """It sleeps for as long as a benchmark lasts."""
    return sleep("10h")


@flow
def alarm(at: datetime) -> float:
    return stamp(sleep_until(at, 1))


@flow
def told(topic: str) -> object:
    return wait_event("news", match={"topic": topic})


@flow
def answered() -> float:
    return stamp(wait_event("go"))


@flow(name="bench tick")
def ticked(n: int) -> float:
    return stamp(n)
