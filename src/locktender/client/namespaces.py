"""The namespaces of the sync client: `runs`, `queue`, `workers`, `pools` and `limits`, across the bridge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from locktender.base.durations import Duration
from locktender.base.limits import Rate
from locktender.base.tracebacks import public
from locktender.client.bridge import Bridge, documented_as
from locktender.client.limits_async import RUNS, AsyncLimits
from locktender.client.pools_async import AsyncPools
from locktender.client.run import Run
from locktender.client.runs_async import AsyncQueue, AsyncRuns, Status
from locktender.client.submission import TagValues
from locktender.client.views import (
    UNSET,
    LimitChangeInfo,
    LimitInfo,
    PoolInfo,
    QueueInfo,
    Requested,
    RunInfo,
    Unset,
    WorkerInfo,
)
from locktender.client.workers import AsyncWorkers

if TYPE_CHECKING:
    from locktender.client.explained import ExplainedQueue
    from locktender.client.pool_holders import PoolHolders
    from locktender.observe.holders import LimitCost

Ids = str | Run[Any] | Iterable[str | Run[Any]]
RunIds = list[str]
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


@public
class SyncRuns:
    """Namespace `client.runs`: find, cancel and retry runs."""

    def __init__(self, bridge: Bridge, runs: AsyncRuns) -> None:
        self._bridge = bridge
        self._runs = runs

    def get(self, run: str) -> Run[Any]:
        """A run by its whole id. Raises `NotFound`."""
        return Run(self._bridge, self._bridge.call(self._runs.get(run)))

    def find(self, beginning: str) -> Run[Any]:
        """A run by at least 4 characters that only its id begins with, as a person types them.

        Not for text from strangers: they could guess the beginning of an id that is not theirs.
        Raises `NotFound`, or `InvalidInput` where several begin with them.
        """
        return Run(self._bridge, self._bridge.call(self._runs.find(beginning)))

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

        run     a whole id, a run, or several
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

    def count(
        self,
        status: Status | None = None,
        tags: TagValues | None = None,
        flow: str | None = None,
    ) -> int:
        """How many runs match; without a filter all."""
        return self._bridge.call(self._runs.count(status, tags, flow))

    def pause(
        self,
        run: Ids | None = None,
        reason: str = "",
        *,
        status: Status | None = None,
        tags: TagValues | None = None,
        flow: str | None = None,
    ) -> RunIds:
        """Starts nothing more of runs that have not ended; tasks that run go on. Returns their ids.

        run     a whole id, a run, or several
        reason  kept in the history and shown by `why`; default none
        status  a state or several: "running", "queued" …; at most 1,000 runs may match
        tags    runs with all of these tags
        flow    the flow's name
        """
        return self._bridge.call(
            self._runs.pause(_ids(run), reason, status=status, tags=tags, flow=flow)
        )

    def resume(
        self,
        run: Ids | None = None,
        *,
        status: Status | None = None,
        tags: TagValues | None = None,
        flow: str | None = None,
    ) -> RunIds:
        """Lets paused runs go on, by id or by a filter as `pause` takes it. Returns their ids."""
        return self._bridge.call(self._runs.resume(_ids(run), status=status, tags=tags, flow=flow))

    def retry(
        self,
        run: Ids | None = None,
        *,
        status: Status | None = None,
        tags: TagValues | None = None,
        flow: str | None = None,
    ) -> list[Run[Any]]:
        """Queues ended runs again: one, several, or all that match and did not succeed.

        run     a whole id, a run, or several
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
        before: int | None = None,
    ) -> RunInfos:
        """The newest runs that match, newest first.

        status  a state or several: "failed", "queued" …
        tags    runs with all of these tags
        flow    the flow's name
        limit   1 to 100,000; default 100
        before  only runs with a smaller `number`, for the next page; default None
        """
        return self._bridge.call(self._runs.list(status, tags, flow, limit, before))


