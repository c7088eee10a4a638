"""Flows that wait, for tests that kill processes between any two commits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from locktender import flow, sleep, step, wait_event
from locktender.testing import eventually, recording

NIGHT_SECONDS = 1.2
"""A night's run lasts longer than the second between two ticks."""


@step
async def noted(n: int) -> int:
    with recording("noted", label=str(n)):
        return n


@step
async def joined(a: int, b: int) -> int:
    with recording("joined", label=str(a)):
        return a + b


@flow
def diamond(n: int) -> int:
    first = noted(n)
    return joined(sleep("700ms", first), noted(first))


@step
async def decided(word: str, value: Any) -> list[Any]:
    with recording("decided", label=word):
        return [word, value]


@step
async def chosen(a: Any, b: Any) -> Any:
    return a if b is None else b


@flow
def approval(n: int, timeout: float) -> Any:
    """What is not approved in time takes the other branch."""
    answer = wait_event("approved", timeout=timeout, default=None, after=noted(n))
    yes = decided.with_options(when=answer)("approved", answer)
    late = decided.with_options(when=answer == None, name="late")("late", n)  # noqa: E711
    return chosen.with_options(run_if="always")(yes, late)


@step(executor="thread")
def begun(latch: str) -> int:
    """Goes on when the events have been sent."""
    with recording("begun"):
        eventually(Path(latch).exists, "120s")
    return 1


@flow
def early(latch: str) -> list[Any]:
    """Both events come before the waits for them, which take them in their order."""
    first = wait_event("go", name="first", after=begun(latch))
    second = wait_event("go", name="second", after=first)
    return decided(first, second)


@flow
def told(case: str) -> Any:
    return wait_event("news", match={"case": case})


@step
async def slept(overlap: str) -> str:
    with recording(overlap):
        await asyncio.sleep(NIGHT_SECONDS)
    return overlap


@flow(name="kill night")
def night(overlap: str) -> str:
    return slept(overlap)
