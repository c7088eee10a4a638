"""What each setting may be: one table of keys, read by every source of settings.

A key's name is its field's without the unit (`grace` fills `grace_us`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import msgspec

from locktender.base import names
from locktender.base.durations import microseconds
from locktender.base.errors import InvalidInput
from locktender.base.limits import (
    Fair,
    PoolRule,
    TagRule,
    fair_rule,
    pool_name,
    pool_rule,
    tag_rule,
)

LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
MAX_WORKERS = 10_000
PLACEMENTS = ("spread", "pack")
_BYTES = {"b": 1, "kb": 1 << 10, "kib": 1 << 10, "mb": 1 << 20, "mib": 1 << 20, "gb": 1 << 30}
_YES = frozenset({"true", "yes", "on", "1"})
_NO = frozenset({"false", "no", "off", "0"})


class Key(NamedTuple):
    name: str
    field: str
    read: Callable[[object], Any]
    number: type[int] | type[float] | None = None
    """How the text of a variable becomes a number first."""
    table: bool = False
    """Entries of several sources are merged, name by name."""
    limit: bool = False
    """May stand in `[limits]` too."""

    def from_text(self, text: str) -> Any:
        if self.table:
            return self.read(table_from_text(text, self.name))
        if self.number is None:
            return self.read(text)
        try:
            return self.read(self.number(text))
        except ValueError:
            # Not a number: the reader refuses it with its own message (or knows the word, as "none").
            return self.read(text)


def table_from_text(text: str, key: str) -> object:
    """A table in a variable: JSON, or `db=4,api=2`. A tag rule has a '=' of its own, so the last one counts."""
    if text.startswith("{"):
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise InvalidInput(f"{key} is not JSON: {error}.", field=key) from error
    if key == "provisioner" and "=" not in text:
        return {"kind": text.strip()}
    table: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.strip().rpartition("=")
        if not equals:
            raise InvalidInput(
                f"{key} is not a table.",
                field=key,
                got=text,
                hint='Write it as "name=value,name=value" or as a JSON object.',
            )
        value = value.strip()
        table[name.strip()] = int(value) if value.removeprefix("-").isdecimal() else value
    return table


def _count(key: str, minimum: int) -> Callable[[object], int]:
    return lambda value: names.count(value, key, minimum=minimum)


def _max_workers(value: object) -> int:
    return names.count(value, "max_workers", minimum=0, maximum=MAX_WORKERS)


def _async_permits(value: object) -> int:
    """0 has always been unlimited here, as it costs a loop nothing; −1 is, as everywhere else."""
    if isinstance(value, bool) or not isinstance(value, int) or value < names.UNLIMITED:
        raise InvalidInput(
            "async_permits must be a whole number, or -1 for unlimited.",
            field="async_permits",
            got=value,
            hint="e.g. 100; 0 is unlimited too.",
        )
    return names.count(value, "async_permits", minimum=names.UNLIMITED)


def _permits(key: str) -> Callable[[object], int]:
    def read(value: object) -> int:
        if isinstance(value, int) and value < 0:
            raise InvalidInput(
                f"{key} must be 0 or more.",
                field=key,
                got=value,
                hint="0: this worker runs no such steps. Only async_permits may be unlimited.",
            )
        return names.count(value, key, minimum=0)

    return read


def _total_permits(value: object) -> int:
    hint = "To stop work from starting on a worker, drain it: locktender workers drain WORKER."
    return names.limit(value, "total_permits", zero_hint=hint)


def _limit(key: str) -> Callable[[object], int]:
    return lambda value: names.limit(value, key)


def _duration(key: str, minimum: int = 1) -> Callable[[object], int]:
    return lambda value: microseconds(_number(value), key, minimum=minimum)


def _age_boost(value: object) -> int:
    return names.age_boost(_duration("age_boost", 0)(value))


def _number(value: object) -> object:
    """A bare number in a variable is text, yet means seconds as it does in a file."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _or_none(read: Callable[[object], Any]) -> Callable[[object], Any]:
    return lambda value: None if value == "none" else read(value)


def _flag(key: str) -> Callable[[object], bool]:
    def read(value: object) -> bool:
        if isinstance(value, str):
            word = value.lower()
            value = True if word in _YES else False if word in _NO else value
        if not isinstance(value, bool):
            raise InvalidInput(f"{key} must be true or false.", field=key, got=value)
        return value

    return read


