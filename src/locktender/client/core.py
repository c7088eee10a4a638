"""What all client methods share: store, settings, engine. It lives on one event loop."""

from __future__ import annotations

import asyncio
import getpass
import logging
import socket
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from contextvars import Context
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from locktender.base.background import end_tasks
from locktender.base.clock import Clock, SystemClock
from locktender.base.config import Settings
from locktender.base.errors import LocktenderError, NotFound, StoreBusy, StoreUnreachable
from locktender.base.limits import Limits
from locktender.base.model import RunRow
from locktender.client.guard import ClientGuard
from locktender.client.outbox_rows import find_row
from locktender.client.run_waiter import RunWaiter
from locktender.client.slot_worker import SlotWorkers
from locktender.store.open import store_for
from locktender.store.protocol import SetLimit, Store
from locktender.store.retry import retry_while_away

if TYPE_CHECKING:
    from locktender.client.more_workers import MoreWorkers
    from locktender.engine import Engine
    from locktender.provision.controller import ProvisionController

T = TypeVar("T")

log: logging.Logger = logging.getLogger(__name__)

FIRST_OPEN_PAUSE_SECONDS = 0.5
LONGEST_OPEN_PAUSE_SECONDS = 10.0
"""Between two tries of a server or worker to open a store that does not answer."""


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
        self._limits_read: list[tuple[int, Limits]] = []
        self.version: str | None = None
        self.only: Mapping[str, str] = {}
        self.acts_for_another = False
        self.token: str | None = None
        self.reason: str = ""
        self._more = more
        self._hurried = asyncio.Event()
        self.clock: Clock = SystemClock()
        self.waiting: RunWaiter = RunWaiter(store, engine, self.guard)
        leases = None if engine is None else engine.leases
        self.slot_workers: SlotWorkers = SlotWorkers(
            lambda: store_for(settings), self.clock, leases
        )

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
        waits: bool = False,
        creates: bool = True,
        brief: bool = False,
    ) -> Core:
        """A store that is open and, if asked for, an engine that has its lease.

        `more` is closed with it; the caller closes `overflow`. `ends_itself`: as `Engine` has it; `creates` and
        `brief`: as `Store.open` does. `waits`: tries for ever while the store cannot be reached.
        """
        if more is not None:
            overflow = more.overflow
        store = store_for(settings)
        await retry_while_away(
            lambda: store.open(migrates=engine, creates=creates, brief=brief),
            "opening the store",
            lambda error: waits and isinstance(error, StoreUnreachable | StoreBusy),
            first_pause_seconds=FIRST_OPEN_PAUSE_SECONDS,
            longest_pause_seconds=LONGEST_OPEN_PAUSE_SECONDS,
        )
        running: Engine | None = None
        try:
            if engine:
                # Only here: it loads leader, worker and kernel, which a client of a store does without.
                from locktender.engine import Engine

                running = Engine(
                    store,
                    settings,
                    lead=lead,
                    work=work,
                    overflow=overflow,
                    ends_itself=ends_itself,
                )
                await running.start()
            else:
                # A client listens to other processes when it waits for something, not before.
                await store.forget_ends()
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
        """Drains the engine, if there is one, and closes the store. Again: nothing.

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
            await self.slot_workers.close()
            # Together: theirs is the same grace.
            await asyncio.gather(self._stop(grace_us), self._close_workers(grace_us))
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

    async def _close_workers(self, grace_us: int | None) -> None:
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

    @property
    def limits_read(self) -> tuple[int, Limits] | None:
        """The limits as they were last read, and when: see `submit.check_pools`. Who acts for others shares it."""
        return self._limits_read[-1] if self._limits_read else None

    @limits_read.setter
    def limits_read(self, read: tuple[int, Limits] | None) -> None:
        self._limits_read[:] = [] if read is None else [read]

    def changed(self) -> None:
        """Something was committed here: wakes the leader, if it is this process."""
        if self.engine is not None:
            self.engine.wake()

    async def leader(self) -> bool:
        """Whether there is a leader to carry out a request."""
        return await self.store.leader() is not None

    async def row(self, run_id: str) -> RunRow:
        row = await find_row(self.store, run_id)
        if row is None:
            raise NotFound(
                f"there is no run {run_id!r} in {self.settings.shown_url}.",
                field="run",
                got=run_id,
                hint="locktender runs list shows what there is; --url names another store.",
            )
        return row

    def acting(
        self,
        who: str,
        version: str | None = None,
        only: Mapping[str, str] | None = None,
        reason: str = "",
        token: str | None = None,
    ) -> Core:
        """The same for changes by `who`, which is recorded with each. It must not be closed.

        version  that a limit must have for a change of it to be stored
        only     tags of schedules that may be changed; default all
        reason   kept with changes of limits; default none
        token    id of the token that `who` has: those that are made are revoked with it
        """
        other = copy(self)
        other.who, other.version, other.acts_for_another = who, version, True
        other.only, other.reason, other.token = only or self.only, reason, token or self.token
        return other

    async def set_limits(self, changes: list[SetLimit]) -> None:
        """Stores changes of limits and wakes the leader. Raises `LimitChanged`."""
        if self.version is not None:
            last = changes[-1]
            changes = [
                msgspec.structs.replace(each, version=self.version)
                if (each.kind, each.name) == (last.kind, last.name)
                else each
                for each in changes
            ]
        if self.reason:
            changes = [msgspec.structs.replace(each, reason=self.reason) for each in changes]
        await self.store.set_limit(changes)
        self.limits_read = None
        self.changed()

    @cached_property
    def who(self) -> str:
        """user@host, for the history of limits."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError, ImportError):  # a container without a passwd entry
            user = "unknown"
        return f"{user}@{socket.gethostname()}"
