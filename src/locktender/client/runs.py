"""Namespaces `runs`, `queue` and `workers`, for sync code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from locktender.client.bridge import Bridge
from locktender.client.run import Run
from locktender.client.runs_async import AsyncQueue, AsyncRuns, AsyncWorkers, Status
from locktender.client.submit import TagValues
from locktender.client.views import QueueInfo, Requested, RunInfo, WorkerInfo

Ids = str | Run[Any] | Iterable[str | Run[Any]]
RunInfos = list[RunInfo]
QueueInfos = list[QueueInfo]
WorkerInfos = list[WorkerInfo]


def _ids(run: Ids | None) -> str | list[str] | None:
    if run is None or isinstance(run, str):
        return run
    return (
        run.id
        if isinstance(run, Run)
        else [each if isinstance(each, str) else each.id for each in run]
    )


class SyncRuns:
    def __init__(self, bridge: Bridge, runs: AsyncRuns) -> None:
        self._bridge = bridge
        self._runs = runs

    def get(self, run: str) -> Run[Any]:
        """A run by its id, or by a part of it that only one run's id begins with."""
        return Run(self._bridge, self._bridge.call(self._runs.get(run)))

    def cancel(
        self,
        run: Ids | None = None,
        *,
        status: Status | None = None,
        tags: TagValues | None = None,
        flow: str | None = None,
        reason: str = "",
        force: bool = False,
    ) -> Requested:
        """Asks for runs to end *cancelled*; by `force` without their clean-up steps."""
        return self._bridge.call(
            self._runs.cancel(
                _ids(run), status=status, tags=tags, flow=flow, reason=reason, force=force
            )
        )

    def retry(
        self,
        run: Ids | None = None,
        *,
        status: Status | None = None,
        tags: TagValues | None = None,
        flow: str | None = None,
    ) -> list[Run[Any]]:
        """Queues ended runs again, past the ceiling like submissions: one, several, or all that match.

        Where not all of several can be queued, those that can are: the error raised then
        says which (`AdmissionRejected.retried`, `.refused`).
        """
        again = self._bridge.call(self._runs.retry(_ids(run), status=status, tags=tags, flow=flow))
        return [Run(self._bridge, each) for each in again]

    def list(
        self,
        status: Status | None = None,
        tags: TagValues | None = None,
        flow: str | None = None,
        limit: int = 100,
    ) -> RunInfos:
        """The newest runs that match."""
        return self._bridge.call(self._runs.list(status, tags, flow, limit))


class SyncQueue:
    def __init__(self, bridge: Bridge, queue: AsyncQueue) -> None:
        self._bridge = bridge
        self._queue = queue

    def cancel(
        self,
        run: Ids | None = None,
        *,
        tags: TagValues | None = None,
        flow: str | None = None,
        reason: str = "",
    ) -> Requested:
        """Asks for queued runs to be cancelled; one that has started by then is left alone."""
        return self._bridge.call(self._queue.cancel(_ids(run), tags=tags, flow=flow, reason=reason))

    def reprioritise(self, run: Ids, priority: int) -> Requested:
        """Gives queued runs another priority; what has started is left alone."""
        return self._bridge.call(self._queue.reprioritise(_ids(run) or [], priority))

    def list(self, limit: int = 100) -> QueueInfos:
        """Queued runs in their global order: priority, then fair turn, then age."""
        return self._bridge.call(self._queue.list(limit))


class SyncWorkers:
    def __init__(self, bridge: Bridge, workers: AsyncWorkers) -> None:
        self._bridge = bridge
        self._workers = workers

    def drain(self, worker: str) -> Requested:
        """Asks a worker to take no more tasks; what it runs may finish. `worker`: its id, or its beginning."""
        return self._bridge.call(self._workers.drain(worker))

    def get(self, worker: str) -> WorkerInfo:
        """One worker by its id, or by as much of it as tells it from the others."""
        return self._bridge.call(self._workers.get(worker))

    def list(self) -> WorkerInfos:
        """Workers as they last described themselves; who only holds slots is not one of them."""
        return self._bridge.call(self._workers.list())
