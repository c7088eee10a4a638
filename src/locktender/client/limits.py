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
        """Sets what is given and keeps the rest; −1 is unlimited, None takes a lease or a rate away."""
        self._bridge.call(self._pools.set(name, limit, lease=lease, rate=rate, burst=burst))

    def get(self, name: str) -> PoolInfo:
        """One pool. Raises `NotFound` where nobody set it and no active task needs it."""
        return self._bridge.call(self._pools.get(name))

    def pause(self, name: str) -> None:
        """Nothing more starts that needs the pool; who holds slots finishes."""
        self._bridge.call(self._pools.pause(name))

    def resume(self, name: str) -> None:
        self._bridge.call(self._pools.resume(name))

    def reset(self, name: str) -> None:
        """Back to what code or configuration declares; unlimited where they declare nothing."""
        self._bridge.call(self._pools.reset(name))

    def delete(self, name: str) -> None:
        """Forgets the pool, declared default included, until code or configuration declares it again."""
        self._bridge.call(self._pools.delete(name))

    def list(self) -> PoolInfos:
        """Every pool that was set, or that an active task needs, with its use at this moment."""
        return self._bridge.call(self._pools.list())


class SyncLimits:
    """A limit's name is the word it is set by, or the rule of a tag: `tenant`, `tenant=acme`, `tenant=*`."""

    def __init__(self, bridge: Bridge, limits: AsyncLimits) -> None:
        self._bridge = bridge
        self._limits = limits

    def set_max_concurrent_runs(self, n: int) -> None:
        """Runs executing at once; −1 is unlimited."""
        self._bridge.call(self._limits.set_max_concurrent_runs(n))

    def set_max_active(self, n: int) -> None:
        """The admission ceiling: queued and running runs; −1 is unlimited."""
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
        """Bounds runs with a tag: with `key`, with `key=value`, or each distinct value (`per_value`)."""
        self._bridge.call(
            self._limits.set_tag(key, value, limit, per_value=per_value, max_active=max_active)
        )

    def set_fair(self, key: str, weights: Mapping[str, int] | None = None) -> None:
        """Shares turns between the values of one tag, in proportion to their weights (default 1)."""
        self._bridge.call(self._limits.set_fair(key, weights))

    def set(self, name: str, value: int | str | bool) -> None:
        """Sets a limit by its name, as `locktender limits set` does: also settings of the engine."""
        self._bridge.call(self._limits.set(name, value))

    def pause(self, name: str = RUNS) -> None:
        """Starts no more runs, or none with a tag (`tenant=acme`); what runs goes on."""
        self._bridge.call(self._limits.pause(name))

    def resume(self, name: str = RUNS) -> None:
        self._bridge.call(self._limits.resume(name))

    def reset(self, name: str) -> None:
        """Back to what code or configuration declares."""
        self._bridge.call(self._limits.reset(name))

    def history(self, limit: int = 100) -> list[LimitChangeInfo]:
        """Who changed what, when, from what to what; the newest first. Pools included."""
        return self._bridge.call(self._limits.history(limit))

    def list(self) -> LimitInfos:
        """Every limit that is in force except pools; one that was never set shows its default."""
        return self._bridge.call(self._limits.list())
