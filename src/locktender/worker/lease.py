"""The worker's lease: as long as it lives no other worker starts this worker's tasks.

If it is lost, the engine's loop stops what runs. A thread cannot be stopped, and a blocked loop stops nothing:
if anything is still in flight shortly before the lease ends, a worker's process ends hard, by the lease thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Protocol

from locktender.base.clock import SECOND, Clock
from locktender.base.config import Settings
from locktender.base.model import WorkerRow
from locktender.store.lease_thread import Lease
from locktender.store.protocol import Heartbeat, Store

log: logging.Logger = logging.getLogger(__name__)
MARGIN_US = 1 * SECOND
"""How long before its lease ends a worker stops what it runs."""
EXIT_MARGIN_US = SECOND // 5
"""How long before its lease ends the process ends, if something still runs."""
BEFORE_EXIT_SECONDS = 0.05
WOKEN_US = SECOND // 2
"""How long a process that was paused past its lease may take, when it goes on, to stop what it runs."""
POLL_SECONDS = 0.02


class LeaseOwner(Protocol):
    """The worker's membership, as its lease sees it."""

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


class WorkerLease(Lease):
    def __init__(self, owner: LeaseOwner, worker: str, settings: Settings, clock: Clock) -> None:
        lease_us = settings.worker_lease_us
        margin_us = min(MARGIN_US, lease_us // 4)
        super().__init__("the worker lease", lease_us, settings.heartbeat_us, margin_us)
        self._owner = owner
        self._worker = worker
        self._clock = clock
        self._exit_when_stuck = settings.exit_when_stuck
        self._joined = False

    def renewed(self, stop_at_us: int) -> None:
        self._owner.lease_renewed(stop_at_us)

    def lost(self, why: str) -> None:
        self._owner.lease_lost(why)

    async def renew(self, store: Store) -> str | None:
        beaten = await store.heartbeat(
            Heartbeat(self._owner.describe(), self.lease_us, renews=self._joined)
        )
        self._joined = True
        return None if beaten.lease_until else "it was declared lost"

    async def leave(self, store: Store) -> None:
        await store.leave(self._worker)

    async def after_loss(self) -> None:
        """Until the last moment the engine may stop what runs; then the process ends if it must."""
        if not self._exit_when_stuck:
            return
        now = self._clock.monotonic()
        last = self.ends_us - EXIT_MARGIN_US
        until = last if now < last else now + WOKEN_US
        while self._clock.monotonic() < until:
            if not self._owner.in_flight:
                return
            await asyncio.sleep(POLL_SECONDS)
        if self._owner.in_flight:
            log.critical("the worker lost its lease and its work did not stop: this process ends")
            try:
                self._owner.before_exit(BEFORE_EXIT_SECONDS)
            finally:
                os._exit(75)
