"""Namespace `pools`, for async code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from locktender.base.clock import SECOND
from locktender.base.durations import Duration, microseconds, spoken
from locktender.base.errors import InvalidInput, NotFound
from locktender.base.limits import Limits, PoolRule, Rate, parse_rate, pool_name
from locktender.base.model import LimitRow
from locktender.base.names import UNLIMITED, count, did_you_mean
from locktender.base.names import limit as checked_limit
from locktender.base.tracebacks import public
from locktender.client.core import Core
from locktender.client.views import UNSET, PoolInfo, Unset, instant
from locktender.store.protocol import SetLimit

if TYPE_CHECKING:
    from locktender.client.pool_holders import PoolHolders
    from locktender.observe.pool_use import PoolUse

_dump = msgspec.json.Encoder().encode
_rule = msgspec.json.Decoder(PoolRule).decode
PoolInfos = list[PoolInfo]


@public
class AsyncPools:
    """Namespace `client.pools`: slots that tasks hold while they run. A change holds over all processes."""

    def __init__(self, core: Core) -> None:
        self._core = core

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
        """Sets what is given of a pool and keeps the rest; a pool that is not there is made.

        name   `db`; `api[acme]` for one key, which then has a rule of its own; `api[*]` for each key
        limit  slots: 1 and up, -1 is unlimited (the default of a new pool)
        lease  how long a dead holder's slots are kept; None: as long as its worker's lease (default)
        rate   starts per time, "60/min" or "100/10s"; None takes the rate away (default: none)
        burst  starts at once after a pause, 1 and up; default 1
        expected  only if the limit is this now, else `LimitChanged`; default None, whatever it is

            pools.set("api", limit=4, rate="60/min", burst=5)
        """
        pool = pool_name(name)
        patch = pool_patch(pool, limit, lease, rate, burst)
        self._core.guard.check()
        await self._patch(pool, patch, expected=expected)

    async def get(self, name: str) -> PoolInfo:
        """One pool. Raises `NotFound` where it was never set and no active task needs it."""
        pool = pool_name(name)
        found = {info.name: info for info in await self.list()}
        if pool in found:
            return found[pool]
        rule = await self._in_force(pool)
        if rule is None:
            raise NotFound(
                f"there is no pool {pool!r}.",
                field="pool",
                got=name,
                hint=did_you_mean(pool, found) or f"Set it: locktender pools set {pool} N.",
            )
        return _info(pool, rule, "live", 0, 0)  # one key of `api[*]` that no task uses now

    async def list(self) -> PoolInfos:
        """Every pool that was set, or that an active task needs, with its use at this moment."""
        self._core.guard.check()
        from locktender.observe.pool_use import read_pools

        found = pool_infos(*await read_pools(self._core.store))
        return await self._with_pauses(found) if any(each.paused for each in found) else found

    async def _with_pauses(self, pools: PoolInfos) -> PoolInfos:
        from locktender.observe.pool_pauses import pool_pauses

        names = [each.name for each in pools if each.paused]
        pauses = await pool_pauses(self._core.store, names)
        return [
            msgspec.structs.replace(each, paused_by=pause.who, paused_at=instant(pause.at))
            if each.paused and (pause := pauses.get(each.name))
            else each
            for each in pools
        ]

    async def holders(self, name: str) -> PoolHolders:
        """The attempts that hold slots of a pool now, those of dead workers first."""
        from locktender.client.pool_holders import PoolHolders, pool_holders

        self._core.guard.check()
        store, pool = self._core.store, pool_name(name)
        snapshot = await store.load(lost=False)
        found = await pool_holders(store, snapshot)
        return PoolHolders(found.get(pool, []), instant(snapshot.now))

    async def pause(self, name: str) -> None:
        """Starts nothing more that needs the pool; running tasks keep their slots until they end."""
        await self._pause(name, paused=True)

    async def resume(self, name: str) -> None:
        """Ends a pause; the limit is as it was before."""
        await self._pause(name, paused=False)

    async def reset(self, name: str) -> None:
        """Returns the pool to what code or the settings file declares; unlimited where they declare nothing."""
        self._core.guard.check()
        pool = pool_name(name)
        await self._known(pool)
        await self._change([SetLimit("pool", pool, None, self._core.who)])

    async def delete(self, name: str) -> None:
        """Removes the pool and its declared default, until code or the settings file declares it again."""
        self._core.guard.check()
        pool = pool_name(name)
        row = await self._known(pool)
        who = self._core.who
        changes = [SetLimit("pool", pool, None, who)]
        if row.declared is not None:
            changes.append(SetLimit("pool", pool, None, who, declared=True))
        await self._change(changes)

    async def _pause(self, name: str, *, paused: bool) -> None:
        pool = pool_name(name)
        rule = await self._in_force(pool)
        if rule is None:
            # A pool that tasks name and that was never set exists too: pausing it is the way to hold it.
            known = {info.name for info in await self.list()}
            if pool not in known or not paused:
                raise NotFound(
                    f"there is no pool {pool!r}.",
                    field="pool",
                    got=name,
                    hint=did_you_mean(pool, known) or f"Set it: locktender pools set {pool} N.",
                )
        # One key without a rule of its own goes on with what `api[*]` bounds it by.
        await self._patch(pool, {"paused": paused}, begin=rule)

    async def _in_force(self, pool: str) -> PoolRule | None:
        self._core.guard.check()
        limits, _ = await self._core.store.limits()
        return limits.pool(pool)

    async def _known(self, pool: str) -> LimitRow:
        _, rows = await self._core.store.limits()
        pools = {row.name: row for row in rows if row.kind == "pool"}
        if pool not in pools:
            raise NotFound(
                f"pool {pool!r} was never set.",
                field="pool",
                got=pool,
                hint=did_you_mean(pool, pools),
            )
        return pools[pool]

    async def _patch(
        self,
        pool: str,
        patch: dict[str, Any],
        begin: PoolRule | None = None,
        expected: int | None = None,
    ) -> None:
        base = None if begin is None else _dump(begin)
        change = SetLimit("pool", pool, base, self._core.who, patch=_dump(patch), expected=expected)
        await self._change([change])

    async def _change(self, changes: list[SetLimit]) -> None:
        await self._core.set_limits(changes)


def pool_patch(pool: str, limit: Any, lease: Any, rate: Any, burst: Any) -> dict[str, Any]:
    """What is given of a pool, checked."""
    if all(isinstance(each, Unset) for each in (limit, lease, rate, burst)):
        raise InvalidInput(
            f"say what to set for pool {pool!r}.",
            field="limit",
            hint="e.g. limit=4, or limit=-1 for unlimited.",
        )
    patch: dict[str, Any] = {}
    if not isinstance(limit, Unset):
        hint = "To hold a pool shut, use: pools pause NAME."
        patch["limit"] = checked_limit(
            limit, f"pool {pool}.limit", zero_hint=hint, what=f"the limit of pool {pool!r}"
        )
    if not isinstance(lease, Unset):
        patch["lease_us"] = None if lease is None else microseconds(lease, "lease")
    return patch | _rate_patch(rate, burst)


def pool_infos(use: PoolUse, limits: Limits, limit_rows: Iterable[LimitRow]) -> PoolInfos:
    """Every pool that was set, is used or is waited for."""
    used, waiting = use.used, use.waiting
    rows = {row.name: row for row in limit_rows if row.kind == "pool"}
    sources = {name: _source(row) for name, row in rows.items()}
    names = sources.keys() | waiting.keys() | {pool for pool, n in used.items() if n}
    return [
        _info(
            pool,
            limits.pool(pool),
            sources.get(pool, "none"),
            used.get(pool, 0),
            waiting.get(pool, 0),
            rows.get(pool),
        )
        for pool in sorted(names)
    ]


def _rate_patch(rate: Any, burst: Any) -> dict[str, Any]:
    if isinstance(rate, Unset):
        # The store refuses a burst where the pool has no rate.
        return {} if isinstance(burst, Unset) else {"rate": {"burst": count(burst, "burst")}}
    if rate is None and not isinstance(burst, Unset):
        raise InvalidInput(
            "a burst needs a rate, and this takes the rate away.",
            field="burst",
            got=burst,
            hint="Leave out the burst, or give a rate: 100/1m.",
        )
    if rate is None:
        return {"rate": None}
    new = parse_rate(rate, None if isinstance(burst, Unset) else burst)
    return {"rate": {"count": new.count, "per_us": new.per_us, "burst": new.burst}}


def _source(row: LimitRow) -> str:
    return "declared" if row.live is None else "live"


_PERIODS = {1_000_000: "s", 60_000_000: "min", 3_600_000_000: "h", 86_400_000_000: "d"}


def spoken_rate(rate: Rate) -> str:
    """As it is given: `60/min`, `100/10s`."""
    return f"{rate.count}/{_PERIODS.get(rate.per_us) or spoken(rate.per_us)}"


def _info(
    pool: str,
    rule: PoolRule | None,
    source: str,
    used: int,
    waiting: int,
    row: LimitRow | None = None,
) -> PoolInfo:
    is_set = rule is not None
    rule = rule or PoolRule()
    return PoolInfo(
        name=pool,
        limit=None if rule.limit == UNLIMITED else rule.limit,
        used=used,
        waiting=waiting,
        lease=None if rule.lease_us is None else rule.lease_us / SECOND,
        rate=None if rule.rate is None else spoken_rate(rule.rate),
        burst=None if rule.rate is None else rule.rate.burst,
        paused=rule.paused,
        is_set=is_set,
        source=source,
        version=(row or LimitRow("pool", pool, None, None)).version,
    )
