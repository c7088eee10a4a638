"""Flows for `bench.why`: many different steps that wait for one pool, or for a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from locktender import flow, step

MOST = 100


def _different(kind: str, number: int, pools: dict[str, int]) -> Any:
    async def body(seconds: float) -> None:
        await asyncio.sleep(seconds)

    body.__name__ = body.__qualname__ = f"{kind}_{number}"
    made: Callable[[float], Awaitable[None]] = body
    return step(pools=pools)(made)


POOLED: list[Any] = [_different("pooled", number, {"narrow": 1}) for number in range(MOST)]
FREE: list[Any] = [_different("free", number, {}) for number in range(MOST)]


@step(pools={"narrow": 1})
async def item(_n: int) -> None:
    return None


@flow
def pooled(count: int, seconds: float = 0.0) -> list[None]:
    return [each(seconds) for each in POOLED[:count]]


@flow
def free(count: int, seconds: float = 0.0) -> list[None]:
    return [each(seconds) for each in FREE[:count]]


@flow
def items(numbers: list[int]) -> list[None]:
    return item.map(numbers)
