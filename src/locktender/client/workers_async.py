"""Namespace `workers`, for async code."""

from __future__ import annotations

from locktender.base.errors import InvalidInput, NotFound
from locktender.base.model import Request
from locktender.base.names import did_you_mean
from locktender.client.core import Core
from locktender.client.views import Requested, WorkerInfo

WorkerInfos = list[WorkerInfo]


class AsyncWorkers:
    def __init__(self, core: Core) -> None:
        self._core = core

    async def drain(self, worker: str) -> Requested:
        """Asks a worker to take no more tasks; what it runs may finish. `worker`: its id, or its beginning."""
        core = self._core
        worker = (await self.get(worker)).id
        engine = core.engine
        if engine is not None and engine.member is not None and engine.worker.id == worker:
            await engine.drain()
            return Requested((worker,), leader=True)
        await core.store.ask([Request("drain", worker, who=core.who)])
        core.changed()
        return Requested((worker,), await core.leader())

    async def get(self, worker: str) -> WorkerInfo:
        """One worker by its id, or by as much of it as tells it from the others."""
        found = await self.list()
        fits = [each for each in found if each.id == worker] or [
            each for each in found if worker and each.id.startswith(worker)
        ]
        if len(fits) == 1:
            return fits[0]
        if fits:
            raise InvalidInput(
                f"{len(fits)} workers have an id that begins with {worker!r}.",
                field="worker",
                got=worker,
                hint=f"Name one of them: {', '.join(each.id for each in fits[:5])}.",
            )
        raise NotFound(
            f"there is no worker {worker!r}.",
            field="worker",
            got=worker,
            hint=did_you_mean(worker, [each.id for each in found]) or "No worker is running.",
        )

    async def list(self) -> WorkerInfos:
        """Workers as they last described themselves; who only holds slots is not one of them."""
        core = self._core
        core.guard.check()
        now = await core.store.now()
        rows = await core.store.workers()
        return [WorkerInfo.of(row, now) for row in rows if "hold" not in row.permits]
