"""Namespace `limits`, for async code, and stored limits as people read and name them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from locktender.base import names
from locktender.base.durations import Duration, microseconds, spoken
from locktender.base.errors import InvalidInput, NotFound
from locktender.base.limits import (
    Fair,
    Limits,
    PauseRule,
    PoolRule,
    TagRule,
    fair_rule,
    tag_rule,
)
from locktender.base.model import LimitRow
from locktender.base.names import UNLIMITED
from locktender.base.tracebacks import public
from locktender.client.core import Core
from locktender.client.views import LimitChangeInfo, LimitInfo, instant
from locktender.store.protocol import SetLimit

if TYPE_CHECKING:
    from locktender.observe.holders import LimitCost

FIXED = ("max_concurrent_runs", "max_active", "fair")
ENGINE = {
    "age_boost": "age_boost_us",
    "max_bypass": "max_bypass",
    "max_starts_per_cycle": "max_starts_per_cycle",
    "max_waiting": "max_waiting",
    "placement": "placement",
    "strict_pools": "strict_pools",
    "topic_retention": "topic_retention_us",
}
"""Settings of the engine → the name they are stored under."""
_ENGINE_NAMES = {stored: shown for shown, stored in ENGINE.items()}
_KINDS = {"runs": "max_concurrent_runs", "active": "max_active"}


def limit_name(kind: str, stored: str) -> str:
    """The public name of the limit that is stored as (kind, stored)."""
    if kind in _KINDS:
        return _KINDS[kind]
    if kind == "fair":
        return f"fair {stored}"
    if kind in ("flow", "run"):
        return f"{kind} {stored}"
    return _ENGINE_NAMES.get(stored, stored) if kind == "engine" else stored


def stored_as(shown: str) -> tuple[str, str]:
    """The (kind, name) of a limit that needs no row to exist."""
    if shown == "max_concurrent_runs":
        return "runs", ""
    if shown == "max_active":
        return "active", ""
    return ("fair", "fair") if shown == "fair" else ("engine", ENGINE[shown])


def rule_text(kind: str, rule: bytes | None, stored: str = "") -> str | None:
    """A rule's numbers in a few words; of a ceiling that was never set, its default.

    `stored` is the name it is stored under.
    """
    if rule is None:
        return _default(Limits(), _KINDS[kind]) if kind in _KINDS else None
    body: dict[str, Any] = msgspec.json.decode(rule)
    match kind:
        case "runs":
            return _paused(_bound(body.get("limit", Limits().max_concurrent_runs)), body)
        case "active":
            return _bound(body["limit"])
        case "tag":
            return _paused(_tag_text(msgspec.convert(body, TagRule)), body)
        case "pool":
            return _paused(_pool_text(msgspec.convert(body, PoolRule)), body)
        case "fair":
            weights = msgspec.convert(body, Fair).weights
            shown = ", ".join(f"{value}={weight}" for value, weight in sorted(weights.items()))
            return f"weights {shown}" if shown else "equal turns"
        case "flow" | "run":
            rule_ = msgspec.convert(body, PauseRule)
            return "paused" + (f" by {rule_.by}" if rule_.by else "")
        case _ if stored == "age_boost_us":
            return spoken(body["value"]) if body["value"] else "off"
        case _ if stored == "topic_retention_us":
            return spoken(body["value"])
        case _ if stored == "max_waiting":
            return _bound(body["value"])
        case _:
            return str(body["value"])


def limit_infos(rows: Sequence[LimitRow]) -> list[LimitInfo]:
    """Every limit but pools: stored ones, then those at their default."""
    # A rule that cannot be read has nothing in force, and is at its default.
    found = [_info(row) for row in rows if row.kind != "pool" and row.effective is not None]
    shown = {info.name for info in found}
    defaults = Limits()
    for each in ("max_concurrent_runs", "max_active", *ENGINE):
        if each not in shown:
            text = _default(defaults, each)
            kind, stored = stored_as(each)
            version = LimitRow(kind, stored, None, None).version
            rule = {"limit" if kind in _KINDS else "value": getattr(defaults, _field(each))}
            found.append(
                LimitInfo(kind, each, text, None, None, paused=False, version=version, rule=rule)
            )
    order = {"runs": 0, "active": 1, "tag": 2, "flow": 3, "run": 4, "fair": 5, "engine": 6}
    return sorted(found, key=lambda info: (order[info.kind], info.name))


def _info(row: LimitRow) -> LimitInfo:
    rule: dict[str, Any] = msgspec.json.decode(row.effective or b"{}")
    return LimitInfo(
        kind=row.kind,
        name=limit_name(row.kind, row.name),
        value=_shown(row, row.effective) or "",
        live=_shown(row, row.live),
        declared=_shown(row, row.declared),
        paused=row.kind in ("flow", "run") or bool(rule.get("paused", False)),
        version=row.version,
        rule=rule,
    )


def _shown(row: LimitRow, rule: bytes | None) -> str | None:
    return None if rule is None else rule_text(row.kind, rule, row.name)


def _field(shown: str) -> str:
    """The field of `Limits` that has the value of a limit."""
    return ENGINE.get(shown, shown)


def _default(defaults: Limits, shown: str) -> str:
    if shown == "age_boost":
        return "off"
    if shown == "topic_retention":
        return spoken(defaults.topic_retention_us)
    found: object = getattr(defaults, shown)
    return f"{found:,}" if isinstance(found, int) and not isinstance(found, bool) else str(found)


def _bound(limit: int) -> str:
    return "unlimited" if limit == UNLIMITED else f"{limit:,}"


def _paused(text: str, body: dict[str, Any]) -> str:
    return f"{text}, paused" if body.get("paused") else text


def _tag_text(rule: TagRule) -> str:
    parts: list[str] = []
    if rule.limit != UNLIMITED:
        parts.append(f"{rule.limit:,} at once")
    if rule.max_active != UNLIMITED:
        parts.append(f"{rule.max_active:,} active")
    if rule.counts_while_waiting:
        parts.append("counts while waiting")
    text = ", ".join(parts) or "unlimited"
    return f"{text} (each value)" if rule.per_value else text


def _pool_text(rule: PoolRule) -> str:
    parts = [_bound(rule.limit)]
    if rule.lease_us is not None:
        parts.append(f"lease {spoken(rule.lease_us)}")
    if rule.rate is not None:
        parts.append(f"rate {rule.rate.count}/{spoken(rule.rate.per_us)} burst {rule.rate.burst}")
    return ", ".join(parts)


_dump = msgspec.json.Encoder().encode
LimitInfos = list[LimitInfo]
RUNS = "max_concurrent_runs"
_MEANT = {"max_runs": RUNS, "runs": RUNS, "concurrency": RUNS, "active": "max_active"}
"""Other words for limits; spelling alone would suggest another one."""


@public
class AsyncLimits:
    """Namespace `client.limits`: every limit but pools. A change holds at once, over all processes.

    A limit's name is the word it is set by (`max_concurrent_runs`, `max_active`, `fair`,
    `age_boost` …) or the rule of a tag: `tenant`, `tenant=acme`, `tenant=*` for each value.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    async def set_max_concurrent_runs(self, n: int, *, expected: int | None = None) -> None:
        """Sets how many runs execute at once: 1 and up, -1 is unlimited; default 10.

        `expected`: only if it is this now, else `LimitChanged`; default None, whatever it is.
        """
        limit = names.limit(n, RUNS, zero_hint="To start no run, use: limits pause.")
        await self._patch("runs", "", {"limit": limit}, expected)

    async def set_max_active(self, n: int, *, expected: int | None = None) -> None:
        """Sets the admission ceiling, queued and running runs: 1 and up, -1 is unlimited; default 10,000.

        `expected`: only if it is this now, else `LimitChanged`; default None, whatever it is.
        """
        hint = "To start no run, use: limits pause. Use -1 for unlimited."
        rule = {"limit": names.limit(n, "max_active", zero_hint=hint)}
        await self._change([SetLimit("active", "", _dump(rule), self._core.who, expected=expected)])

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
        if limit is None and max_active is None and counts_while_waiting is None:
            raise InvalidInput(
                f"say what to set for tag {key!r}.",
                field="limit",
                hint="limit=N bounds runs executing at once, max_active=N queued and running ones.",
            )
        wanted = tag_rule(
            key,
            value,
            limit_=names.UNLIMITED if limit is None else limit,
            per_value=per_value,
            max_active=names.UNLIMITED if max_active is None else max_active,
            counts_while_waiting=False if counts_while_waiting is None else counts_while_waiting,
        )
        # What is not given stays as it is.
        patch = _identity(wanted)
        if limit is not None:
            patch["limit"] = wanted.limit
        if max_active is not None:
            patch["max_active"] = wanted.max_active
        if counts_while_waiting is not None:
            patch["counts_while_waiting"] = counts_while_waiting
        await self._patch("tag", wanted.name, patch, expected)

    async def set_fair(self, key: str, weights: Mapping[str, int] | None = None) -> None:
        """Shares turns between the values of tag `key`; `weights` by value, 1 where none is given.

        Weights of other values stay as they are; without `weights` all are 1.
        """
        rule = fair_rule(key, weights)
        _, rows = await self._in_force()
        others = [row for row in rows if row.kind == "fair" and row.name != rule.key]
        for row in others:
            if row.declared is not None:
                raise InvalidInput(
                    f"the configuration shares turns by {row.name!r}, and there is one fair key only.",
                    field="fair",
                    got=key,
                    hint="Change `fair` in the configuration, or set weights for that key.",
                )
        who = self._core.who
        await self._change(
            [
                *(SetLimit("fair", row.name, None, who) for row in others),
                # Only these weights: another operator may set those of other values at the same time.
                SetLimit(
                    "fair", rule.key, _dump(rule), who, patch=_dump(rule) if weights else None
                ),
            ]
        )

    async def set(self, name: str, value: int | str | bool, *, expected: int | None = None) -> None:
        """Sets a limit by its name, as `locktender limits set` does.

        name   `max_concurrent_runs`, `max_active`, `fair`, `age_boost`, `max_bypass`,
               `max_starts_per_cycle`, `max_waiting`, `placement`, `strict_pools`, `topic_retention`, or the
               rule of a tag with a `=`: `tenant=acme`, `tenant=*`
        value  a number, -1 is unlimited; for `fair` a tag, for `age_boost` and `topic_retention` a duration
        expected  of a number of runs: only if it is this now, else `LimitChanged`; default None
        """
        self._core.guard.check()
        if name == RUNS:
            await self.set_max_concurrent_runs(limit_number(value, name), expected=expected)
        elif name == "max_active":
            await self.set_max_active(limit_number(value, name), expected=expected)
        elif name == "fair":
            await self.set_fair(names.text(value, "fair"))
        elif name == "age_boost":
            boost = names.age_boost(microseconds(_duration(value), "age_boost", minimum=0))
            await self._put("engine", "age_boost_us", {"value": boost})
        elif name == "topic_retention":
            kept = microseconds(_duration(value), "topic_retention")
            await self._put("engine", "topic_retention_us", {"value": kept})
        elif name in ENGINE:
            await self._put("engine", ENGINE[name], {"value": value})
        else:
            key, equals, rest = name.partition("=")
            if not equals:
                raise _unknown(name, (await self._in_force())[1])
            each = rest == "*"
            tag = None if each else rest
            await self.set_tag(
                key, tag, limit_number(value, name), per_value=each, expected=expected
            )

    async def pause(self, name: str = RUNS) -> None:
        """Starts no more runs, or none with a tag (`tenant=acme`); running ones go on."""
        await self._pause(name, paused=True)

    async def resume(self, name: str = RUNS) -> None:
        """Ends a pause; the limit is as it was before."""
        await self._pause(name, paused=False)

    async def reset(self, name: str) -> None:
        """Returns a limit to what code or the settings file declares, or else to its default."""
        row = await self._find(name)
        await self._change([SetLimit(row.kind, row.name, None, self._core.who)])

    async def history(self, limit: int = 100) -> list[LimitChangeInfo]:
        """Changes of limits and pools, newest first. `limit`: 1 to 100,000; default 100."""
        self._core.guard.check()
        most = names.count(limit, "limit", maximum=100_000)
        return [
            LimitChangeInfo(
                at=instant(change.at),
                who=change.who,
                kind=change.kind,
                name=limit_name(change.kind, change.name),
                before=rule_text(change.kind, change.before, change.name),
                after=rule_text(change.kind, change.after, change.name),
                reason=change.reason,
            )
            for change in await self._core.store.limit_history(most)
        ]

    async def cost(self, last: Duration = "24h") -> list[LimitCost]:
        """What each limit cost in waiting, of waits that were over within `last`; the most expensive first."""
        self._core.guard.check()
        from locktender.observe.holders import limit_costs

        return await limit_costs(self._core.store, microseconds(last, "last"))

    async def list(self) -> LimitInfos:
        """Every limit in force except pools; one that was never set shows its default."""
        _, rows = await self._in_force()
        return limit_infos(rows)

    async def _pause(self, name: str, *, paused: bool) -> None:
        limits, rows = await self._in_force()
        if name == RUNS:
            await self._patch("runs", "", {"paused": paused})
            return
        if name in FIXED or name in ENGINE:
            raise InvalidInput(
                f"{name} cannot be paused.", field="name", got=name, hint=f"Pause {RUNS} or a tag."
            )
        rule = _tag(limits, name)
        if rule is None and not paused:
            raise _unknown(name, rows)
        wanted = rule or _tag_named(name)
        await self._patch("tag", wanted.name, {**_identity(wanted), "paused": paused})

    async def _find(self, name: str) -> LimitRow:
        _, rows = await self._in_force()
        for row in rows:
            if row.kind != "pool" and limit_name(row.kind, row.name) == name:
                return row
            if row.kind == "fair" and name == "fair" and row.live is not None:
                return row
        if name in FIXED or name in ENGINE:
            # Never set: it is at its default already.
            return LimitRow(*stored_as(name), None, None)
        raise _unknown(name, rows)

    async def _in_force(self) -> tuple[Limits, list[LimitRow]]:
        self._core.guard.check()
        return await self._core.store.limits()

    async def _put(self, kind: str, name: str, rule: object) -> None:
        self._core.guard.check()
        await self._change([SetLimit(kind, name, _dump(rule), self._core.who)])

    async def _patch(
        self, kind: str, name: str, fields: dict[str, object], expected: int | None = None
    ) -> None:
        """Changes these fields of the rule in force and leaves the others unchanged."""
        self._core.guard.check()
        change = SetLimit(kind, name, None, self._core.who, patch=_dump(fields), expected=expected)
        await self._change([change])

    async def _change(self, changes: list[SetLimit]) -> None:
        await self._core.set_limits(changes)


