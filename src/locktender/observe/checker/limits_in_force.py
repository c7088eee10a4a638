"""The limits in force, as the history's events of limits say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from locktender.base.events import Event
from locktender.base.limits import Fair, Limits, PoolRule, Rate, TagRule

_KNOBS = frozenset(
    {
        "age_boost_us",
        "max_bypass",
        "max_starts_per_cycle",
        "max_waiting",
        "placement",
        "strict_pools",
        "topic_retention_us",
    }
)
_DEFAULTS = Limits()

TagSlot = tuple[str, str | None]
"""A tag's key with one value, or with None for all runs that carry the key."""


class InForce:
    """Rules by kind and name. Before any limit event the defaults of `Limits` hold."""

    def __init__(self) -> None:
        self.pools: dict[str, PoolRule] = {}
        self.tags: dict[str, TagRule] = {}
        self.flows: set[str] = set()
        """Paused."""
        self.runs: dict[str, int] = {}
        """Paused: id → number."""
        self.regimes: dict[str, int] = {}
        """Per pool rule: how often its rate was changed. A rate is promised within one regime."""
        self._rates: dict[str, Rate | None] = {}
        self.start_term()

    def start_term(self) -> None:
        """A new leader restates every rule: one that it does not name is not in force any more."""
        self.pools.clear()
        self.tags.clear()
        self.flows.clear()
        self.runs.clear()
        self._by_slot: dict[TagSlot, list[TagRule]] | None = None
        # The struct is frozen, its mapping of pools is ours: pool rules change without a copy.
        self.limits: Limits = msgspec.structs.replace(_DEFAULTS, pools=self.pools)

    def apply(self, event: Event) -> None:
        """Raises `msgspec.ValidationError`, `KeyError` or `ValueError` for a rule that cannot be read."""
        data = event.data
        kind, name, rule = data["kind"], data.get("name", ""), data.get("rule")
        match kind:
            case "pool":
                self._set_pool(name, None if rule is None else msgspec.convert(rule, PoolRule))
            case "tag":
                self._by_slot = None
                if rule is None:
                    self.tags.pop(name, None)
                else:
                    self.tags[name] = msgspec.convert(rule, TagRule)
            case "runs":
                given: dict[str, Any] = rule or {}
                self._replace(
                    max_concurrent_runs=given.get("limit", _DEFAULTS.max_concurrent_runs),
                    runs_paused=given.get("paused", False),
                )
            case "active":
                given = rule or {}
                self._replace(max_active=given.get("limit", _DEFAULTS.max_active))
            case "fair":
                self._replace(fair=None if rule is None else msgspec.convert(rule, Fair))
            case "engine" if name in _KNOBS:
                self._replace(**{name: getattr(_DEFAULTS, name) if rule is None else rule["value"]})
            case "flow":
                (self.flows.discard if rule is None else self.flows.add)(name)
            case "run":
                self.runs.pop(name, None)
                if rule is not None:
                    self.runs[name] = rule["run"]
            case _:
                raise ValueError(f"unknown limit {kind}:{name}")

    def _set_pool(self, name: str, rule: PoolRule | None) -> None:
        rate = None if rule is None else rule.rate
        if self._rates.get(name) != rate:
            self._rates[name] = rate
            self.regimes[name] = self.regimes.get(name, 0) + 1
        if rule is None:
            self.pools.pop(name, None)
        else:
            self.pools[name] = rule

    def _replace(self, **fields: Any) -> None:
        self.limits = msgspec.structs.replace(self.limits, **fields)

    def regime(self, pool: str) -> tuple[str, int]:
        """Which rule sets the pool's rate, and how often that rule has set another one."""
        name = pool if pool in self.pools else f"{pool.partition('[')[0]}[*]"
        return name, self.regimes.get(name, 0)

    def tag_rules(self, tags: Mapping[str, str]) -> Iterator[tuple[TagRule, TagSlot]]:
        """The rules that concern a run with `tags`, each with what it counts."""
        if self._by_slot is None:
            self._by_slot = {}
            for rule in self.tags.values():
                self._by_slot.setdefault((rule.key, rule.value), []).append(rule)
        for key, value in tags.items():
            for rule in self._by_slot.get((key, None), ()):
                yield rule, (key, value if rule.per_value else None)
            for rule in self._by_slot.get((key, value), ()):
                yield rule, (key, value)
