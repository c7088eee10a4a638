"""Flows for `bench.cluster`; imported by the client and by every worker it starts."""

from __future__ import annotations

import asyncio
import time

from bench import engine  # noqa: F401 — its flow of a real graph runs on workers too
from locktender import flow, step


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
def single(x: int) -> int:
    return noop(x)


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
