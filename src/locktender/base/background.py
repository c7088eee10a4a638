"""Tasks and threads that run beside others: each that ends by an exception leaves a line in the log.

What must go on is repeated (`repeat_forever`, `until_done`). `start_task` and `start_thread` log the exception of
everything else, and call `failed` where something has to happen then.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, NoReturn, TypeVar

from locktender.base.errors import StoreError

log: logging.Logger = logging.getLogger(__name__)
T = TypeVar("T")


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels and waits. Unlike a suppressed `await task`, it does not swallow the caller's own cancellation."""
    several = list(tasks)
    for task in several:
        task.cancel()
    await asyncio.gather(*several, return_exceptions=True)


async def to_its_end(work: Coroutine[Any, Any, object]) -> None:
    """Waits for `work`, also when the caller is cancelled meanwhile, however often; that goes on afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def repeat_forever(
    work: Callable[[], Awaitable[object]], what: str, pause_seconds: float
) -> NoReturn:
    """Does `work` again and again. A failure is logged, and the next try comes after a pause.

    `what` completes "failed to …".
    """
    while True:
        await until_done(work, what, pause_seconds)


async def until_done(work: Callable[[], Awaitable[T]], what: str, pause_seconds: float) -> T:
    """The result of `work`, tried again after each failure. Failures are logged as `repeat_forever` logs them."""
    while True:
        try:
            return await work()
        except StoreError as error:
            log.warning("failed to %s: %s", what, error)
        except Exception:
            log.exception("failed to %s: internal error", what)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Not this task was cancelled, but what it waited for: a call to a thread whose loop has ended.
            log.exception("failed to %s: what it waited for was cancelled", what)
        await asyncio.sleep(pause_seconds)


def start_task(
    work: Coroutine[Any, Any, T], what: str, failed: Callable[[], None] | None = None
) -> asyncio.Task[T]:
    """A task whose exception is logged; `failed` is called after that. `what` completes "failed to …"."""

    def done(task: asyncio.Task[T]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("failed to %s: internal error", what, exc_info=error)
            if failed is not None:
                failed()

    task = asyncio.get_running_loop().create_task(work, name=f"locktender: {what}")
    task.add_done_callback(done)
    return task


def start_thread(
    target: Callable[..., object],
    name: str,
    *args: object,
    failed: Callable[[BaseException], None] | None = None,
) -> threading.Thread:
    """A daemon thread whose exception is logged; `failed` is called after that, in the thread."""

    def run() -> None:
        try:
            target(*args)
        except BaseException as error:
            log.critical("thread %s failed: internal error", name, exc_info=error)
            if failed is not None:
                failed(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


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
