"""Namespaces `pools` and `limits`, for sync code."""

from __future__ import annotations

from collections.abc import Mapping

from locktender.base.durations import Duration
from locktender.base.limits import Rate
from locktender.client.bridge import Bridge
from locktender.client.limits_async import RUNS, AsyncLimits
from locktender.client.pools_async import AsyncPools
from locktender.client.views import UNSET, LimitChangeInfo, LimitInfo, PoolInfo, Unset

PoolInfos = list[PoolInfo]
LimitInfos = list[LimitInfo]


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
    ) -> None:
        """Sets what is given of a pool and keeps the rest; a pool that is not there is made.

        name   `db`; `api[acme]` for one key, which then has a rule of its own; `api[*]` for each key
        limit  slots: 1 and up, -1 is unlimited (the default of a new pool)
        lease  how long a dead holder's slots are kept; None: as long as its worker's lease (default)
        rate   starts per time, "60/min" or "100/10s"; None takes the rate away (default: none)
        burst  starts at once after a pause, 1 and up; default 1

            pools.set("api", limit=4, rate="60/min", burst=5)
        """
        self._bridge.call(self._pools.set(name, limit, lease=lease, rate=rate, burst=burst))

    def get(self, name: str) -> PoolInfo:
        """One pool. Raises `NotFound` where it was never set and no active task needs it."""
        return self._bridge.call(self._pools.get(name))

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


class SyncLimits:
    """Namespace `client.limits`: every limit but pools. A change holds at once, over all processes.

    A limit's name is the word it is set by (`max_concurrent_runs`, `max_active`, `fair`,
    `age_boost` …) or the rule of a tag: `tenant`, `tenant=acme`, `tenant=*` for each value.
    """

    def __init__(self, bridge: Bridge, limits: AsyncLimits) -> None:
        self._bridge = bridge
        self._limits = limits

    def set_max_concurrent_runs(self, n: int) -> None:
        """Sets how many runs execute at once: 1 and up, -1 is unlimited; default 10."""
        self._bridge.call(self._limits.set_max_concurrent_runs(n))

    def set_max_active(self, n: int) -> None:
        """Sets the admission ceiling, queued and running runs: 1 and up, -1 is unlimited; default 10,000."""
        self._bridge.call(self._limits.set_max_active(n))

    def set_tag(
        self,
        key: str,
        value: str | int | bool | None = None,
        limit: int | None = None,
        *,
        per_value: bool = False,
        max_active: int | None = None,
    ) -> None:
        """Bounds the runs that have a tag.

        key, value  runs with this tag; without `value` runs with any value of it
        limit       runs executing at once: 1 and up, -1 is unlimited; default None, unchanged
        per_value   True: each value has the limit for itself; default False
        max_active  queued and running runs, a ceiling; default None, unchanged

            limits.set_tag("tenant", limit=1, per_value=True)
        """
        self._bridge.call(
            self._limits.set_tag(key, value, limit, per_value=per_value, max_active=max_active)
        )

    def set_fair(self, key: str, weights: Mapping[str, int] | None = None) -> None:
        """Shares turns between the values of tag `key`; `weights` by value, 1 where none is given."""
        self._bridge.call(self._limits.set_fair(key, weights))

    def set(self, name: str, value: int | str | bool) -> None:
        """Sets a limit by its name, as `locktender limits set` does.

        name   `max_concurrent_runs`, `max_active`, `fair`, `age_boost`, `max_bypass`,
               `max_starts_per_cycle`, `placement`, `strict_pools`, or the rule of a tag with a `=`:
               `tenant=acme`, `tenant=*`
        value  a number, -1 is unlimited; for `fair` a tag, for `age_boost` a duration
        """
        self._bridge.call(self._limits.set(name, value))

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

    def list(self) -> LimitInfos:
        """Every limit in force except pools; one that was never set shows its default."""
        return self._bridge.call(self._limits.list())
