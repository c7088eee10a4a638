"""One thread renews every lease of the process: the worker's, the leader's and those of `slots()`.

Who runs this: one thread per engine, or per client that holds slots, with a loop and a store of its own. The
loop that owns a lease also rebuilds ledgers and runs users' async code; when that blocks it, the lease must not
be lost, because another process would start the same tasks beside it. So the thread renews for as long as the
process lives.

A lease that cannot be renewed is given up before it ends, and its owner learns why. Its end is measured on the
boot-time clock, from before the renewal was sent: never later than the store's own end.

The thread itself may be held up past that end: a body keeps the interpreter's lock, the machine or the process
was paused. Then it asks the store first. If its row is there, no other worker has its work, and it continues.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from locktender.base.background import BackgroundTasks, end_tasks, start_thread
from locktender.base.clock import SECOND, Clock
from locktender.base.errors import LocktenderError, StoreError
from locktender.store.protocol import Store

log: logging.Logger = logging.getLogger(__name__)
T = TypeVar("T")
LEAVE_SECONDS = 3.0
END_POLL_SECONDS = 0.002
HELD_UP_US = SECOND // 4
"""A thread that runs this much later than it wanted to was held up, not idle."""
ASK_US = SECOND * 4 // 5
"""How long one that was held up past the end of its lease waits for the answer whether it still has it."""
NEVER_US = 2**62


class Lease:
    """A lease of its owner. `renew`, `leave` and `after_loss` run in the lease thread, the others on the
    owner's loop."""

    def __init__(self, name: str, lease_us: int, renew_us: int, margin_us: int | None) -> None:
        """`margin_us`: how long before its end it is given up; None: only the store ends it."""
        self.name = name
        self.lease_us = lease_us
        self.renew_us = renew_us
        self.ends_us: int = 0
        self.over: bool = False
        """It was lost, or its owner gave it back."""
        self.keep_while: Callable[[], bool] | None = None
        """Its owner is gone: renew while this is true, then leave."""
        self._margin_us = margin_us
        self._loop = asyncio.get_running_loop()

    @property
    def stop_at_us(self) -> int:
        """When it is given up unless it is renewed before (boot-time clock)."""
        return NEVER_US if self._margin_us is None else self.ends_us - self._margin_us

    async def renew(self, store: Store) -> str | None:
        """Renews; returns why the lease is lost, or None."""
        raise NotImplementedError

    def renewed(self, stop_at_us: int) -> None:
        """It lives until then."""

    def lost(self, why: str) -> None:
        """It is lost, or will be in a moment."""

    async def after_loss(self) -> None:
        """It was lost: see that its work stops."""

    async def leave(self, store: Store) -> None:
        """Gives it back."""

    def on_owner(self, call: Callable[..., None], *args: object) -> None:
        # The owner's loop may be gone: a body outlived it, and the lease is kept for that.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *args)


