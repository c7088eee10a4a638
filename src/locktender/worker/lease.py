"""The worker's lease, kept by a thread of its own.

Who runs this: one thread per engine, with a loop and a store of its own. The
engine's loop also runs the users' async steps, and one that blocks it must not
cost the lease: then another process would start the same tasks beside it. So
the thread renews for as long as the process lives, whatever the loop does.

If the lease cannot be renewed it says so before it ends (`lose`), and what
runs is stopped. A thread cannot be stopped, and a blocked loop stops nothing:
if anything is still in flight shortly before the lease ends, a worker's process
ends here, hard. Own expiry is measured on the boot-time clock, from before the
renewal was sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from locktender.base.clock import SECOND, Clock
from locktender.base.config import Settings
from locktender.base.errors import LocktenderError, StoreError
from locktender.base.model import WorkerRow
from locktender.store.protocol import Beat, Store

log: logging.Logger = logging.getLogger(__name__)
T = TypeVar("T")
MARGIN_US = 1 * SECOND
"""How long before its lease ends a worker stops what it runs."""
LAST_MOMENT_US = SECOND // 5
LAST_ACT_SECONDS = 0.05
"""Of that moment: whatever it is, the process is gone before the lease is."""
LEAVE_SECONDS = 3.0
ENDED_SECONDS = 0.002
WOKEN_US = SECOND // 2
"""How long a process that was stopped past its lease may take, when it wakes up, to stop what it runs."""


class LeaseOwner(Protocol):
    """The worker's membership, as the keeper of its lease sees it."""

    @property
    def in_flight(self) -> int:
        """Called from any thread."""
        ...

    def describe(self) -> WorkerRow:
        """Called from any thread."""
        ...

    def lease_renewed(self, stop_at_us: int) -> None:
        """What runs may run until then (boot-time clock)."""
        ...

    def lease_lost(self, why: str) -> None: ...
    def before_exit(self, seconds: float) -> None:
        """The process ends hard, within so many seconds. Called from any thread."""
        ...


class LeaseKeeper:
    def __init__(self, store: Store, settings: Settings, clock: Clock, owner: LeaseOwner) -> None:
        self._store = store.twin()
        self._settings = settings
        self._clock = clock
        self._owner = owner
        self._engine_loop = asyncio.get_running_loop()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ends = 0
        self._lost = False
        self._outlived: tuple[Callable[[], bool], str] | None = None
        self._stop: asyncio.Event | None = None
        self._started: asyncio.Future[None] = self._engine_loop.create_future()
        self._thread = threading.Thread(target=self._main, name="locktender-lease", daemon=True)

    async def start(self) -> None:
        """Returns when the worker has its lease."""
        self._thread.start()
        await self._started

    def live_fd(self, owner: str) -> int | None:
        """The lock that says the worker lives, for its children to inherit."""
        live: Callable[[str], int | None] | None = getattr(self._store, "live_fd", None)
        return None if live is None else live(owner)

    def _stop_at(self) -> int:
        return self._ends - min(MARGIN_US, self._settings.worker_lease_us // 4)

    async def beat(self) -> None:
        """Renew now: what the worker says of itself has changed."""
        await self._call(self._beat())

    def beat_from_outside(self, seconds: float) -> None:
        """Renew now, for a thread that has no loop: the engine's may be held. `TimeoutError`: no answer yet."""
        loop = self._loop
        if loop is None:
            raise StoreError("the worker has no lease.")
        asyncio.run_coroutine_threadsafe(self._beat(), loop).result(seconds)

    def keep_while(self, alive: Callable[[], bool], worker: str) -> None:
        """The engine is gone, a body is not: renew until it ends, then leave."""
        self._outlived = alive, worker

    async def close(self, worker: str) -> None:
        """The worker leaves: nothing of it runs any more."""
        if self._thread.is_alive() and self._loop is not None:
            # A store that does not answer finds out by the lease.
            with suppress(LocktenderError, TimeoutError):
                async with asyncio.timeout(LEAVE_SECONDS):
                    await self._call(self._store.leave(worker))
            await self._call(self._end())
        # Not by a join in a thread of a pool: where a whole program ends there is none to be had.
        while self._thread.is_alive():  # noqa: ASYNC110
            await asyncio.sleep(ENDED_SECONDS)

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            work.close()
            raise StoreError("the worker has no lease.")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    # -- in the thread -----------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            asyncio.run(self._keep())
        except Exception as error:
            if self._ends == 0:
                self._tell_started(error)
                return
            self._loop = None
            # Without this thread nobody renews and nobody would stop what runs.
            log.critical("the lease cannot be kept any more", exc_info=error)
            if not self._lost:
                self._tell_lost(f"its keeper failed: {error!r}")
            asyncio.run(self._see_it_end())

    async def _keep(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        await self._store.open()
        try:
            await self._beat()
            self._tell_started(None)
            while not self._stop.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._settings.heartbeat_us / SECOND):
                        await self._stop.wait()
                if self._outlived is not None and not self._outlived[0]():
                    with suppress(LocktenderError):
                        await self._store.leave(self._outlived[1])
                    return
                if not (self._stop.is_set() or self._lost):
                    await self._renew()
        finally:
            await self._store.close()

    async def _end(self) -> None:
        if self._stop is not None:
            self._stop.set()

    async def _renew(self) -> None:
        stop_at = self._stop_at()
        try:
            left = max(0, stop_at - self._clock.monotonic()) / SECOND
            async with asyncio.timeout(min(left, self._settings.heartbeat_us / SECOND)):
                await self._beat()
        except (StoreError, TimeoutError) as error:
            log.warning("the worker's lease is not renewed: %s", str(error) or "no answer in time")
        if self._clock.monotonic() >= stop_at and not self._lost:
            self._tell_lost("it could not be renewed in time")
            await self._see_it_end()

    async def _beat(self) -> None:
        sent = self._clock.monotonic()
        beaten = await self._store.beat(
            Beat(self._owner.describe(), self._settings.worker_lease_us)
        )
        if beaten.lease_until == 0:
            self._tell_lost("it was declared lost")
            await self._see_it_end()
            return
        self._ends = sent + self._settings.worker_lease_us
        self._on_engine(self._owner.lease_renewed, self._stop_at())

    async def _see_it_end(self) -> None:
        """Until the last moment the engine may stop what runs; then the process ends if it must."""
        if not self._settings.exit_when_stuck:
            return
        now = self._clock.monotonic()
        last = self._ends - LAST_MOMENT_US
        until = last if now < last else now + WOKEN_US
        while self._clock.monotonic() < until:
            if not self._owner.in_flight:
                return
            await asyncio.sleep(0.02)
        if self._owner.in_flight:
            log.critical("work that is no longer ours cannot be stopped: this process must end")
            try:
                self._owner.before_exit(LAST_ACT_SECONDS)
            finally:
                os._exit(75)

    def _tell_lost(self, why: str) -> None:
        self._lost = True
        self._on_engine(self._owner.lease_lost, why)

    def _tell_started(self, error: BaseException | None) -> None:
        def tell() -> None:
            if self._started.done():
                return
            if error is None:
                self._started.set_result(None)
            else:
                self._started.set_exception(error)

        self._on_engine(tell)

    def _on_engine(self, call: Callable[..., None], *args: object) -> None:
        # The engine's loop may be gone: a body in a thread outlived it, and the lease is kept for it.
        with suppress(RuntimeError):
            self._engine_loop.call_soon_threadsafe(call, *args)
