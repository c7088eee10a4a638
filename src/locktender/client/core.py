"""What all client methods share: store, settings, engine. It lives on one event loop."""

from __future__ import annotations

import asyncio
import getpass
import socket
from collections.abc import Coroutine
from contextlib import suppress
from contextvars import Context
from functools import cached_property
from typing import Any

from locktender.base.background import end_tasks
from locktender.base.clock import Clock, SystemClock
from locktender.base.config import Settings
from locktender.base.errors import LocktenderError, NotFound
from locktender.base.limits import Limits
from locktender.base.model import RunRow
from locktender.client.guard import ClientGuard
from locktender.client.more_workers import MoreWorkers
from locktender.client.slot_worker import SlotWorkers
from locktender.client.waiting import RunWaiter
from locktender.engine import Engine
from locktender.provision.controller import ProvisionController
from locktender.store.open import store_for
from locktender.store.protocol import Store


class Core:
    def __init__(
        self,
        store: Store,
        settings: Settings,
        engine: Engine | None,
        guard: ClientGuard | None = None,
        more: MoreWorkers | None = None,
    ) -> None:
        self.store = store
        self.settings = settings
        self.engine = engine
        self.guard: ClientGuard = guard or ClientGuard()
        self.limits_read: tuple[int, Limits] | None = None
        """The limits as they were last read, and when: see `handing_in`."""
        self._more = more
        self._hurried = asyncio.Event()
        self.clock: Clock = SystemClock()
        self.waiting: RunWaiter = RunWaiter(store, engine, self.guard)
        leases = None if engine is None else engine.leases
        self.holders: SlotWorkers = SlotWorkers(lambda: store_for(settings), self.clock, leases)

    @classmethod
    async def open(
        cls,
        settings: Settings,
        *,
        engine: bool,
        guard: ClientGuard | None = None,
        lead: bool = True,
        work: bool = True,
        overflow: ProvisionController | None = None,
        more: MoreWorkers | None = None,
        ends_itself: bool = False,
    ) -> Core:
        """A store that is open and, if asked for, an engine that has its lease.

        `more` is closed with it; the caller closes `overflow`. `ends_itself`: as `Engine` has it.
        """
        if more is not None:
            overflow = more.overflow
        store = store_for(settings)
        await store.open(migrates=engine)
        running: Engine | None = None
        try:
            if engine:
                running = Engine(
                    store,
                    settings,
                    lead=lead,
                    work=work,
                    overflow=overflow,
                    ends_itself=ends_itself,
                )
                await running.start()
        except BaseException:
            if running is not None:
                with suppress(LocktenderError):
                    await running.stop(0)
            if more is not None:
                await more.close(0)
            await store.close()
            raise
        return cls(store, settings, running, guard, more)

    async def close(self, grace_us: int | None = None, more: MoreWorkers | None = None) -> None:
        """Drains the engine, if there is one, and lets go of the store. Again: nothing.

        `more`: workers that were its engine's `overflow`, to be closed now while there is a store.
        """
        if self.guard.closed or self.guard.forked:
            return
        self.guard.closed = True
        self._more = self._more or more
        # In no attempt's context: a body may close a client, but may not cancel what others have started.
        await asyncio.get_running_loop().create_task(self._close(grace_us), context=Context())

    async def _close(self, grace_us: int | None) -> None:
        try:
            await self.waiting.close()
            await self.holders.close()
            # Together: theirs is the same grace.
            await asyncio.gather(self._stop(grace_us), self._let_go(grace_us))
        except asyncio.CancelledError:
            if self.engine is not None:
                await self.engine.stop(0)
            raise
        finally:
            await self.store.close()

    def hurry(self) -> None:
        """Ends the wait of `close`: running tasks are ended and return to the queue."""
        self._hurried.set()

    async def _stop(self, grace_us: int | None) -> None:
        engine = self.engine
        if engine is not None and not await self._unless_hurried(engine.stop(grace_us)):
            await engine.stop(0)

    async def _let_go(self, grace_us: int | None) -> None:
        if self._more is not None:
            await self._unless_hurried(self._more.close(grace_us))

    async def _unless_hurried(self, work: Coroutine[Any, Any, None]) -> bool:
        """Whether `work` was done to its end; it is cancelled by `hurry`."""
        doing = asyncio.create_task(work)
        hurried = asyncio.create_task(self._hurried.wait())
        try:
            await asyncio.wait({doing, hurried}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Read before they are ended: a cancelled task is done too.
            done = doing.done()
            await end_tasks([hurried] if done else [hurried, doing])
        if done:
            await doing
        return done

    def changed(self) -> None:
        """Something was committed here: the leader, if it is this process, should look now."""
        if self.engine is not None:
            self.engine.wake()

    async def leader(self) -> bool:
        """Whether anybody is there to carry out a request."""
        return await self.store.leader() is not None

    async def row(self, run_id: str) -> RunRow:
        row = await self.store.run(run_id)
        if row is None:
            raise NotFound(
                f"there is no run {run_id!r} in {self.settings.shown_url}.",
                field="run",
                got=run_id,
                hint="locktender runs list shows what there is.",
            )
        return row

    @cached_property
    def who(self) -> str:
        """Who is asking, for the history of limits: user@host."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError, ImportError):  # a container without a passwd entry
            user = "unknown"
        return f"{user}@{socket.gethostname()}"