class LeaseThread:
    def __init__(self, make_store: Callable[[], Store], clock: Clock) -> None:
        """`make_store`: a store for this thread alone, not opened yet."""
        self._make_store = make_store
        self._clock = clock
        self._leases: dict[Lease, asyncio.Task[None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._starting = asyncio.Lock()
        self._ready: Future[None] | None = None
        """Of the thread that starts or runs."""
        self._closing = False

    # -- for owners --------------------------------------------------------------------------------

    async def add(self, lease: Lease, *, held: bool = False) -> None:
        """Returns when the lease is held: after its first renewal, unless the caller has just got it (`held`)."""
        async with self._starting:
            if self._loop is None:
                await self._start()
        await self._call(self._add(lease, held=held))

    async def _start(self) -> None:
        if (ready := self._ready) is None:
            ready = self._ready = Future()
            # A caller that is cancelled must not cancel it: the thread goes on, for the next caller or `close`.
            ready.set_running_or_notify_cancel()
            self._thread = start_thread(
                self._main, "locktender-lease", ready, failed=self._lose_all
            )
        await asyncio.wrap_future(ready)

    async def renew(self, lease: Lease) -> None:
        """Renew now: what the renewal writes has changed."""
        await self._call(self._renew(lease))

    def renew_from_thread(self, lease: Lease, seconds: float) -> None:
        """Renew now, from a thread without a loop. `TimeoutError`: no answer yet."""
        work = self._renew(lease)
        if (loop := self._loop) is None:
            work.close()
            raise StoreError("no lease is held.")
        asyncio.run_coroutine_threadsafe(work, loop).result(seconds)

    async def remove(self, lease: Lease) -> None:
        """Give the lease back: nothing needs it any more. If the store does not answer, it ends by itself."""
        lease.over = True
        if self._loop is not None:
            await self._call(self._remove(lease))

    async def close(self) -> None:
        """The thread ends; if a lease outlives its owner, it ends after that lease."""
        self._closing = True
        if (loop := self._loop) is not None:
            loop.call_soon_threadsafe(self._stop_if_unused)
        if self._outliving():
            return
        # Not by a join in a thread of a pool: where a whole program ends there is none to be had.
        while self._thread is not None and self._thread.is_alive():  # noqa: ASYNC110
            await asyncio.sleep(END_POLL_SECONDS)

    def live_fd(self, owner: str) -> int | None:
        """The lock that says the owner is alive, for its children to inherit."""
        if self._loop is None:
            return None
        live: Callable[[str], int | None] | None = getattr(self._store, "live_fd", None)
        return None if live is None else live(owner)

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            work.close()
            raise StoreError("no lease is held.")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    # -- in the thread -----------------------------------------------------------------------------

    def _main(self, ready: Future[None]) -> None:
        try:
            asyncio.run(self._run(ready))
        except BaseException as error:
            if ready.done():
                raise
            self._ready = None
            ready.set_exception(error)

    def _lose_all(self, error: BaseException) -> None:
        """The thread failed: nothing renews its leases any more. The next `add` starts another."""
        self._loop = self._ready = None
        leases, self._leases = list(self._leases), {}
        for lease in leases:
            if not lease.over:
                lease.over = True
                lease.on_owner(lease.lost, f"the lease thread failed: {error!r}")
                asyncio.run(lease.after_loss())

    async def _run(self, ready: Future[None]) -> None:
        self._store = self._make_store()
        await self._store.open()
        self._stop = asyncio.Event()
        self._background = BackgroundTasks()
        self._loop = asyncio.get_running_loop()
        ready.set_result(None)
        # It may have been closed before there was a loop to tell it.
        self._stop_if_unused()
        try:
            await self._stop.wait()
        finally:
            self._loop = self._ready = None
            await end_tasks(self._leases.values())
            await self._background.end()
            await self._store.close()

    def _stop_if_unused(self) -> None:
        if self._closing and not self._outliving():
            self._stop.set()

    def _outliving(self) -> bool:
        return any(lease.keep_while and not lease.over for lease in list(self._leases))

    async def _add(self, lease: Lease, *, held: bool) -> None:
        if held:
            lease.ends_us = self._clock.monotonic() + lease.lease_us
        else:
            await self._renew(lease)
        self._leases[lease] = asyncio.create_task(self._keep(lease), name="locktender-lease")

    async def _remove(self, lease: Lease) -> None:
        if (task := self._leases.pop(lease, None)) is not None:
            # A renewal after it has left would make it join again.
            await end_tasks([task])
        await self._leave(lease)

    async def _leave(self, lease: Lease) -> None:
        with suppress(LocktenderError, TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await lease.leave(self._store)

    async def _keep(self, lease: Lease) -> None:
        try:
            while not lease.over:
                began_us = self._clock.monotonic()
                pause_us = min(lease.renew_us, max(0, lease.stop_at_us - began_us))
                await asyncio.sleep(pause_us / SECOND)
                if lease.keep_while is not None and not lease.keep_while():
                    break
                held_up = self._held_up(began_us, pause_us)
                await self._renew_in_time(lease, held_up=held_up)
        except Exception as error:
            # Nothing would renew it, and nothing would stop what runs under it.
            log.critical("failed to keep %s: internal error", lease.name, exc_info=error)
            self._lose(lease, f"its renewal failed: {error!r}")
        if lease.keep_while is not None:
            self._leases.pop(lease, None)
            await self._leave(lease)
            self._stop_if_unused()

    async def _renew_in_time(self, lease: Lease, *, held_up: bool) -> None:
        stop_at_us, sent_us = lease.stop_at_us, self._clock.monotonic()
        left_us = max(0, stop_at_us - sent_us)
        limit_us = ASK_US if held_up and not left_us else min(left_us, lease.renew_us)
        try:
            async with asyncio.timeout(limit_us / SECOND):
                await self._renew(lease)
        except (StoreError, TimeoutError) as error:
            log.warning("failed to renew %s: %s", lease.name, str(error) or "timed out")
        if lease.over and held_up and not left_us:
            log.error(
                "%s was lost while this process was suspended: until now, its work may have run at the same time"
                " as the next attempts",
                lease.name,
            )
        if lease.over or self._clock.monotonic() < lease.stop_at_us:
            return
        if held_up or not self._held_up(sent_us, limit_us):
            self._lose(lease, "it could not be renewed in time")
        else:
            # Held up while it waited for the answer.
            await self._renew_in_time(lease, held_up=True)

    def _held_up(self, began_us: int, wanted_us: int) -> bool:
        """Whether this thread did not run when its time had come."""
        return self._clock.monotonic() - began_us - wanted_us > HELD_UP_US

    async def _renew(self, lease: Lease) -> None:
        sent = self._clock.monotonic()
        why = await lease.renew(self._store)
        if why is not None:
            self._lose(lease, why)
        elif not lease.over:
            lease.ends_us = sent + lease.lease_us
            lease.on_owner(lease.renewed, lease.stop_at_us)

    def _lose(self, lease: Lease, why: str) -> None:
        if not lease.over:
            lease.over = True
            lease.on_owner(lease.lost, why)
            self._background.start(lease.after_loss(), f"stop the work of {lease.name}")
