"""Settings: every setting, its default, where its value came from, and which combinations cannot work.

Sources, each over the one before: the defaults, a settings file, `LOCKTENDER_*`
variables, explicit overrides (flags, arguments). A key is written the same
everywhere: `grace` in a file, `LOCKTENDER_GRACE`, `--grace`. A combination is
refused only where a promise would not hold or a request could never succeed;
what is merely slow or wasteful is accepted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit, urlunsplit

import msgspec

from locktender.base import tracebacks
from locktender.base.durations import microseconds, spoken
from locktender.base.errors import InvalidInput, InvalidSettings
from locktender.base.limits import (
    CLAIM_BATCH,
    DISPATCH_DEADLINE_US,
    MAX_VALUE_BYTES,
    Fair,
    Limits,
    Placement,
    PoolRule,
    TagRule,
)
from locktender.base.names import UNLIMITED, did_you_mean, undeclared
from locktender.base.settings_files import check_path, nearest
from locktender.base.settings_values import KEYS, Key


class Contradiction(NamedTuple):
    message: str
    hint: str
    got: dict[str, str]
    """The values that do not go together, by their keys, as a person would write them."""


class SettingOrder(NamedTuple):
    """`name` must be at least `times` × `other`; where `above`, more than that."""

    name: str
    other: str
    why: str = ""
    times: int = 1
    above: bool = True


BEATS: tuple[SettingOrder, ...] = (
    # Two beats must fit: one may be lost, and the next must still arrive before the lease ends.
    SettingOrder("worker_lease", "heartbeat", times=2),
    SettingOrder("leader_lease", "leader_renew", times=2),
)
ELASTIC: tuple[SettingOrder, ...] = (
    SettingOrder(
        "start_timeout",
        "poll",
        "a worker that has joined is seen one poll later at worst",
        above=False,
    ),
    SettingOrder(
        "start_timeout",
        "leader_lease",
        "a leader that takes over would not know of workers that are on their way",
    ),
    SettingOrder(
        "provisioned_idle_exit",
        "poll",
        "a new worker could leave before its first task is offered",
        above=False,
    ),
    SettingOrder("max_lifetime", "poll", "a new worker could end before its first task is offered"),
    SettingOrder(
        "dispatch_deadline",
        "provision_interval",
        "tasks would fail before a worker could be asked for",
    ),
)
"""Where workers are started on overflow."""
_TIMES = {1: "", 2: "twice "}


def contradictions(settings: Settings) -> list[Contradiction]:
    """What is wrong between values that are right by themselves."""
    orders = (*BEATS, *ELASTIC) if settings.max_workers else BEATS
    found = [each for order in orders if (each := _out_of_order(settings, order)) is not None]
    if settings.blob_over_bytes > settings.max_value_bytes:
        over, most = settings.blob_over_bytes, settings.max_value_bytes
        found.append(
            Contradiction(
                f"blob_over ({over:,} bytes) must not be above max_value ({most:,} bytes).",
                "Lower blob_over, or raise max_value.",
                {"blob_over": f"{over:,} bytes", "max_value": f"{most:,} bytes"},
            )
        )
    return found + _unknown_labels(settings)


def _out_of_order(settings: Settings, order: SettingOrder) -> Contradiction | None:
    us: int | None = getattr(settings, f"{order.name}_us")
    bound: int = order.times * getattr(settings, f"{order.other}_us")
    if us is None or us > bound or (us == bound and not order.above):
        return None
    got = {order.name: spoken(us), order.other: spoken(bound // order.times)}
    must = "be more than" if order.above else "not be below"
    why = f": {order.why}" if order.why else ""
    reach = "above" if order.above else "to"
    return Contradiction(
        f"{order.name} ({got[order.name]}) must {must} {_TIMES[order.times]}"
        f"{order.other} ({got[order.other]}){why}.",
        f"Raise {order.name} {reach} {spoken(bound)} or lower {order.other}.",
        got,
    )


def _unknown_labels(settings: Settings) -> list[Contradiction]:
    found: list[Contradiction] = []
    for label, value in settings.worker_labels.items() if settings.labels is not None else ():
        unknown = undeclared(label, value, settings.labels or {})
        if unknown is not None:
            message = (
                f"worker_labels has {label}={value}, and [labels] does not know {unknown.what}."
            )
            found.append(Contradiction(message, unknown.hint, {f"worker_labels.{label}": value}))
    return found


PREFIX = "LOCKTENDER_"
OTHER_VARIABLES = ("LOCKTENDER_TEST_", tracebacks.VARIABLE, "LOCKTENDER_TOKEN")
"""Variables that are not settings: what the tests are pointed at, what errors show, and what a server is asked
with, which is shown nowhere."""


FOR_BODIES: dict[str, str] = {}
"""Variables of the processes that run bodies, beside those of this process."""


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine is run with. Durations are microseconds; −1 is unlimited unless noted."""

    url: str = ".locktender/locktender.db"
    work_dir: str = ".locktender/work"
    log_level: str = "info"

    # leases and beats
    worker_lease_us: int = microseconds("10s")
    heartbeat_us: int = microseconds("2s")
    leader_lease_us: int = microseconds("5s")
    leader_renew_us: int = microseconds("1s")
    stall_grace_us: int = microseconds("5m")
    """How long a worker whose lease has passed keeps its tasks while its process is known to live."""
    offer_ttl_us: int = microseconds("2s")
    poll_us: int = microseconds("1s")

    # the worker
    async_permits: int = 1_000
    """−1 is unlimited, and so is 0."""
    thread_permits: int = 8
    process_permits: int = msgspec.field(default_factory=cores)
    total_permits: int = UNLIMITED
    claim_batch: int = CLAIM_BATCH
    latency_threshold_us: int | None = None
    memory_high: float = 0.8
    grace_us: int = microseconds("30s")
    idle_exit_us: int | None = None
    max_lifetime_us: int | None = None
    max_tasks: int | None = None
    exit_when_stuck: bool = False
    """End the process if a body in a thread outlives the worker's lease: nothing else can stop it."""
    worker_labels: dict[str, str] = {}
    loop_lag_us: int = microseconds("100ms")
    """A step that holds the worker's loop for longer is named in the log and in the metrics."""
    provision: str = ""
    """What a provisioner calls this worker; empty: it was started by hand."""

    # workers that are started on overflow
    max_workers: int = 0
    """At most this many at once. 0: none are started."""
    provisioner: dict[str, Any] = {}
    """What starts them, with its options (`kind`, …); empty: what the command line or the program names."""
    provision_interval_us: int = microseconds("5s")
    provision_cooldown_us: int = microseconds("10s")
    """After a failure; doubled by each that follows, up to five minutes."""
    start_timeout_us: int = microseconds("60s")
    provisioned_idle_exit_us: int = microseconds("60s")

    # limits: the declared defaults, beneath an operator's live settings
    max_active: int = 10_000
    max_waiting: int = 1_000_000
    max_concurrent_runs: int = 10
    tags: tuple[TagRule, ...] = ()
    pools: dict[str, PoolRule] = {}
    labels: dict[str, tuple[str, ...]] | None = None
    """Labels workers may have, each with its values (none named: any value). None: anything goes."""
    fair: Fair | None = None
    age_boost_us: int = 0
    max_bypass: int = 16
    max_starts_per_cycle: int = 1_000
    placement: Placement = "spread"
    strict_pools: bool = False
    topic_retention_us: int = microseconds("7d")
    """How long events of a topic are kept for runs that begin to wait later."""
    queue_timeout_us: int | None = None
    dispatch_deadline_us: int = DISPATCH_DEADLINE_US

    # values
    blob_url: str = ""
    """Where values over `blob_over` are stored, as a url of fsspec; empty: in the store."""
    blob_over_bytes: int = 256 * 1024
    max_value_bytes: int = MAX_VALUE_BYTES
    """A value above it is refused."""
    retention_us: int | None = None
    """The leader prunes runs that ended so long ago. None: it prunes nothing."""
    continuous_audit: bool = True
    """The leader checks the history beside its work, with a fiftieth of one core at most."""

    sources: dict[str, str] = {}
    """Key → where its value came from, for every key that is not at its default."""

    def __post_init__(self) -> None:
        problems = contradictions(self)
        if problems:
            raise InvalidSettings(
                " ".join(problem.message for problem in problems),
                field="settings",
                got={key: value for problem in problems for key, value in problem.got.items()},
                hint=" ".join(problem.hint for problem in problems),
            )

    @property
    def shown_url(self) -> str:
        """The url for people to read: without a password, and without what else may hold one."""
        parts = urlsplit(self.url)
        if not parts.scheme:
            return self.url
        user, at, host = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}{at}{host}", query=""))

    def limits(self) -> Limits:
        return Limits(
            max_concurrent_runs=self.max_concurrent_runs,
            max_active=self.max_active,
            max_waiting=self.max_waiting,
            tags=self.tags,
            pools=self.pools,
            fair=self.fair,
            age_boost_us=self.age_boost_us,
            max_bypass=self.max_bypass,
            max_starts_per_cycle=self.max_starts_per_cycle,
            placement=self.placement,
            strict_pools=self.strict_pools,
            topic_retention_us=self.topic_retention_us,
        )

    def permits(self) -> dict[str, int]:
        """Per executor, as a worker announces them: −1 is unlimited."""
        return {
            "async": self.async_permits or UNLIMITED,
            "thread": self.thread_permits,
            "process": self.process_permits,
        }


