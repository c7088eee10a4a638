"""Steps for tests of how work is spread: each tells in which process it ran."""

from __future__ import annotations

import asyncio
import os

from locktender import flow, step


@step
async def where(seconds: float) -> int:
    await asyncio.sleep(seconds)
    return os.getpid()


@flow
def wheres(seconds: list[float]) -> list[int]:
    return where.map(seconds)
