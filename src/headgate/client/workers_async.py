"""Namespace `workers`, for async code."""

from __future__ import annotations

from headgate.base.errors import NotFound
from headgate.base.model import Request
from headgate.base.names import did_you_mean
from headgate.client.core import Core
from headgate.client.views import Requested, WorkerInfo

WorkerInfos = list[WorkerInfo]


class AsyncWorkers:
    def __init__(self, core: Core) -> None:
        self._core = core

    async def drain(self, worker: str) -> Requested:
        """Asks a worker to take no more tasks; what it runs may finish."""
        core = self._core
        core.guard.check()
        known = {row.id for row in await core.store.workers()}
        if worker not in known:
            raise NotFound(
                f"there is no worker {worker!r}.",
                field="worker",
                got=worker,
                hint=did_you_mean(worker, known) or "No worker is running.",
            )
        if core.engine is not None and core.engine.worker.id == worker:
            await core.engine.drain()
            return Requested((worker,), leader=True)
        await core.store.ask([Request("drain", worker, who=core.who)])
        core.changed()
        return Requested((worker,), await core.leader())

    async def list(self) -> WorkerInfos:
        """Workers as they last described themselves; who only holds slots is not one of them."""
        core = self._core
        core.guard.check()
        now = await core.store.now()
        rows = await core.store.workers()
        return [WorkerInfo.of(row, now) for row in rows if "hold" not in row.permits]
