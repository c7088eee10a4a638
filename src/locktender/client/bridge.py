"""The bridge from sync code to the async core: one event loop in a thread of its own.

Any number of threads may call across. The loop's own thread may not: it would
wait for itself.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextvars import Context
from typing import Any, TypeVar

from locktender.base.errors import LocktenderError
from locktender.client.guard import ClientGuard, closed
from locktender.worker.lasting_loop import LastingLoop

T = TypeVar("T")


class Bridge:
    def __init__(self) -> None:
        self.guard: ClientGuard = ClientGuard()
        self._loop = LastingLoop()
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
            if threading.current_thread() is self._thread:
                raise LocktenderError(
                    "a sync client cannot be used on its own event loop: it would wait for itself.",
                    hint="In an async step use locktender.connect_async(), or make the step a plain def.",
                )
            # Under the lock, so that nothing is handed to a loop that will not turn again.
            with self._lock:
                if self._stopped:
                    raise closed()
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        except LocktenderError:
            work.close()
            raise

    def tell(self, callback: Callable[[], None]) -> None:
        """Runs `callback` on the loop; nobody waits for it."""
        with self._lock:
            if not self._stopped:
                self._loop.call_soon_threadsafe(callback)

    def stop(self) -> None:
        """Ends the loop and its thread. Again: nothing."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            # In no attempt's context: a body may not stop its worker's loop, but may close its own client.
            self._loop.call_soon_threadsafe(self._loop.stop, context=Context())
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
