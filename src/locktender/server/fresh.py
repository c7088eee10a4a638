"""One answer for all requests within a while.

The store is read at most once at a time, however many clients ask, and a client
that disconnects does not cancel the answer of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
SHARE = 10
"""What takes long is made less often: at most this share of the time goes into it."""


class Fresh(Generic[T]):
    def __init__(self, make: Callable[[], Awaitable[T]], seconds: float) -> None:
        """An answer of `make` serves for `seconds`, or longer if it took long."""
        self._make = make
        self._seconds = seconds
        self._task: asyncio.Task[T] | None = None
        self._good_until = 0.0

    async def get(self, patience_seconds: float) -> T:
        """The answer, or what `make` raised. `TimeoutError`: there is none yet; it is still being made."""
        task = self._task
        if task is None or (task.done() and self._now() >= self._good_until):
            task = self._task = asyncio.create_task(self._made())
            task.add_done_callback(_seen)
        await asyncio.wait({task}, timeout=patience_seconds)
        if not task.done():
            raise TimeoutError
        return task.result()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _made(self) -> T:
        began = self._now()
        try:
            return await self._make()
        finally:
            took = self._now() - began
            self._good_until = self._now() + max(self._seconds, took * SHARE)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _seen(task: asyncio.Task[Any]) -> None:
    """Reads the error of an answer whose clients have all disconnected, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()
