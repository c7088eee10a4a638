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
    """Namespace `client.runs`: find, cancel and retry runs."""

    def __init__(self, bridge: Bridge, runs: AsyncRuns) -> None:
        self._bridge = bridge
        self._runs = runs

    def get(self, run: str) -> Run[Any]:
        """A run by its id, or by at least 4 characters that only its id begins with.

        Raises `NotFound`, or `InvalidInput` where several begin with them.
        """
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
        """Asks for runs to end *cancelled*: one, several, or all active ones that match.

        run     an id, a run, or several
        status  a state or several: "failed", "queued" …
        tags    runs with all of these tags
        flow    the flow's name
        reason  kept in the history; default none
        force   True: without their clean-up steps (`run_if="always"`); default False
        """
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
        """Queues ended runs again: one, several, or all that match and did not succeed.

        run     an id, a run, or several
        status  a state or several: "failed", "queued" …
        tags    runs with all of these tags
        flow    the flow's name

        Where some of several cannot be queued, the others are, and the error says which:
        `AdmissionRejected.retried` and `.refused`.
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
        """The newest runs that match, newest first.

        status  a state or several: "failed", "queued" …
        tags    runs with all of these tags
        flow    the flow's name
        limit   1 to 100,000; default 100
        """
        return self._bridge.call(self._runs.list(status, tags, flow, limit))


class SyncQueue:
    """Namespace `client.queue`: runs that have not started."""

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
        """Asks for queued runs to be cancelled; a run that has started by then goes on.

        run     an id, a run, or several
        tags    queued runs with all of these tags
        flow    queued runs of this flow
        reason  kept in the history; default none
        """
        return self._bridge.call(self._queue.cancel(_ids(run), tags=tags, flow=flow, reason=reason))

    def reprioritise(self, run: Ids, priority: int) -> Requested:
        """Gives queued runs another priority, -1,000,000 to 1,000,000; a run that has started is unchanged."""
        return self._bridge.call(self._queue.reprioritise(_ids(run) or [], priority))

    def list(self, limit: int = 100) -> QueueInfos:
        """Queued runs in the order in which they start: priority, then fair turn, then age.

        `limit`: 1 to 100,000; default 100.
        """
        return self._bridge.call(self._queue.list(limit))


class SyncWorkers:
    """Namespace `client.workers`: the workers there are."""

    def __init__(self, bridge: Bridge, workers: AsyncWorkers) -> None:
        self._bridge = bridge
        self._workers = workers

    def drain(self, worker: str) -> Requested:
        """Asks a worker, by its id or the beginning of it, to accept no more tasks; its running tasks finish."""
        return self._bridge.call(self._workers.drain(worker))

    def get(self, worker: str) -> WorkerInfo:
        """One worker by its id, or by as much of it as only one id begins with. Raises `NotFound`."""
        return self._bridge.call(self._workers.get(worker))

    def list(self) -> WorkerInfos:
        """Every worker as it last described itself; processes that only hold slots are left out."""
        return self._bridge.call(self._workers.list())
