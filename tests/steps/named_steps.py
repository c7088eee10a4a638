"""A flow that is submitted by name: the tests that submit it do not import this file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from locktender import flow, step
from locktender.testing import eventually, recording


@dataclass
class Order:
    item: str
    count: int = 1


@step
async def price(order: Order) -> int:
    with recording("price", label=order.item):
        return 3 * order.count


@step
async def total(prices: list[int], extra: int) -> int:
    return sum(prices) + extra


@flow(name="shop bill", tags={"team": "shop"}, priority=4, max_parallel=2)
def bill(orders: list[Order], extra: int = 10, mode: Literal["a", "b"] = "a") -> int:
    return total(price.map(orders), extra)


@flow(name="shop broken")
def broken(n: int) -> int:
    raise ValueError(f"no bill for {n}")


@flow(name="shop slow trace")
def slow(latch: str, n: int) -> int:
    """Its trace lasts until the file is there."""
    with recording("tracing"):
        eventually(Path(latch).exists, timeout=60)
    return price(Order("x", n))