def _tag(limits: Limits, name: str) -> TagRule | None:
    return next((rule for rule in limits.tags if rule.name == name), None)


def _identity(rule: TagRule) -> dict[str, object]:
    """The fields that make a tag rule this one and no other."""
    return {"key": rule.key, "value": rule.value, "per_value": rule.per_value}


def _tag_named(name: str) -> TagRule:
    key, equals, value = name.partition("=")
    if value == "*":
        return tag_rule(key, per_value=True)
    return tag_rule(key, value if equals else None)


def limit_number(value: object, name: str) -> int:
    """A limit, also of a text that is one."""
    if isinstance(value, str) and value.strip().removeprefix("-").isdecimal():
        return int(value)
    return names.limit(value, name)


def _duration(value: int | str | bool) -> Duration | bool:
    return value


def _unknown(name: str, rows: list[LimitRow]) -> NotFound:
    known = [limit_name(row.kind, row.name) for row in rows if row.kind != "pool"]
    near = _MEANT.get(name)
    hint = f"Did you mean {near!r}?" if near else names.nearest(name, {*known, *FIXED, *ENGINE})
    return NotFound(
        f"there is no limit {name!r}.",
        field="limit",
        got=name,
        hint=hint or f"For runs with the tag {name!r}: limits.set_tag({name!r}, limit=N).",
    )
