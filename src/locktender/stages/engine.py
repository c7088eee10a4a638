"""The engine of one process: a worker, a candidate for the lead, or both.

Two engines on one store: one leads, both work. A server leads and has no worker;
a worker started by itself does not lead unless it is told to. How a worker's
attempts are written depends on who leads, and is the member's affair.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

from locktender.base.clock import Clock, SystemClock
from locktender.base.config import Settings
from locktender.flows.registry import Registry, registry
from locktender.observe.metrics import Metrics
from locktender.stages.candidate import Candidate
from locktender.stages.chores import end_tasks
from locktender.stages.collecting import collecting
from locktender.stages.coordinator import Coordinator
from locktender.stages.declaring import declared_limits
from locktender.stages.member import Member
from locktender.stages.overflow import Overflow
from locktender.stages.worker import End, Worker
from locktender.store.protocol import Store


class Engine:
    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        clock: Clock | None = None,
        known: Registry = registry,
        lead: bool = True,
        work: bool = True,
        overflow: Overflow | None = None,
        ends_itself: bool = False,
    ) -> None:
        """`overflow` is told of demand while this process leads; whoever made it closes it.

        `ends_itself`: somebody ends the worker when its lifetime is over, so that it joins with that in mind.
        """
        self.store = store
        self.settings = settings
        self.overflow = overflow
        self.metrics: Metrics = Metrics()
        self.member: Member | None = None
        self.candidate: Candidate | None = None
        self._name = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
        self._tasks: list[asyncio.Task[None]] = []
        if work:
            self.member = Member(
                store,
                settings,
                clock or SystemClock(),
                known,
                self._coordinator,
                self.metrics,
                ends_itself=ends_itself,
            )
            self.metrics.describe = self.member.describe
        if lead:
            self.candidate = Candidate(
                store,
                settings,
                self._stands,
                self._local,
                self._leftover,
                self.metrics,
                overflow,
                None if self.member is None else self.member.orders.doubt,
            )

    # -- who it is ---------------------------------------------------------------------------------

    @property
    def worker(self) -> Worker:
        if self.member is None:
            raise LookupError("this engine has no worker")
        return self.member.worker

    @property
    def coordinator(self) -> Coordinator | None:
        return self._coordinator()

    @property
    def leads(self) -> bool:
        return self._coordinator() is not None

    @property
    def lost(self) -> bool:
        """Whether its worker is without a lease."""
        return self.member is not None and self.member.lost.is_set()

    def on_runs_ended(self, hear: Callable[[list[int]], None]) -> None:
        """`hear` is told of runs that ended while this process leads."""
        if self.candidate is not None:
            self.candidate.on_runs_ended(hear)

    def _coordinator(self) -> Coordinator | None:
        return None if self.candidate is None else self.candidate.coordinator

    def _stands(self) -> str | None:
        if self.member is None:
            return self._name
        return None if self.member.lost.is_set() else self.member.worker.id

    def _local(self) -> Worker | None:
        return None if self.member is None else self.member.worker

    def _leftover(self, ends: list[End]) -> None:
        if self.member is not None:
            self.member.write(ends)

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join and, if nobody leads, lead. Returns when the worker, if there is one, has its lease."""
        if changes := declared_limits(self.settings):
            await self.store.set_limit(changes)
        if self.member is not None:
            await self.member.start()
        collecting.begin(self)
        if self.candidate is not None:
            self._tasks = [
                asyncio.create_task(self.candidate.watch(), name="locktender-watch"),
                asyncio.create_task(self.candidate.run(), name="locktender-lead"),
            ]

    async def stop(self, grace_us: int | None = None) -> None:
        """Drain: no new tasks, what runs may finish within the grace, the rest is handed back."""
        left: list[int] = []
        if self.member is not None:
            grace = self.settings.grace_us if grace_us is None else grace_us
            left = await self.member.finish(grace)
        # It leads until its worker's last ends are written: they go with its commits.
        await end_tasks(self._tasks)
        collecting.end(self)
        if self.member is not None:
            await self.member.leave(left)

    async def drain(self) -> None:
        """Take no more tasks; what runs may finish. The engine goes on, and leads if it led."""
        if self.member is not None:
            await self.member.drain()

    def look(self) -> None:
        """This process committed something (a submission, a limit): whoever decides should look."""
        if self.member is not None:
            self.member.announce()
        if (coordinator := self._coordinator()) is not None:
            coordinator.look()
