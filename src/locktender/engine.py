"""The engine of one process: a worker, a candidate for the lead, or both.

Two engines on one store: one leads, both work. A server leads and has no worker; a worker started by itself
leads only where that was asked for. `leader` and `worker` do not know each other: they meet here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from weakref import WeakSet

import msgspec

from locktender.base.background import end_tasks
from locktender.base.clock import Clock, SystemClock
from locktender.base.commits import RunEnd
from locktender.base.config import Settings
from locktender.base.errors import RoleRefused
from locktender.base.limits import Limits
from locktender.flows.registry import Registry, registry
from locktender.leader.election import Election
from locktender.leader.leader import Leader
from locktender.observe.metrics import Metrics
from locktender.provision.controller import ProvisionController
from locktender.store.lease_thread import LeaseThread
from locktender.store.protocol import SetLimit, Store
from locktender.worker.announcements import FlowAnnouncer
from locktender.worker.membership import Membership
from locktender.worker.worker import LocalWorker

log: logging.Logger = logging.getLogger(__name__)
_dump = msgspec.json.Encoder().encode
_DEFAULTS = Limits()
_KNOBS = (
    "age_boost_us", "max_bypass", "max_starts_per_cycle", "max_waiting", "placement", "strict_pools",
    "topic_retention_us",
)  # fmt: skip


def declared_limits(settings: Settings) -> list[SetLimit]:
    """The limits that were configured, and no defaults: those would undo what another engine configured."""
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


ENGINES: WeakSet[Engine] = WeakSet()
"""Of this process; some may have ended."""


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
        """`overflow` gets the demand while this process leads; the caller closes it.

        `ends_itself`: the caller ends the worker when its lifetime is over (`max_tasks`, `idle_exit` …).
        """
        self.store = store
        self.settings = settings
        ENGINES.add(self)
        self.overflow = overflow
        self.metrics: Metrics = Metrics()
        clock = clock or SystemClock()
        self.leases: LeaseThread = LeaseThread(store.twin, clock)
        self.membership: Membership | None = None
        self.election: Election | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._announcer = FlowAnnouncer(store, known) if work else None
        if work:
            self.membership = Membership(
                store,
                settings,
                clock,
                known,
                self.metrics,
                self.leases,
                ends_itself=ends_itself,
            )
            self.metrics.describe = self.membership.describe
        if lead:
            name = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
            self.election = Election(
                store, settings, name, self.membership, self.metrics, self.leases, overflow
            )

    @property
    def worker(self) -> LocalWorker:
        if self.membership is None:
            raise LookupError("this engine has no worker")
        return self.membership.worker

    @property
    def leader(self) -> Leader | None:
        """The leader, while it is in this process."""
        return None if self.election is None else self.election.leader

    @property
    def leads(self) -> bool:
        return self.leader is not None

    @property
    def lost(self) -> bool:
        """Whether its worker is without a lease."""
        return self.membership is not None and not self.membership.has_lease

    def on_runs_ended(self, callback: Callable[[list[RunEnd]], None]) -> None:
        """`callback` gets the runs that end while this process leads, when that is written."""
        if self.election is not None:
            self.election.on_runs_ended(callback)

    async def start(self) -> None:
        """Join, and lead if no other process does. Returns when the worker, if there is one, has its lease."""
        if changes := declared_limits(self.settings):
            await self._declare(changes)
        if self.membership is not None:
            await self.membership.start()
        if self._announcer is not None:
            self._announcer.notice()
        if self.election is not None:
            self._tasks = [
                asyncio.create_task(self.election.watch(), name="locktender-watch"),
                asyncio.create_task(self.election.run(), name="locktender-lead"),
            ]

    async def _declare(self, changes: list[SetLimit]) -> None:
        try:
            await self.store.set_limit(changes)
        except RoleRefused as error:
            if self.election is not None:
                raise
            log.warning(
                "limits in this worker's settings are not declared, the server's are in force: %s",
                error,
            )

    async def stop(self, grace_us: int | None = None) -> None:
        """Drain: no new tasks, what runs may finish within the grace, the rest is handed back."""
        left: list[int] = []
        if self._announcer is not None:
            await self._announcer.close()
        if self.membership is not None:
            grace = self.settings.grace_us if grace_us is None else grace_us
            left = await self.membership.finish(grace)
        # It leads until its worker's last ends are written: they go with its commits.
        await end_tasks(self._tasks)
        if self.membership is not None:
            await self.membership.leave(left)
        await self.leases.close()

    async def drain(self) -> None:
        """Take no more tasks; what runs may finish. The engine goes on, and leads if it led."""
        if self.membership is not None:
            await self.membership.drain()

    async def undrain(self) -> bool:
        """Take tasks again after `drain`; False: the process ends."""
        return self.membership is not None and await self.membership.undrain()

    def wake(self) -> None:
        """This process committed something (a submission, a limit): its leader reads it at once."""
        if self.membership is not None:
            self.membership.publish_names()
        if self._announcer is not None:
            self._announcer.notice()
        if (leader := self.leader) is not None:
            leader.wake()
