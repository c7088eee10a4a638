"""What the acceptance tests over processes share: a server that leads, workers beside it, the store itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.support.cluster import Cluster, ClusterNode

from locktender import Client, Run
from locktender.store.open import settings_for, store_for
from locktender.store.protocol import Store
from locktender.testing.overlap import Overlap
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

T = TypeVar("T")
HERE = Path(__file__).parents[1] / "steps"
FILES = (HERE / "fleet_steps.py", HERE / "engine_steps.py")
fleet: Any = load(source(FILES[0]))
steps: Any = load(source(FILES[1]))
TIMEOUT = "90s"
Measured = Callable[[str, object], None]


@dataclass
class Fleet:
    """What stands for a whole module: see `shared_cluster.py`."""

    cluster: Cluster
    client: Client
    overlap: Overlap
    workers: list[ClusterNode]

    @property
    def url(self) -> str:
        return self.cluster.url

    @property
    def pids(self) -> set[int]:
        """Of the workers."""
        return {node.pid for node in self.workers}

    def idle(self) -> bool:
        return not self.client.runs.list(status=["queued", "running", "cancelling"], limit=1)


def start(
    cluster: Cluster,
    workers: int = 2,
    *,
    server: dict[str, Any] | None = None,
    **settings: Any,
) -> list[ClusterNode]:
    """A server that leads, and workers, all ready; the workers are returned. `settings` are the workers'."""
    nodes = [cluster.server(**(server or {}))]
    nodes += [cluster.worker(*FILES, **settings) for _ in range(workers)]
    return [node.ready() for node in nodes][1:]


def join(cluster: Cluster, **settings: Any) -> ClusterNode:
    """One more worker, ready."""
    return cluster.worker(*FILES, **settings).ready()


def ask(url: str, question: Callable[[Store], Awaitable[T]]) -> T:
    """Asks the store itself, beside everybody, as another process would."""

    async def asking() -> T:
        store = store_for(settings_for(url, {}))
        await store.open()
        try:
            return await question(store)
        finally:
            await store.close()

    return asyncio.run(asking())


def pids(overlap: Overlap, name: str) -> list[int]:
    """Where bodies of one name ran, in the order in which they began."""
    return [span.pid for span in overlap.spans(name)]


def changes(run: Run[Any], subject: str, name: str | None = None) -> list[tuple[str, str]]:
    return [
        (event.before, event.after)
        for event in run.events()
        if event.subject == subject and (name is None or event.name == name)
    ]


def ended(runs: Collection[Run[Any]]) -> set[str]:
    return {str(run.wait(TIMEOUT)) for run in runs}


def gates(run: Run[Any]) -> set[str]:
    """Every gate that blocks a queued run, or any task of an executing one."""
    why = run.why()
    several = (why.reasons, *(group.reasons for group in why.waiting))
    return {reason.gate for reasons in several for reason in reasons}


def joined(client: Client, node: ClusterNode) -> str:
    """The id of a node's worker, once it has one."""
    return next(worker.id for worker in client.workers.list() if worker.pid == node.pid)
