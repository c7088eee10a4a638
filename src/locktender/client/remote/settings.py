"""Namespaces `pools` and `limits` over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from locktender.base import names
from locktender.base.durations import Duration, microseconds
from locktender.base.errors import InvalidInput
from locktender.base.limits import Rate, fair_rule, pool_name, tag_rule
from locktender.base.tracebacks import public
from locktender.client.limits_async import RUNS, AsyncLimits, LimitInfos, limit_number
from locktender.client.pool_holders import PoolHolders
from locktender.client.pools_async import AsyncPools, PoolInfos, pool_patch, spoken_rate
from locktender.client.remote.core import RemoteCore
from locktender.client.remote.http import path_of
from locktender.client.views import (
    UNSET,
    LimitChangeInfo,
    LimitInfo,
    PoolInfo,
    Unset,
)

if TYPE_CHECKING:
    from locktender.observe.holders import LimitCost


@public
class RemotePools(AsyncPools):
    """Namespace `client.pools`, on a server."""

    def __init__(self, core: RemoteCore) -> None:
        super().__init__(core)
        self._http = core.http

    async def set(
        self,
        name: str,
        limit: int | Unset = UNSET,
        *,
        lease: Duration | Unset | None = UNSET,
        rate: str | Rate | Unset | None = UNSET,
        burst: int | Unset = UNSET,
        expected: int | None = None,
    ) -> None:
        pool_patch(pool_name(name), limit, lease, rate, burst)
        if isinstance(rate, Rate):
            burst = rate.burst if isinstance(burst, Unset) else burst
            rate = spoken_rate(rate)
        if isinstance(lease, Duration):
            lease = span(lease, "lease")
        given = {"limit": limit, "lease": lease, "rate": rate, "burst": burst}
        body = {key: value for key, value in given.items() if not isinstance(value, Unset)}
        if expected is not None:
            body["expected"] = expected
        # With `expected` a repetition would find its own change, and refuse it.
        again = expected is None
        await self._http.do("PUT", _pool(name), body=body, again=again)

    async def get(self, name: str) -> PoolInfo:
        return await self._http.get(_pool(name), PoolInfo)

    async def holders(self, name: str) -> PoolHolders:
        return await self._http.get(f"{_pool(name)}/holders", PoolHolders)

    async def list(self) -> PoolInfos:
        return await self._http.get("/pools", list[PoolInfo], "pools")

    async def pause(self, name: str) -> None:
        await self._http.do("POST", f"{_pool(name)}/pause", again=True)

    async def resume(self, name: str) -> None:
        await self._http.do("POST", f"{_pool(name)}/resume", again=True)

    async def reset(self, name: str) -> None:
        await self._http.do("POST", f"{_pool(name)}/reset")

    async def delete(self, name: str) -> None:
        await self._http.do("DELETE", _pool(name))


@public
class RemoteLimits(AsyncLimits):
    """Namespace `client.limits`, on a server."""

    def __init__(self, core: RemoteCore) -> None:
        super().__init__(core)
        self._http = core.http

    async def set_max_concurrent_runs(self, n: int, *, expected: int | None = None) -> None:
        limit = names.limit(n, RUNS, zero_hint="To start no run, use: limits pause.")
        await self._set(RUNS, limit, expected)

    async def set_max_active(self, n: int, *, expected: int | None = None) -> None:
        hint = "To start no run, use: limits pause. Use -1 for unlimited."
        await self._set("max_active", names.limit(n, "max_active", zero_hint=hint), expected)

    async def set_tag(
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
        if limit is None and max_active is None and counts_while_waiting is None:
            raise InvalidInput(
                f"say what to set for tag {key!r}.",
                field="limit",
                hint="limit=N bounds runs executing at once, max_active=N queued and running ones.",
            )
        rule = tag_rule(
            key,
            value,
            limit_=names.UNLIMITED if limit is None else limit,
            per_value=per_value,
            max_active=names.UNLIMITED if max_active is None else max_active,
        )
        body = {
            "limit": limit,
            "max_active": max_active,
            "counts_while_waiting": counts_while_waiting,
            "expected": expected,
        }
        path = path_of("limits", "tags", rule.name)
        await self._http.do("PUT", path, body=body, again=expected is None)

    async def set_fair(self, key: str, weights: Mapping[str, int] | None = None) -> None:
        rule = fair_rule(key, weights)
        body: dict[str, Any] = {"value": rule.key}
        if weights:
            body["weights"] = dict(weights)
        await self._http.do("PUT", "/limits/fair", body=body, again=True)

    async def set(self, name: str, value: int | str | bool, *, expected: int | None = None) -> None:
        key, equals, rest = names.text(name, "name").partition("=")
        if name == RUNS:
            await self.set_max_concurrent_runs(limit_number(value, name), expected=expected)
        elif name == "max_active":
            await self.set_max_active(limit_number(value, name), expected=expected)
        elif name == "fair":
            await self.set_fair(names.text(value, "fair"))
        elif equals:
            each, limit = rest == "*", limit_number(value, name)
            tag = None if each else rest
            await self.set_tag(key, tag, limit, per_value=each, expected=expected)
        else:
            await self._set(name, value, expected)

    async def pause(self, name: str = RUNS) -> None:
        await self._http.do("POST", path_of("limits", name, "pause"), again=True)

    async def resume(self, name: str = RUNS) -> None:
        await self._http.do("POST", path_of("limits", name, "resume"), again=True)

    async def reset(self, name: str) -> None:
        await self._http.do("POST", path_of("limits", name, "reset"))

    async def history(self, limit: int = 100) -> list[LimitChangeInfo]:
        query = {"limit": names.count(limit, "limit", maximum=100_000)}
        return await self._http.get("/limit-changes", list[LimitChangeInfo], "changes", query=query)

    async def cost(self, last: Duration = "24h") -> list[LimitCost]:
        from locktender.observe.holders import LimitCost

        query = {"last": span(last, "last")}
        return await self._http.get("/limit-costs", list[LimitCost], "costs", query=query)

    async def list(self) -> LimitInfos:
        return await self._http.get("/limits", list[LimitInfo], "limits")

    async def _set(self, name: str, value: int | str | bool, expected: int | None) -> None:
        body: dict[str, Any] = {"value": value}
        if expected is not None:
            body["expected"] = expected
        path = path_of("limits", name)
        await self._http.do("PUT", path, body=body, again=expected is None)


def span(value: Duration, field: str, minimum: int = 1) -> str:
    """A duration as a request has it: exact, and refused here where it is none."""
    return f"{microseconds(value, field, minimum=minimum)}us"


def _pool(name: str) -> str:
    return path_of("pools", pool_name(name))
