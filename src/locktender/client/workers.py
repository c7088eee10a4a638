"""Namespace `workers`, for async code: list, drain, undrain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from locktender.base.errors import InvalidInput, NotFound
from locktender.base.graph import Node
from locktender.base.ids import run_of
from locktender.base.model import Request, RequestKind
from locktender.base.names import did_you_mean
from locktender.base.states import TaskState
from locktender.base.tracebacks import public
from locktender.client.core import Core
from locktender.client.run_details import node_of, nodes_of
from locktender.client.views import Requested, WorkerInfo

if TYPE_CHECKING:
    from locktender.engine import Engine

WorkerInfos = list[WorkerInfo]
_PLACED = frozenset({TaskState.SCHEDULED, TaskState.RUNNING})


class PlacedTask(msgspec.Struct, frozen=True):
    """A task that runs on a worker, or is offered to it."""

    worker: str
    executor: str
    run: str
    tags: Mapping[str, str]
    task: int
    name: str
    unstopped: bool
    """It was asked to stop, and still runs."""


async def placed_tasks(core: Core) -> list[PlacedTask]:
    """Which worker has what, of all executing runs."""
    snapshot = await core.store.load(lost=False)
    runs = {row.seq: row for row in (*snapshot.runs, *snapshot.held)}
    told = {each.token for worker in snapshot.workers for each in worker.unstopped}
    graphs: dict[str, tuple[Node, ...]] = {}
    found: list[PlacedTask] = []
    for task in (*snapshot.tasks, *snapshot.held_tasks):
        row = runs.get(run_of(task.id))
        if task.worker is None or row is None or task.state not in _PLACED:
            continue
        if row.graph not in graphs:
            graphs[row.graph] = await nodes_of(core.store, row.graph)
        node = node_of(graphs[row.graph], task)
        name = node.name if task.idx < 0 else f"{node.name}[{task.idx}]"
        unstopped = task.token in told
        found.append(
            PlacedTask(task.worker, node.executor, row.id, row.tags, task.id, name, unstopped)
        )
    return found


def _no_undrain(worker: str, why: str, hint: str) -> InvalidInput:
    return InvalidInput(f"worker {worker!r} {why}.", field="worker", got=worker, hint=hint)


@public
class AsyncWorkers:
    """Namespace `client.workers`: the workers there are."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def drain(self, worker: str) -> Requested:
        """Asks a worker, by its id or the beginning of it, to accept no more tasks; its running tasks finish."""
        worker = (await self.get(worker)).id
        if (engine := self._engine_of(worker)) is not None:
            await engine.drain()
            return Requested((worker,), leader=True)
        return await self._ask("drain", worker)

    async def undrain(self, worker: str) -> Requested:
        """Takes back `drain`: the worker, by its id or the beginning of it, accepts tasks again.

        Raises `NotFound`, or `InvalidInput` if it does not drain, has left, or drains because its process ends.
        """
        found = await self.get(worker)
        if not found.alive and not found.stalled:
            raise _no_undrain(found.id, "has left", "Start a new one: locktender worker FILE.py.")
        if found.ending:
            raise _no_undrain(found.id, "was told to end", "A worker that ends cannot be kept.")
        if not found.draining and not await self._drain_asked(found.id):
            raise _no_undrain(found.id, "does not drain", "locktender workers list shows who does.")
        if (engine := self._engine_of(found.id)) is not None:
            if not await engine.undrain():
                raise _no_undrain(found.id, "is about to end", "It cannot be kept.")
            return Requested((found.id,), leader=True)
        return await self._ask("undrain", found.id)

    def _engine_of(self, worker: str) -> Engine | None:
        """The engine of this process, if the worker is its own."""
        if self._core.acts_for_another:
            return None  # the leader carries it out, and records who asked
        engine = self._core.engine
        own = engine is not None and engine.membership is not None and engine.worker.id == worker
        return engine if own else None

    async def _ask(self, kind: RequestKind, worker: str) -> Requested:
        core = self._core
        await core.store.ask([Request(kind, worker, who=core.who)])
        core.changed()
        return Requested((worker,), await core.leader())

    async def _drain_asked(self, worker: str) -> bool:
        """Whether a drain is on its way: asked of the leader, or ordered and not read yet."""
        asked = [each.request for each in (await self._core.store.load(lost=False)).requests]
        mine = [each.kind for each in asked if each is not None and each.subject == worker]
        if mine:
            return mine[-1] == "drain"
        orders = [each for each in await self._core.store.orders(worker) if each.task < 0]
        newest = min(orders, key=lambda order: order.task, default=None)
        return newest is not None and newest.kind == "drain"

    async def get(self, worker: str) -> WorkerInfo:
        """One worker by its id, or by as much of it as only one id begins with. Raises `NotFound`."""
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
        """Every worker as it last described itself; processes that only hold slots are left out."""
        core = self._core
        core.guard.check()
        now = await core.store.now()
        rows = await core.store.workers()
        return [WorkerInfo.of(row, now) for row in rows if "hold" not in row.permits]
