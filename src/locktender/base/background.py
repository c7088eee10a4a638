"""Background tasks and their end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels and waits. Unlike a suppressed `await task`, it does not swallow the caller's own cancellation."""
    several = list(tasks)
    for task in several:
        task.cancel()
    await asyncio.gather(*several, return_exceptions=True)
