"""What every verb shares. Lives on one event loop; whoever else wants something crosses the bridge."""

from __future__ import annotations

import getpass
import socket
from functools import cached_property

from headgate.base.clock import Clock, SystemClock
from headgate.base.config import Settings
from headgate.base.errors import NotFound
from headgate.base.model import RunRow
from headgate.client.guard import Guard
from headgate.client.opening import store_for
from headgate.client.waiting import Waiting
from headgate.stages.engine import Engine
from headgate.store.protocol import Store


class Core:
    def __init__(self, store: Store, settings: Settings, engine: Engine | None) -> None:
        self.store = store
        self.settings = settings
        self.engine = engine
        self.guard = Guard()
        self.clock: Clock = SystemClock()
        self.waiting = Waiting(store, engine, self.guard)

    @classmethod
    async def open(cls, settings: Settings, *, engine: bool) -> Core:
        """A store that is open and, if asked for, an engine that has its lease."""
        store = store_for(settings)
        await store.open()
        try:
            running = Engine(store, settings) if engine else None
            if running is not None:
                await running.start()
        except BaseException:
            await store.close()
            raise
        return cls(store, settings, running)

    async def close(self, grace_us: int | None = None) -> None:
        """Drains the engine, if there is one, and lets go of the store. Again: nothing."""
        if self.guard.closed or self.guard.forked:
            return
        self.guard.closed = True
        await self.waiting.close()
        try:
            if self.engine is not None:
                await self.engine.stop(grace_us)
        finally:
            await self.store.close()

    def changed(self) -> None:
        """Something was committed here: the leader, if it is this process, should look now."""
        if self.engine is not None:
            self.engine.look()

    async def leader(self) -> bool:
        """Whether anybody is there to carry out a request."""
        return await self.store.leader() is not None

    async def row(self, run_id: str) -> RunRow:
        row = await self.store.run(run_id)
        if row is None:
            raise NotFound(
                f"there is no run {run_id!r} in {self.settings.url}.",
                field="run",
                got=run_id,
                hint="headgate runs list shows what there is.",
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
