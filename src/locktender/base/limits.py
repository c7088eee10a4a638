"""Limits as the kernel sees them: one frozen value, the whole of what is in force.

A limit has a *declared* default (code or configuration) and may have an
operator's *live* setting; the store keeps both apart and `Limits` is the result.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Literal, cast

import msgspec

from locktender.base.clock import SECOND
from locktender.base.durations import microseconds
from locktender.base.errors import InvalidInput
from locktender.base.names import UNLIMITED, count, limit, name, tag_key, tag_value

Placement = Literal["spread", "pack"]

CLAIM_BATCH = 500
"""A batch of offers to one worker, unless set otherwise. Its size decides most of what a short step costs."""
DISPATCH_DEADLINE_US = 4 * 3_600_000_000
"""How long a task may wait for nothing but a worker, unless step, flow, submission or server say otherwise."""
MAX_VALUE_BYTES = 2 * 1024 * 1024
"""A value above it is refused, unless set otherwise."""

LimitKind = Literal["runs", "active", "tag", "pool", "fair", "engine", "flow", "run"]
"""What a stored rule bounds. Names: `runs` and `active` have '', `tag` has `key`, `key=value` or `key=*`,
`pool` a pool or `api[*]`, `fair` a tag key, `engine` one of the knobs below; `flow` a flow and `run` the id of
a run that are paused."""


class Rate(msgspec.Struct, frozen=True, omit_defaults=True):
    """Grants over time: at most burst + count × elapsed / per_us in any window."""

    count: int
    per_us: int
    burst: int = 1


class PoolRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """`limit` slots (−1: unlimited), a lease that outlives the worker's own, a rate, a pause."""

    limit: int = UNLIMITED
    lease_us: int | None = None
    rate: Rate | None = None
    paused: bool = False


class TagRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bounds runs that carry `key` (value None), `key=value`, or each distinct value (`per_value`)."""

    key: str
    value: str | None = None
    per_value: bool = False
    limit: int = UNLIMITED
    max_active: int = UNLIMITED
    paused: bool = False
    counts_while_waiting: bool = False
    """A run that has started keeps its place here while it waits, until it ends: a mutex."""

    @property
    def name(self) -> str:
        if self.per_value:
            return f"{self.key}=*"
        return self.key if self.value is None else f"{self.key}={self.value}"

    def counter(self, run_tags: Mapping[str, str]) -> str | None:
        """The name this rule counts a run under, or None where the run does not concern it."""
        value = run_tags.get(self.key)
        if value is None or (self.value is not None and value != self.value):
            return None
        # "key" and "key=*" differ from "key=value": a total and a per-value limit may stand together.
        return f"{self.key}=*{value}" if self.per_value else self.name

    def keeps(self, rules: Collection[str]) -> bool:
        """Whether a run that keeps its place at `rules` keeps it here. A rule that was changed may not say so."""
        return self.counts_while_waiting and self.name in rules


class Fair(msgspec.Struct, frozen=True, omit_defaults=True):
    """Turns are shared between the values of one tag, in proportion to their weights (default 1)."""

    key: str
    weights: dict[str, int] = {}

    def weight(self, value: str) -> int:
        return self.weights.get(value, 1)


class PauseRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """A flow or a run that starts nothing as long as this rule stands."""

    by: str = ""
    since: int = 0
    reason: str = ""
    run: int = 0
    """The number of the run that it is about; 0: it is about a flow."""


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that bounds anything."""

    max_concurrent_runs: int = 10
    runs_paused: bool = False
    max_active: int = 10_000
    max_waiting: int = 1_000_000
    tags: tuple[TagRule, ...] = ()
    pools: dict[str, PoolRule] = {}
    fair: Fair | None = None
    age_boost_us: int = 0
    max_bypass: int = 16
    max_starts_per_cycle: int = 1_000
    placement: Placement = "spread"
    strict_pools: bool = False
    topic_retention_us: int = 7 * 86_400 * SECOND
    paused_flows: dict[str, PauseRule] = {}
    paused_runs: dict[int, PauseRule] = {}
    """By the run's number."""

    def is_paused(self, flow: str, run: int = 0) -> bool:
        """Whether a run of `flow` starts nothing. `run`: its number, if it has one yet."""
        return flow in self.paused_flows or run in self.paused_runs

    def pool(self, pool: str) -> PoolRule | None:
        """The rule for `pool`; a keyed one (`api[acme]`) falls back to `api[*]`. None: never set."""
        rule = self.pools.get(pool)
        if rule is None and pool.endswith("]"):
            rule = self.pools.get(f"{pool.partition('[')[0]}[*]")
        return rule