def load(
    cwd: Path | str = ".",
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Settings:
    """The settings for `cwd`. An override of None counts as not given; the text "none" unsets a value."""
    here = Path(cwd)
    reading = _Reading()
    file = nearest(here)
    if file is not None:
        reading.file(file.path, file.prefix, file.table)
    reading.environment(environ or {})
    reading.overrides(overrides or {})
    root = here if file is None else file.path.parent
    return reading.settings(here, root)


class _Reading:
    """Values gathered so far, by field; a later source replaces a value, and a table entry by entry."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.sources: dict[str, str] = {}

    def file(self, path: Path, prefix: str, table: Mapping[str, Any]) -> None:
        flat = {key: value for key, value in table.items() if key != "limits"}
        limits = table.get("limits", {})
        if not isinstance(limits, Mapping):
            raise InvalidSettings(
                f"{path}: {prefix}limits must be a table.", field="limits", got=limits
            )
        for key, value in flat.items():
            where = f"{path}: {prefix}{key}"
            self._set(known_key(key, where, extra=("limits",)), value, where)
        for key, value in cast("Mapping[str, Any]", limits).items():
            where = f"{path}: {prefix}limits.{key}"
            known = known_key(key, where, limits_only=True)
            if key in flat:
                raise InvalidSettings(
                    f"{where} and {prefix}{key} both have a value.", field=key, hint="Keep one."
                )
            self._set(known, value, where)

    def environment(self, environ: Mapping[str, str]) -> None:
        for variable in sorted(environ):
            if not variable.startswith(PREFIX) or variable.startswith(OTHER_VARIABLES):
                continue
            key = variable.removeprefix(PREFIX).lower()
            known = known_key(key, variable, written=_variable)
            text = environ[variable].strip()
            if not text:
                continue  # `LOCKTENDER_X= command` is how a shell says: without X
            self._set(known, text, variable, text=True)

    def overrides(self, overrides: Mapping[str, object]) -> None:
        for key, value in overrides.items():
            known = known_key(key, key)
            if value is not None:
                # A flag can only be text, whatever it sets: `--set worker_labels=gpu=a100`.
                text = known.table and isinstance(value, str)
                self._set(known, value, f"override {key}", text=text, written=key)

    def settings(self, cwd: Path, root: Path) -> Settings:
        # A file above the working directory means one project: all of it shares one store.
        for key in ("url", "work_dir"):
            source = self.sources.get(key, "")
            if root.absolute() == cwd.absolute() or source.startswith((PREFIX, "override")):
                continue
            value: str = self.values.get(key) or getattr(_DEFAULTS, key)
            if "://" not in value:
                if key == "url":
                    check_path(value)
                self.values[key] = str(root / value)
        if "tags" in self.values:
            self.values["tags"] = tuple(self.values["tags"].values())
        return Settings(**self.values, sources=self.sources)

    def _set(
        self, key: Key, value: object, where: str, *, text: bool = False, written: str | None = None
    ) -> None:
        """`where` it comes from; `written`: the key as the user wrote it."""
        try:
            parsed = key.from_text(value) if text and isinstance(value, str) else key.read(value)
        except InvalidInput as error:
            raise InvalidSettings(
                _at(written or where, error.message),
                field=error.field,
                got=error.got,
                hint=error.hint,
            ) from error
        if key.table and isinstance(parsed, dict):
            entries = cast("dict[str, Any]", parsed)
            self.values[key.field] = {**(self.values.get(key.field) or {}), **entries}
            for entry in entries:
                self.sources[f"{key.name}.{entry}"] = where
        else:
            self.values[key.field] = parsed
            self.sources[key.name] = where


def known_key(
    key: str,
    where: str,
    *,
    extra: tuple[str, ...] = (),
    limits_only: bool = False,
    written: Callable[[str], str] = str,
) -> Key:
    """The setting `key`; refuses an unknown key. `where` it was written, `written` how keys are written there."""
    known = KEYS.get(key)
    if known is not None and (known.limit or not limits_only):
        return known
    if known is not None:
        raise InvalidSettings(
            f"{where}: {key} is not a limit.", field=key, hint="Move it out of [limits]."
        )
    candidates = [*(each for each in KEYS if KEYS[each].limit or not limits_only), *extra]
    raise InvalidSettings(
        f"{where} is not a setting.",
        field=key,
        # Compared without a prefix that all have: it would make any two alike.
        hint=did_you_mean(key, candidates, written),
    )


def _at(where: str, message: str) -> str:
    """What is wrong, and where; a key that was given by its name alone is named once."""
    return message if message.startswith(where) else f"{where}: {message}"


def _variable(key: str) -> str:
    return f"{PREFIX}{key.upper()}"


_DEFAULTS = Settings()