@public
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

        run     a whole id, a run, or several
        tags    queued runs with all of these tags
        flow    queued runs of this flow
        reason  kept in the history; default none
        """
        return self._bridge.call(self._queue.cancel(_ids(run), tags=tags, flow=flow, reason=reason))

    def reprioritise(
        self,
        run: Ids | None,
        priority: int,
        *,
        tags: TagValues | None = None,
        flow: str | None = None,
    ) -> Requested:
        """Gives queued runs another priority; a run that has started is unchanged.

        run       a whole id, a run, or several; None: all queued ones that match
        priority  -1,000,000 to 1,000,000
        tags      queued runs with all of these tags
        flow      queued runs of this flow
        """
        return self._bridge.call(
            self._queue.reprioritise(_ids(run), priority, tags=tags, flow=flow)
        )

    def list(self, limit: int = 100) -> QueueInfos:
        """Queued runs in the order in which they start: priority, then fair turn, then age.

        `limit`: 1 to 100,000; default 100.
        """
        return self._bridge.call(self._queue.list(limit))

    @documented_as(AsyncQueue.explained)
    def explained(self, limit: int = 100) -> ExplainedQueue:
        return self._bridge.call(self._queue.explained(limit))


@public
class SyncWorkers:
    """Namespace `client.workers`: the workers there are."""

    def __init__(self, bridge: Bridge, workers: AsyncWorkers) -> None:
        self._bridge = bridge
        self._workers = workers

    def drain(self, worker: str) -> Requested:
        """Asks a worker, by its id or the beginning of it, to accept no more tasks; its running tasks finish."""
        return self._bridge.call(self._workers.drain(worker))

    def undrain(self, worker: str) -> Requested:
        """Takes back `drain`: the worker, by its id or the beginning of it, accepts tasks again.

        Raises `NotFound`, or `InvalidInput` if it does not drain, has left, or drains because its process ends.
        """
        return self._bridge.call(self._workers.undrain(worker))

    def get(self, worker: str) -> WorkerInfo:
        """One worker by its id, or by as much of it as only one id begins with. Raises `NotFound`."""
        return self._bridge.call(self._workers.get(worker))

    def list(self) -> WorkerInfos:
        """Every worker as it last described itself; processes that only hold slots are left out."""
        return self._bridge.call(self._workers.list())


PoolInfos = list[PoolInfo]
LimitInfos = list[LimitInfo]


@public
class SyncPools:
    """Namespace `client.pools`: slots that tasks hold while they run. A change holds over all processes."""

    def __init__(self, bridge: Bridge, pools: AsyncPools) -> None:
        self._bridge = bridge
        self._pools = pools

    def set(
        self,
        name: str,
        limit: int | Unset = UNSET,
        *,
        lease: Duration | Unset | None = UNSET,
        rate: str | Rate | Unset | None = UNSET,
        burst: int | Unset = UNSET,
        expected: int | None = None,
    ) -> None:
        """Sets what is given of a pool and keeps the rest; a pool that is not there is made.

        name   `db`; `api[acme]` for one key, which then has a rule of its own; `api[*]` for each key
        limit  slots: 1 and up, -1 is unlimited (the default of a new pool)
        lease  how long a dead holder's slots are kept; None: as long as its worker's lease (default)
        rate   starts per time, "60/min" or "100/10s"; None takes the rate away (default: none)
        burst  starts at once after a pause, 1 and up; default 1
        expected  only if the limit is this now, else `LimitChanged`; default None, whatever it is

            pools.set("api", limit=4, rate="60/min", burst=5)
        """
        self._bridge.call(
            self._pools.set(name, limit, lease=lease, rate=rate, burst=burst, expected=expected)
        )

    def get(self, name: str) -> PoolInfo:
        """One pool. Raises `NotFound` where it was never set and no active task needs it."""
        return self._bridge.call(self._pools.get(name))

    @documented_as(AsyncPools.holders)
    def holders(self, name: str) -> PoolHolders:
        return self._bridge.call(self._pools.holders(name))

    def pause(self, name: str) -> None:
        """Starts nothing more that needs the pool; running tasks keep their slots until they end."""
        self._bridge.call(self._pools.pause(name))

    def resume(self, name: str) -> None:
        """Ends a pause; the limit is as it was before."""
        self._bridge.call(self._pools.resume(name))

    def reset(self, name: str) -> None:
        """Returns the pool to what code or the settings file declares; unlimited where they declare nothing."""
        self._bridge.call(self._pools.reset(name))

    def delete(self, name: str) -> None:
        """Removes the pool and its declared default, until code or the settings file declares it again."""
        self._bridge.call(self._pools.delete(name))

    def list(self) -> PoolInfos:
        """Every pool that was set, or that an active task needs, with its use at this moment."""
        return self._bridge.call(self._pools.list())


@public
class SyncLimits:
    """Namespace `client.limits`: every limit but pools. A change holds at once, over all processes.

    A limit's name is the word it is set by (`max_concurrent_runs`, `max_active`, `fair`,
    `age_boost` …) or the rule of a tag: `tenant`, `tenant=acme`, `tenant=*` for each value.
    """

    def __init__(self, bridge: Bridge, limits: AsyncLimits) -> None:
        self._bridge = bridge
        self._limits = limits

    def set_max_concurrent_runs(self, n: int, *, expected: int | None = None) -> None:
        """Sets how many runs execute at once: 1 and up, -1 is unlimited; default 10.

        `expected`: only if it is this now, else `LimitChanged`; default None, whatever it is.
        """
        self._bridge.call(self._limits.set_max_concurrent_runs(n, expected=expected))

    def set_max_active(self, n: int, *, expected: int | None = None) -> None:
        """Sets the admission ceiling, queued and running runs: 1 and up, -1 is unlimited; default 10,000.

        `expected`: only if it is this now, else `LimitChanged`; default None, whatever it is.
        """
        self._bridge.call(self._limits.set_max_active(n, expected=expected))

    def set_tag(
        self,
        key: str,
        value: str | int | bool | None = None,
        limit: int | None = None,
        *,
        per_value: bool = False,
        max_active: int | None = None,
        counts_while_waiting: bool | None = None,
        expected: int | None = None,
    ) -> None:
        """Bounds the runs that have a tag.

        key, value  runs with this tag; without `value` runs with any value of it
        limit       runs executing at once: 1 and up, -1 is unlimited; default None, unchanged
        per_value   True: each value has the limit for itself; default False
        max_active  queued and running runs, a ceiling; default None, unchanged
        counts_while_waiting
                    True: a run that has started keeps its place while it sleeps or waits for an event, until
                    it ends (a mutex); False: it gives it back; default None, unchanged
        expected    only if `limit` is this now, else `LimitChanged`; default None, whatever it is

            limits.set_tag("tenant", limit=1, per_value=True)
        """
        self._bridge.call(
            self._limits.set_tag(
                key,
                value,
                limit,
                per_value=per_value,
                max_active=max_active,
                counts_while_waiting=counts_while_waiting,
                expected=expected,
            )
        )

    def set_fair(self, key: str, weights: Mapping[str, int] | None = None) -> None:
        """Shares turns between the values of tag `key`; `weights` by value, 1 where none is given.

        Weights of other values stay as they are; without `weights` all are 1.
        """
        self._bridge.call(self._limits.set_fair(key, weights))

    def set(self, name: str, value: int | str | bool, *, expected: int | None = None) -> None:
        """Sets a limit by its name, as `locktender limits set` does.

        name   `max_concurrent_runs`, `max_active`, `fair`, `age_boost`, `max_bypass`,
               `max_starts_per_cycle`, `max_waiting`, `placement`, `strict_pools`, `topic_retention`, or the
               rule of a tag with a `=`: `tenant=acme`, `tenant=*`
        value  a number, -1 is unlimited; for `fair` a tag, for `age_boost` and `topic_retention` a duration
        expected  of a number of runs: only if it is this now, else `LimitChanged`; default None
        """
        self._bridge.call(self._limits.set(name, value, expected=expected))

    def pause(self, name: str = RUNS) -> None:
        """Starts no more runs, or none with a tag (`tenant=acme`); running ones go on."""
        self._bridge.call(self._limits.pause(name))

    def resume(self, name: str = RUNS) -> None:
        """Ends a pause; the limit is as it was before."""
        self._bridge.call(self._limits.resume(name))

    def reset(self, name: str) -> None:
        """Returns a limit to what code or the settings file declares, or else to its default."""
        self._bridge.call(self._limits.reset(name))

    def history(self, limit: int = 100) -> list[LimitChangeInfo]:
        """Changes of limits and pools, newest first. `limit`: 1 to 100,000; default 100."""
        return self._bridge.call(self._limits.history(limit))

    def cost(self, last: Duration = "24h") -> list[LimitCost]:
        """What each limit cost in waiting, of waits that were over within `last`; the most expensive first."""
        return self._bridge.call(self._limits.cost(last))

    def list(self) -> LimitInfos:
        """Every limit in force except pools; one that was never set shows its default."""
        return self._bridge.call(self._limits.list())
