"""Limits that settings declare: defaults, beneath whatever an operator sets while the system runs.

The engine of one process: a worker, a candidate for the lead, or both.

Two engines on one store: one leads, both work. A server leads and has no worker;
a worker started by itself does not lead unless it is told to. How a worker's
attempts are written depends on who leads, and is the member's affair.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

import msgspec

from locktender.base.background import end_tasks
from locktender.base.clock import Clock, SystemClock
from locktender.base.config import Settings
from locktender.base.limits import Limits
from locktender.flows.registry import Registry, registry
from locktender.leader.election import Candidate
from locktender.leader.leader import Leader
from locktender.observe.metrics import Metrics
from locktender.provision.controller import ProvisionController
from locktender.store.protocol import SetLimit, Store
from locktender.worker.garbage import collecting
from locktender.worker.membership import Membership
from locktender.worker.worker import End, LocalWorker

_dump = msgspec.json.Encoder().encode
_DEFAULTS = Limits()
_KNOBS = ("age_boost_us", "max_bypass", "max_starts_per_cycle", "placement", "strict_pools")


def declared_limits(settings: Settings) -> list[SetLimit]:
    """What was configured and nothing else: an engine with defaults must not undo another's configuration."""
    limits = settings.limits()
    rules: list[tuple[str, str, object]] = []
    if _given(settings, "max_concurrent_runs"):
        rules.append(("runs", "", {"limit": limits.max_concurrent_runs}))
    if _given(settings, "max_active"):
        rules.append(("active", "", {"limit": limits.max_active}))
    rules += [("pool", name, rule) for name, rule in limits.pools.items()]
    rules += [("tag", rule.name, rule) for rule in limits.tags]
    if limits.fair is not None:
        rules.append(("fair", limits.fair.key, limits.fair))
    rules += [
        ("engine", knob, {"value": getattr(limits, knob)})
        for knob in _KNOBS
        if _given(settings, knob)
    ]
    return [
        SetLimit(kind, name, _dump(rule), "config", declared=True) for kind, name, rule in rules
    ]


def _given(settings: Settings, name: str) -> bool:
    source = name.removesuffix("_us")
    return source in settings.sources or getattr(settings, name) != getattr(_DEFAULTS, name)


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
        overflow: ProvisionController | None = None,
        ends_itself: bool = False,
    ) -> None:
        """`overflow` is told of demand while this process leads; whoever made it closes it.

        `ends_itself`: somebody ends the worker when its lifetime is over, so that it joins with that in mind.
        """
        self.store = store
        self.settings = settings
        self.overflow = overflow
        self.metrics: Metrics = Metrics()
        self.member: Membership | None = None
        self.candidate: Candidate | None = None
        self._name = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
        self._tasks: list[asyncio.Task[None]] = []
        if work:
            self.member = Membership(
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
    def worker(self) -> LocalWorker:
        if self.member is None:
            raise LookupError("this engine has no worker")
        return self.member.worker

    @property
    def coordinator(self) -> Leader | None:
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

    def _coordinator(self) -> Leader | None:
        return None if self.candidate is None else self.candidate.coordinator

    def _stands(self) -> str | None:
        if self.member is None:
            return self._name
        return None if self.member.lost.is_set() else self.member.worker.id

    def _local(self) -> LocalWorker | None:
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