_POOL = re.compile(r"[^\[\]{}]+(\[[^\[\]]+\])?")
_RATE = re.compile(r"\s*(\d{1,16})\s*/\s*(.+?)\s*")
_PERIODS = {
    "sec": "s", "second": "s", "min": "m", "minute": "m", "hour": "h", "day": "d", "week": "w",
}  # fmt: skip
"""Words for one unit of time, beside `s`, `m`, `h`, `d` and `w`."""


def pool_name(value: object, field: str = "pool") -> str:
    """`db`, `api[acme]` or, in a rule, `api[*]`."""
    result = name(value, field)
    if not _POOL.fullmatch(result):
        raise InvalidInput(
            f"{field} is not a pool's name.",
            field=field,
            got=value,
            hint="Write 'db', or 'api[acme]' for one key, 'api[*]' for every key.",
        )
    return result


def pool_rule(
    *,
    limit_: object = UNLIMITED,
    lease: object = None,
    rate: object = None,
    burst: object = None,
    paused: bool = False,
    field: str = "pool",
) -> PoolRule:
    """A checked pool rule, from what a person wrote."""
    if burst is not None and rate is None:
        raise InvalidInput(
            "burst needs a rate.", field="burst", got=burst, hint='e.g. rate="100/1m".'
        )
    return PoolRule(
        limit=limit(
            limit_, f"{field}.limit", zero_hint="To hold a pool shut, use: pools pause NAME."
        ),
        lease_us=None if lease is None else microseconds(lease, f"{field}.lease"),
        rate=None if rate is None else parse_rate(rate, burst),
        paused=paused,
    )


_RATE_HINT = 'Write a count and a time: "60/min", "20/s", "1000/h" or "100/10s".'


def parse_rate(value: object, burst: object = None, field: str = "rate") -> Rate:
    """`"100/1m"`: 100 grants a minute. Burst defaults to 1: a steady drip."""
    if isinstance(value, Rate):
        return value
    match = _RATE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InvalidInput(
            f"invalid rate {value!r}.",
            field=field,
            got=value,
            hint=_RATE_HINT,
        )
    unit = _PERIODS.get(match[2].lower(), match[2])
    try:
        per_us = microseconds(unit if unit[0].isdigit() else f"1{unit}", repr(match[2]))
    except InvalidInput as error:
        raise InvalidInput(
            f"invalid rate {value!r}: {error.message}",
            field=field,
            got=value,
            hint=_RATE_HINT,
        ) from error
    return Rate(
        count=count(int(match[1]), field),
        per_us=per_us,
        burst=1 if burst is None else count(burst, "burst"),
    )


def tag_rule(
    key: object,
    value: object = None,
    *,
    limit_: object = UNLIMITED,
    per_value: bool = False,
    max_active: object = UNLIMITED,
    counts_while_waiting: object = False,
    field: str = "tag",
) -> TagRule:
    """A checked tag rule. One value and *each* value contradict each other. `field`: what errors call it."""
    if not isinstance(counts_while_waiting, bool):
        raise InvalidInput(
            "counts_while_waiting must be True or False.",
            field=f"{field}.counts_while_waiting",
            got=counts_while_waiting,
        )
    if value is not None and per_value:
        raise InvalidInput(
            f"a rule for {key}={value} cannot also be per_value.",
            field="per_value",
            got=True,
            hint="Leave out the value to bound each distinct value, or leave out per_value.",
        )
    return TagRule(
        key=tag_key(key, field),
        value=None if value is None else tag_value(value, field),
        per_value=per_value,
        limit=limit(
            limit_,
            f"{field}.limit",
            zero_hint="To hold runs with a tag back, use: limits pause TAG.",
        ),
        max_active=limit(max_active, f"{field}.max_active", zero_hint="Use -1 for unlimited."),
        counts_while_waiting=counts_while_waiting,
    )


def fair_rule(key: object, weights: object = None) -> Fair:
    """A checked rule of fair turns; `weights` is a mapping of the tag's values to numbers."""
    if weights is not None and not isinstance(weights, Mapping):
        raise InvalidInput(
            "weights must be a mapping of tag values to numbers.",
            field="weights",
            got=weights,
            hint='e.g. {"acme": 3}; values that are not named have weight 1.',
        )
    pairs = cast("Mapping[object, object]", weights or {}).items()
    return Fair(
        key=tag_key(key, "fair"),
        weights={
            tag_value(value, "weights"): count(weight, f"weights.{value}", maximum=1_000_000)
            for value, weight in pairs
        },
    )
