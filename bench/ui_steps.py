"""Flows for `bench.ui`; imported by the process that fills the store and by the worker it starts."""

from __future__ import annotations

import asyncio

from locktender import flow, step, wait_event

FAILS_EVERY = 100


@step
async def work(n: int) -> int:
    if n % FAILS_EVERY == 0:
        raise ConnectionError(f"order {n}: the warehouse closed the connection")
    return n


@step
async def pass_on(n: int) -> int:
    return n


@step(pool="bench db")
async def hold(n: int) -> int:
    await asyncio.sleep(36_000)
    return n


@flow(name="bench order")
def order(n: int) -> int:
    return work(n)


@flow(name="bench map")
def many(items: list[int]) -> list[int]:
    return pass_on.map(items)


@flow(name="bench hold")
def holding(items: list[int]) -> list[int]:
    return hold.map(items)


@flow(name="bench approval")
def approval(n: int) -> object:
    return wait_event("approved", match={"order": n})
