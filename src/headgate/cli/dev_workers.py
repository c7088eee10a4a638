"""More workers for `dev`: processes that come when its own worker cannot take what waits, and go by themselves.

They run the same file. When it is reloaded those that run the old code are let
go: they finish what they have, and what still waits is done by new ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from headgate.base.clock import SECOND
from headgate.base.config import Settings
from headgate.base.errors import HeadgateError
from headgate.base.model import WorkerRow
from headgate.client.core import Core
from headgate.flows.registry import registry
from headgate.provision.local import LocalProvisioner, worker_command
from headgate.stages.chores import end_tasks
from headgate.stages.overflow import Overflow


class MoreWorkers:
    def __init__(
        self, settings: Settings, sources: Sequence[str], given: Sequence[str], grace_us: int
    ) -> None:
        sets = dict(each.split("=", 1) for each in given)
        sets["grace"] = f"{grace_us}us"
        self._settings = settings
        self._provisioner = LocalProvisioner(
            worker_command(sources, settings, sets), settings, steps=_steps, grace_us=grace_us
        )
        self._overflow = Overflow(self._provisioner, settings)
        self._telling: asyncio.Task[None] | None = None

    async def begin(self, core: Callable[[], Core]) -> None:
        self._telling = asyncio.create_task(self._tell(core), name="headgate-overflow-tell")

    async def renew(self) -> None:
        """The code has changed: whoever runs the old one drains."""
        for each in await self._provisioner.list():
            if each.state in ("starting", "running"):
                await self._provisioner.release(each.name)

    async def close(self) -> None:
        if self._telling is not None:
            await end_tasks([self._telling])
        await self._overflow.close()

    async def _tell(self, core: Callable[[], Core]) -> None:
        """What the leader found, once per sweep."""
        while True:
            # Workers first: one that joins before the next sweep still counts as on its way.
            workers = await self._present(core())
            engine = core().engine
            coordinator = None if engine is None else engine.coordinator
            before = None if coordinator is None else coordinator.demand
            await asyncio.sleep(self._settings.poll_us / SECOND)
            if workers is not None and coordinator is not None and coordinator.demand is not before:
                self._overflow.sees(coordinator.demand, workers)

    async def _present(self, core: Core) -> list[WorkerRow] | None:
        try:
            return await core.store.workers()
        except HeadgateError:
            return None  # the engine is being restarted, or the store is busy: the next look tells


def _steps() -> dict[str, str]:
    return {name: step.signature for name, step in dict(registry.steps).items()}
