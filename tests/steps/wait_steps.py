"""Steps for runs that wait."""

from __future__ import annotations

from typing import Any

from locktender import flow, sleep, step, wait_event
from locktender.testing import recording


@step
async def noted(n: int) -> int:
    with recording("noted", label=str(n)):
        return n


@flow
def note(n: int) -> int:
    return noted(n)


@step
async def joined(a: int, b: int) -> int:
    with recording("joined", label=str(a)):
        return a + b


@step
async def cleaned(n: int) -> int:
    with recording("cleaned", label=str(n)):
        return n


@flow
def diamond(n: int) -> int:
    """A sleep in one of two branches."""
    first = noted(n)
    return joined(sleep("2s", first), noted(first))


@flow
def long_sleep(n: int) -> int:
    first = noted(n)
    slept = sleep("1h", first)
    cleaned.with_options(run_if="always", after=slept)(n)
    return joined(slept, 1)


@step
async def answered(value: Any) -> Any:
    with recording("answered", label=str(value)):
        return value


@flow
def approval(n: int) -> Any:
    """It takes two answers, one after the other."""
    first = answered.with_options(name="first")(wait_event("go", name="a", after=noted(n)))
    return answered(wait_event("go", name="b", after=first))


@flow
def told(n: int) -> Any:
    return answered(wait_event("news", match={"n": n}))


@flow
def booking(n: int) -> Any:
    """Between two steps it waits for an answer."""
    return answered(wait_event("go", after=noted(n)))
