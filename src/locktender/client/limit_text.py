"""Stored limits as people read and name them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from locktender.base.durations import spoken
from locktender.base.limits import Fair, Limits, PoolRule, TagRule
from locktender.base.model import LimitRow
from locktender.base.names import UNLIMITED
from locktender.client.views import LimitInfo

FIXED = ("max_concurrent_runs", "max_active", "fair")
ENGINE = {
    "age_boost": "age_boost_us",
    "max_bypass": "max_bypass",
    "max_starts_per_cycle": "max_starts_per_cycle",
    "placement": "placement",
    "strict_pools": "strict_pools",
}
"""Settings of the engine → the name they are stored under."""
_ENGINE_NAMES = {stored: shown for shown, stored in ENGINE.items()}
_KINDS = {"runs": "max_concurrent_runs", "active": "max_active"}


def name(kind: str, stored: str) -> str:
    """What a person calls the limit that is stored as (kind, stored)."""
    if kind in _KINDS:
        return _KINDS[kind]
    if kind == "fair":
        return f"fair {stored}"
    return _ENGINE_NAMES.get(stored, stored) if kind == "engine" else stored


def stored(shown: str) -> tuple[str, str]:
    """The (kind, name) of a limit that needs no row to exist."""
    if shown == "max_concurrent_runs":
        return "runs", ""
    if shown == "max_active":
        return "active", ""
    return ("fair", "fair") if shown == "fair" else ("engine", ENGINE[shown])


def value(kind: str, rule: bytes | None, stored: str = "") -> str | None:
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
            return _paused(_tag(msgspec.convert(body, TagRule)), body)
        case "pool":
            return _paused(_pool(msgspec.convert(body, PoolRule)), body)
        case "fair":
            weights = msgspec.convert(body, Fair).weights
            shown = ", ".join(f"{who}={weight}" for who, weight in sorted(weights.items()))
            return f"weights {shown}" if shown else "equal turns"
        case _ if stored == "age_boost_us":
            return spoken(body["value"]) if body["value"] else "off"
        case _:
            return str(body["value"])


def infos(rows: Sequence[LimitRow]) -> list[LimitInfo]:
    """Every limit but pools: stored ones, then those at their default."""
    found = [_info(row) for row in rows if row.kind != "pool"]
    shown = {info.name for info in found}
    defaults = Limits()
    for each in ("max_concurrent_runs", "max_active", *ENGINE):
        if each not in shown:
            text = _default(defaults, each)
            kind, _ = stored(each)
            found.append(LimitInfo(kind, each, text, None, None, paused=False))
    order = {"runs": 0, "active": 1, "tag": 2, "fair": 3, "engine": 4}
    return sorted(found, key=lambda info: (order[info.kind], info.name))


def _info(row: LimitRow) -> LimitInfo:
    rule = row.effective or b"{}"
    return LimitInfo(
        kind=row.kind,
        name=name(row.kind, row.name),
        value=_shown(row, row.effective) or "",
        live=_shown(row, row.live),
        declared=_shown(row, row.declared),
        paused=bool(cast("dict[str, Any]", msgspec.json.decode(rule)).get("paused", False)),
    )


def _shown(row: LimitRow, rule: bytes | None) -> str | None:
    return None if rule is None else value(row.kind, rule, row.name)


def _default(defaults: Limits, shown: str) -> str:
    if shown == "age_boost":
        return "off"
    found: object = getattr(defaults, shown)
    return f"{found:,}" if isinstance(found, int) and not isinstance(found, bool) else str(found)


def _bound(limit: int) -> str:
    return "unlimited" if limit == UNLIMITED else f"{limit:,}"


def _paused(text: str, body: dict[str, Any]) -> str:
    return f"{text}, paused" if body.get("paused") else text


def _tag(rule: TagRule) -> str:
    parts: list[str] = []
    if rule.limit != UNLIMITED:
        parts.append(f"{rule.limit:,} at once")
    if rule.max_active != UNLIMITED:
        parts.append(f"{rule.max_active:,} active")
    text = ", ".join(parts) or "unlimited"
    return f"{text} (each value)" if rule.per_value else text


def _pool(rule: PoolRule) -> str:
    parts = [_bound(rule.limit)]
    if rule.lease_us is not None:
        parts.append(f"lease {spoken(rule.lease_us)}")
    if rule.rate is not None:
        parts.append(f"rate {rule.rate.count}/{spoken(rule.rate.per_us)} burst {rule.rate.burst}")
    return ", ".join(parts)
