"""The bridge from sync code to the async core: one event loop in a thread of its own.

Any number of threads may call across. The loop's own thread may not: it would
wait for itself.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, Self, TypeVar

from locktender.base.config import Settings
from locktender.base.errors import LocktenderError
from locktender.client.core import Core
from locktender.client.guard import ClientGuard, closed
from locktender.store.protocol import Store

if TYPE_CHECKING:
    from locktender.client.namespaces import SyncRuns

T = TypeVar("T")
log: logging.Logger = logging.getLogger(__name__)


def documented_as(other: Callable[..., Any]) -> Callable[[T], T]:
    """The sync method is described by the words of the async one."""

    def describe(method: T) -> T:
        method.__doc__ = other.__doc__
        return method

    return describe


class Bridge:
    def __init__(self) -> None:
        self.guard: ClientGuard = ClientGuard()
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._stopped = False
        # A daemon: a process that ends without close() must not wait for a loop that never does.
        self._thread = threading.Thread(target=self._run, name="locktender-loop", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, done on the loop. An interrupt here stops the work there."""
        future = self.start(work)
        try:
            return future.result()
        except CancelledError:
            raise closed() from None  # the loop ended before the work did
        except BaseException:
            # KeyboardInterrupt in this thread, mostly; a finished future takes no notice.
            future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            self.guard.check_process()
            if threading.current_thread() is self._thread or self._is_async_body():
                raise LocktenderError(
                    "a sync client cannot be used in an async step of its own engine, nor on its own event loop:"
                    " it would wait for itself.",
                    hint="In an async step use locktender.connect_async(), or make the step a plain def.",
                )
            # Under the lock, so that nothing is given to a loop that has stopped.
            with self._lock:
                if self._stopped:
                    raise closed()
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        except LocktenderError:
            work.close()
            raise

    def _is_async_body(self) -> bool:
        """Whether an async step of the engine on this loop calls: it would block all async steps."""
        executors = sys.modules.get("locktender.worker.executors.protocol")
        if executors is None:
            return False  # no engine was ever loaded here
        attempt = executors.CURRENT.get(None)
        if attempt is None or attempt.host is None or attempt.host.loop is not self._loop:
            return False
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return False  # a step in a thread
        return True

    def iterate(self, items: AsyncGenerator[T]) -> Generator[T]:
        """What `items` yields, each asked for on the loop. Closed here, it is closed there."""

        async def following() -> tuple[T] | None:
            async for item in items:
                return (item,)
            return None

        try:
            while (found := self.call(following())) is not None:
                yield found[0]
        finally:
            self.call(items.aclose())

    def run_soon(self, callback: Callable[[], None]) -> None:
        """Runs `callback` on the loop, without waiting for it."""
        with self._lock:
            if not self._stopped:
                self._loop.call_soon_threadsafe(callback)

    def stop(self) -> None:
        """Ends the loop and its thread. Again: nothing."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        except BaseException as error:
            # Raised by a callback: SystemExit and KeyboardInterrupt leave through the loop.
            log.critical(
                "the event loop of this client failed: the client is closed", exc_info=error
            )
            with self._lock:
                self._stopped = True
        finally:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


class StoreReader:
    """Reads a store past the client's methods, from sync code: one loop and one connection of its own."""

    def __init__(self, settings: Settings) -> None:
        """Raises `NotFound` where there is no store yet."""
        self._bridge = Bridge()
        try:
            opening = Core.open(settings, engine=False, creates=False, brief=True)
            self.core: Core = self._bridge.call(opening)
        except BaseException:
            self._bridge.stop()
            raise

    @property
    def store(self) -> Store:
        return self.core.store

    @property
    def runs(self) -> SyncRuns:
        """The client's, over the same connection."""
        from locktender.client.namespaces import SyncRuns
        from locktender.client.runs_async import AsyncRuns

        return SyncRuns(self._bridge, AsyncRuns(self.core))

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return self._bridge.call(work)

    def close(self) -> None:
        try:
            self._bridge.call(self.core.close())
        finally:
            self._bridge.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
