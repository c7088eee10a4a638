"""Limits that settings declare: defaults, beneath whatever an operator sets while the system runs."""

from __future__ import annotations

import msgspec

from locktender.base.config import Settings
from locktender.base.limits import Limits
from locktender.store.protocol import SetLimit

_dump = msgspec.json.Encoder().encode
_DEFAULTS = Limits()
_KNOBS = ("age_boost_us", "max_bypass", "max_starts_per_cycle", "placement", "strict_pools")


def declared_limits(settings: Settings) -> list[SetLimit]:
    """What was configured and nothing else: an engine with defaults must not undo another's configuration."""
    limits = settings.limits()
    rules: list[tuple[str, str, object]] = []
    if _given(settings, "max_concurrent_runs"):
        rules.append(("runs", "", {"limit": limits.max_concurrent_runs}))
    if _given(settings, "max_active"):
        rules.append(("active", "", {"limit": limits.max_active}))
    rules += [("pool", name, rule) for name, rule in limits.pools.items()]
    rules += [("tag", rule.name, rule) for rule in limits.tags]
    if limits.fair is not None:
        rules.append(("fair", limits.fair.key, limits.fair))
    rules += [
        ("engine", knob, {"value": getattr(limits, knob)})
        for knob in _KNOBS
        if _given(settings, knob)
    ]
    return [
        SetLimit(kind, name, _dump(rule), "config", declared=True) for kind, name, rule in rules
    ]


def _given(settings: Settings, name: str) -> bool:
    source = name.removesuffix("_us")
    return source in settings.sources or getattr(settings, name) != getattr(_DEFAULTS, name)