def _one_of(key: str, words: tuple[str, ...]) -> Callable[[object], str]:
    def read(value: object) -> str:
        if not isinstance(value, str) or value.lower() not in words:
            raise InvalidInput(
                f"{key} must be one of {', '.join(words)}.",
                field=key,
                got=value,
                hint=names.nearest(value, words),
            )
        return value.lower()

    return read


def _text(key: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        text = str(value) if hasattr(value, "__fspath__") else value
        if not isinstance(text, str) or not text.strip() or "\0" in text:
            raise InvalidInput(
                f"{key} must be text.", field=key, got=value, hint="Leave it out for the default."
            )
        return text

    return read


def _fraction(key: str) -> Callable[[object], float]:
    def read(value: object) -> float:
        # A percentage is the usual slip: 80 for 0.8.
        right = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1
        if not right:
            raise InvalidInput(
                f"{key} must be above 0 and at most 1.", field=key, got=value, hint="e.g. 0.8"
            )
        return float(cast("float", value))

    return read


def _size(key: str) -> Callable[[object], int]:
    def read(value: object) -> int:
        if isinstance(value, str):
            text = value.strip().lower().replace(" ", "")
            digits = text.rstrip("abgikm")
            unit = _BYTES.get(text[len(digits) :] or "b")
            value = int(digits) * unit if digits.isdecimal() and unit else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidInput(
                f"{key} is not a size.",
                field=key,
                got=value,
                hint='Write it as "256kB", "2MB" or a number of bytes.',
            )
        return value

    return read


def _entries(value: object, key: str) -> list[tuple[str, object]]:
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{key} must be a table.", field=key, got=value)
    return [(str(name), item) for name, item in cast("Mapping[object, object]", value).items()]


def _options(value: object, field: str, known: tuple[str, ...]) -> dict[str, Any]:
    """`4` and `{limit = 4, …}` say the same."""
    if not isinstance(value, Mapping):
        return {"limit": value}
    options = dict(_entries(cast("object", value), field))
    for option in options:
        if option not in known:
            raise InvalidInput(
                f"{field}.{option} is not known.",
                field=f"{field}.{option}",
                hint=names.did_you_mean(option, known),
            )
    return options


def _pools(value: object) -> dict[str, PoolRule]:
    found: dict[str, PoolRule] = {}
    for pool, item in _entries(value, "pools"):
        field = f"pools.{pool}"
        if isinstance(item, PoolRule):
            found[pool_name(pool, field)] = item
            continue
        options = _options(item, field, ("limit", "lease", "rate", "burst"))
        limit = options.pop("limit", names.UNLIMITED)
        found[pool_name(pool, field)] = pool_rule(limit_=limit, field=field, **options)
    return found


def _tags(value: object) -> dict[str, TagRule]:
    """By rule name. Two spellings of one rule (`tenant = {per_value = true}`, `"tenant=*"`) contradict."""
    found: dict[str, TagRule] = {}
    for written, item in _entries(value, "tags"):
        field = f"tags.{written}"
        known = ("limit", "per_value", "max_active", "counts_while_waiting")
        options = _options(item, field, known)
        key, equals, tagged = written.partition("=")
        each = _flag(f"{field}.per_value")(options.get("per_value", tagged == "*"))
        if tagged == "*" and not each:
            raise InvalidInput(
                f"{field} has per_value = false, but its name ends in =*.", field=field
            )
        rule = tag_rule(
            key,
            tagged if equals and tagged != "*" else None,
            per_value=each,
            limit_=options.get("limit", names.UNLIMITED),
            max_active=options.get("max_active", names.UNLIMITED),
            counts_while_waiting=_flag(f"{field}.counts_while_waiting")(
                options.get("counts_while_waiting", False)
            ),
            field=field,
        )
        if rule.name in found:
            raise InvalidInput(
                f"two rules for the tag {rule.name}.", field=field, hint="Keep one of them."
            )
        found[rule.name] = rule
    return found


def _fair(value: object) -> Fair:
    if isinstance(value, Fair):
        return value
    if isinstance(value, str) and not value.startswith("{"):
        return fair_rule(value)
    if isinstance(value, str):
        value = table_from_text(value, "fair")
    options = dict(_entries(value, "fair"))
    weights = dict(_entries(options.pop("weights", {}), "fair.weights"))
    key = options.pop("key", None)
    if options:
        unknown = next(iter(options))
        raise InvalidInput(
            f"fair.{unknown} is not known.",
            field=f"fair.{unknown}",
            hint=names.did_you_mean(unknown, ("key", "weights")),
        )
    return fair_rule(key, weights)


def _labels(value: object) -> dict[str, tuple[str, ...]]:
    """`gpu = ["a100", "h100"]`; an empty list, or "*": any value."""
    found: dict[str, tuple[str, ...]] = {}
    for label, allowed in _entries(value, "labels"):
        several = cast("list[object]", allowed) if isinstance(allowed, list | tuple) else [allowed]
        found[names.label_key(label, "labels")] = tuple(
            names.label_value(each, f"labels.{label}") for each in several if each != "*"
        )
    return found


def _worker_labels(value: object) -> dict[str, str]:
    return names.labels(value, "worker_labels")


def _provisioner(value: object) -> dict[str, Any]:
    """Its options are checked when it is made: each kind has its own."""
    return dict(_entries(value, "provisioner"))


def _keys() -> dict[str, Key]:
    keys = [
        Key("url", "url", _text("url")),
        Key("work_dir", "work_dir", _text("work_dir")),
        Key("log_level", "log_level", _one_of("log_level", LOG_LEVELS)),
        Key("async_permits", "async_permits", _async_permits, int),
        Key("thread_permits", "thread_permits", _permits("thread_permits"), int),
        Key("process_permits", "process_permits", _permits("process_permits"), int),
        Key("total_permits", "total_permits", _total_permits, int),
        Key("claim_batch", "claim_batch", _count("claim_batch", 1), int),
        Key("memory_high", "memory_high", _fraction("memory_high"), float),
        Key("max_tasks", "max_tasks", _or_none(_count("max_tasks", 1)), int),
        Key("exit_when_stuck", "exit_when_stuck", _flag("exit_when_stuck")),
        Key("continuous_audit", "continuous_audit", _flag("continuous_audit")),
        Key("worker_labels", "worker_labels", _worker_labels, table=True),
        Key("provision", "provision", _text("provision")),
        Key("max_workers", "max_workers", _max_workers, int),
        Key("provisioner", "provisioner", _provisioner, table=True),
        Key("max_active", "max_active", _limit("max_active"), int, limit=True),
        Key("max_waiting", "max_waiting", _limit("max_waiting"), int, limit=True),
        Key("max_concurrent_runs", "max_concurrent_runs", _limit("max_concurrent_runs"), int,
            limit=True),
        Key("tags", "tags", _tags, table=True, limit=True),
        Key("pools", "pools", _pools, table=True),
        Key("labels", "labels", _labels, table=True),
        Key("fair", "fair", _or_none(_fair), limit=True),
        Key("max_bypass", "max_bypass", _count("max_bypass", 0), int, limit=True),
        Key("max_starts_per_cycle", "max_starts_per_cycle", _count("max_starts_per_cycle", 1), int,
            limit=True),
        Key("placement", "placement", _one_of("placement", PLACEMENTS), limit=True),
        Key("strict_pools", "strict_pools", _flag("strict_pools"), limit=True),
        Key("blob_url", "blob_url", _text("blob_url")),
        Key("blob_over", "blob_over_bytes", _size("blob_over"), int),
        Key("max_value", "max_value_bytes", _size("max_value"), int),
    ]  # fmt: skip
    beats = ("worker_lease", "heartbeat", "leader_lease", "leader_renew", "offer_ttl", "poll")
    elastic = ("provision_interval", "provision_cooldown", "start_timeout", "provisioned_idle_exit")
    off = ("latency_threshold", "idle_exit", "max_lifetime", "retention")
    keys += [
        *(Key(name, f"{name}_us", _duration(name)) for name in beats),
        *(Key(name, f"{name}_us", _duration(name)) for name in elastic),
        *(Key(name, f"{name}_us", _or_none(_duration(name))) for name in off),
        Key("grace", "grace_us", _duration("grace", 0)),
        Key("stall_grace", "stall_grace_us", _duration("stall_grace", 0)),
        Key("loop_lag", "loop_lag_us", _duration("loop_lag")),
        Key("age_boost", "age_boost_us", _age_boost, limit=True),
        Key("topic_retention", "topic_retention_us", _duration("topic_retention"), limit=True),
        Key("queue_timeout", "queue_timeout_us", _or_none(_duration("queue_timeout")), limit=True),
        Key(
            "dispatch_deadline", "dispatch_deadline_us", _duration("dispatch_deadline"), limit=True
        ),
    ]
    return {key.name: key for key in keys}


KEYS = _keys()
