"""Steps and flows for the tests of bounded dispatch; imported by the tests and by every process they start."""

from __future__ import annotations

import asyncio

from locktender import flow, step
from locktender.testing import recording

GPU = {"gpu": "a100"}


@step(needs=GPU)
async def on_gpu(n: int) -> int:
    with recording("gpu", label=str(n)):
        return n


@step(needs=GPU, dispatch_deadline="1s")
async def on_gpu_soon(n: int) -> int:
    with recording("gpu", label=str(n)):
        return n


@step(pools={"shut": 1})
async def in_pool(n: int) -> int:
    with recording("shut", label=str(n)):
        return n


@step(pools={"shut": 1}, queue_timeout="1s")
async def in_pool_soon(n: int) -> int:
    with recording("shut", label=str(n)):
        return n


@step(pools={"drip": 1})
async def drop(n: int) -> int:
    with recording("drip", label=str(n)):
        return n


@step
async def brief(n: int) -> int:
    with recording("brief", label=str(n)):
        return n


@step
async def steady(n: int, seconds: float) -> int:
    with recording("steady", label=str(n)):
        await asyncio.sleep(seconds)
    return n


@flow
def gpu_by_step(n: int) -> int:
    return on_gpu_soon(n)


@flow(dispatch_deadline="2s")
def gpu_by_flow(n: int) -> int:
    return on_gpu(n)


@flow
def gpu_by_default(n: int) -> int:
    return on_gpu(n)


@flow
def pool_by_step(n: int) -> int:
    return in_pool_soon(n)


@flow(queue_timeout="2s")
def pool_by_flow(n: int) -> int:
    return in_pool(n)


@flow
def pool_by_default(n: int) -> int:
    return in_pool(n)


@flow
def drops(items: list[int]) -> list[int]:
    return drop.map(items)


@flow
def single(n: int) -> int:
    return brief(n)


@flow
def steadily(n: int, seconds: float) -> int:
    return steady(n, seconds)
