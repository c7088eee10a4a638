"""Flows whose runs stop at chosen places, so that a fault can be put into their rows there."""

from __future__ import annotations

import threading
from pathlib import Path

from locktender import Fatal, flow, step

GATE = "gate"
LEFT, INSIDE = threading.Event(), threading.Event()


@step
async def first(x: int) -> int:
    return x + 1


@step(pool=GATE, retries=2)
async def second(x: int, path: str) -> list[int]:
    if path and not Path(path).exists():  # noqa: ASYNC240
        raise Fatal("not yet")
    return [x, x + 1]


@step
async def item(x: int, factor: int) -> int:
    return x * factor


@step
async def total(xs: list[int]) -> int:
    return sum(xs)


def _shape(x: int, path: str):
    pairs = second(first(x), path)
    return total(item.map(pairs, factor=2, window=1))


@flow(tags={"team": "search"}, max_parallel=4)
def ordinary(x: int, path: str = ""):
    return _shape(x, path)


@flow(tags={"team": "search"}, max_parallel=4)
def victim(x: int, path: str = ""):
    return _shape(x, path)


@step(pool=GATE)
def inside(x: int) -> int:
    INSIDE.set()
    assert LEFT.wait(120)
    return x


@flow
def staying(x: int):
    return total(item.map([inside(x)], factor=3))


@flow
def passing(x: int):
    return inside(x)


@step
async def large(n: int) -> str:
    return "x" * n


@step
async def length(text: str) -> int:
    return len(text)


@flow
def with_blob(text: str):
    return length(text)


def result_of(x: int) -> int:
    return 2 * ((x + 1) + (x + 2))


@step(pool="rated")
async def rated(x: int) -> int:
    return x


@step(pool="hurt")
async def hurt(x: int) -> int:
    return x


@flow(tags={"tenant": "acme", "team": "search"})
def through_rate(x: int):
    return rated(first(x))


@flow
def through_hurt(x: int):
    return hurt(x)
