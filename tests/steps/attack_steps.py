"""Steps and flows for `tests/support/attack.py`: every body records itself under the name of what bounds it."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import ExitStack
from typing import Any

from locktender import current, flow, step
from locktender.testing import recording

POOLS = {"db": 2, "heavy": 4, "mixed": 3}
HEAVY = 2
WINDOW = 2
TENANTS = ("a", "b")
TAG_LIMIT = 2
LARGE = 300_000
"""Above `blob_over`: stored apart."""
MANY = 1_000_000


def recorded(*names: str, weight: int = 1) -> ExitStack:
    opened = ExitStack()
    for name in names:
        opened.enter_context(recording(name, weight=weight))
    return opened


def fail_sometimes() -> None:
    if random.random() < 0.1:
        raise ValueError("as planned")


@step(pool="db", retries=MANY, retry_delay="100ms", max_abandons=MANY)
async def on_loop(item: int, seconds: float) -> int:
    with recorded("db"):
        await asyncio.sleep(seconds)
        fail_sometimes()
    return item + 1


@step(pools={"heavy": HEAVY}, retries=MANY, retry_delay="100ms", max_abandons=MANY)
def in_thread(item: int, seconds: float) -> int:
    with recorded("heavy", weight=HEAVY):
        time.sleep(seconds)
        fail_sometimes()
    return item + 1


@step(pool="mixed", executor="process", retries=MANY, retry_delay="100ms", max_abandons=MANY)
def in_process(item: int, seconds: float) -> int:
    with recorded("mixed"):
        time.sleep(seconds)
        fail_sometimes()
    return item + 1


@step(pool="mixed", max_abandons=MANY)
async def in_window(item: int, seconds: float) -> int:
    with recorded("mixed", f"window/{current(required=True).run}"):
        await asyncio.sleep(seconds)
    return item + 1


@step(pool="rated", max_abandons=MANY)
async def rated(item: int) -> int:
    with recorded("rated"):
        return item + 1


@step(max_abandons=MANY)
def tenant_of(item: int, seconds: float, tenant: str) -> int:
    with recorded(f"tenant/{tenant}"):
        time.sleep(seconds)
    return item + 1


@step(max_abandons=MANY)
def large(item: int) -> str:
    return "x" * (LARGE + item)


@step(max_abandons=MANY)
async def size(text: str) -> int:
    return len(text) - LARGE + 1


@step(timeout="300ms", max_abandons=MANY)
async def late() -> int:
    with recorded("late"):
        await asyncio.sleep(MANY)
    return 0


@step(max_abandons=MANY)
async def total(values: list[int]) -> int:
    return sum(values)


@step(max_abandons=MANY)
async def cleaned() -> None:
    with recorded("cleaned"):
        pass


@flow
def chain(item: int, seconds: float) -> int:
    return in_process(in_thread(on_loop(item, seconds), seconds), seconds)


@flow
def window(item: int, seconds: float) -> int:
    values = in_window.map([item] * 5, window=WINDOW, seconds=seconds)
    return total(values)


@flow(sequential=True)
def tenant(item: int, seconds: float, name: str) -> int:
    return tenant_of(tenant_of(item, seconds, name), seconds, name)


@flow
def rate(item: int) -> int:
    return total(rated.map([item] * 3))


@flow
def blob(item: int) -> int:
    return size(large(item))


@flow
def failing() -> Any:
    result = late()
    cleaned.with_options(run_if="always", after=[result])()
    return result


def victim(number: int) -> Any:
    """A flow whose graph no other run has."""

    @flow(name=f"victim-{number}")
    def made(item: int, seconds: float) -> int:
        first = on_loop.with_options(name=f"first-{number}")(item, seconds)
        return in_thread(first, seconds)

    return made


def expected(kind: str, item: int) -> int:
    """What a run of this kind comes to."""
    match kind:
        case "chain":
            return item + 3
        case "window":
            return 5 * (item + 1)
        case "rate":
            return 3 * (item + 1)
        case "blob":
            return item + 1
        case _:
            return item + 2
