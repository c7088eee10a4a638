"""Tasks that run beside others: each that ends by an exception leaves a line in the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, NoReturn

from locktender.base.errors import StoreError

log: logging.Logger = logging.getLogger(__name__)


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels and waits. Unlike a suppressed `await task`, it does not swallow the caller's own cancellation."""
    several = list(tasks)
    for task in several:
        task.cancel()
    await asyncio.gather(*several, return_exceptions=True)


async def repeat_forever(
    work: Callable[[], Awaitable[object]], what: str, pause_seconds: float
) -> NoReturn:
    """Does `work` again and again. A failure is logged, and the next try comes after a pause.

    `what` completes "failed to …".
    """
    while True:
        try:
            await work()
        except StoreError as error:
            log.warning("failed to %s: %s", what, error)
            await asyncio.sleep(pause_seconds)
        except Exception:
            log.exception("failed to %s: internal error", what)
            await asyncio.sleep(pause_seconds)


class BackgroundTasks:
    """Tasks that no code awaits."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def start(self, work: Coroutine[Any, Any, object], what: str) -> None:
        """`what` completes "failed to …"."""
        task = asyncio.get_running_loop().create_task(work, name=what)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def wait(self) -> None:
        """Returns when none is left, also of those that others have started meanwhile."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def end(self) -> None:
        """Cancels all and waits for their end."""
        await end_tasks(self._tasks)

    def _done(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("failed to %s: internal error", task.get_name(), exc_info=error)
