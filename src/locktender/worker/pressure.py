"""The pressure on a worker (memory, how long its tasks take, how full it is), and what it asks for under it.

In a container the machine's memory says nothing: the kernel kills at the limit of the control group. So the
limit of the process's own group counts, or that of any group above it, whichever is nearest to being reached.
Pages of files that were not used for a while are not counted: the kernel drops them before it kills
(Docker and Kubernetes count alike).

`Pressure` is made and asked on the worker's loop; its attributes are plain values that the lease thread may
read at any moment. Each renewal of the lease carries the claim. A claim that changed because pressure set in or
ended must not wait for the next one: `claim` says so, at most ten times a second, because a worker that fills
and empties quickly would otherwise write more rows than ends of tasks.

A row always carries the claim that was last published as urgent or unchanged, and not what is felt by then: a
renewal that said on its own that the worker is full would stay uncorrected, and the worker would be idle.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import psutil

from locktender.base.clock import SECOND
from locktender.base.config import Settings
from locktender.base.quantiles import MinuteQuantiles
from locktender.kernel.claim import BATCHES_OFFERED, ClaimPolicy, Load, PressureSignals, claim_size
from locktender.kernel.explain_workers import pressures

READ_EVERY_US = 250_000
"""A reading costs a few system calls."""


class _Version(NamedTuple):
    """What one version of control groups calls things."""

    mount: str
    limit: str
    used: str
    inactive: str


_V2 = _Version("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
_V1 = _Version(
    "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
)


class MemoryGauge:
    """Reads the share in use, 0 to 1, at most every quarter of a second. Never raises."""

    def __init__(
        self, root: Path = Path("/"), machine: Callable[[], tuple[int, int]] | None = None
    ) -> None:
        """`machine` gives the bytes in use and in all, where no group bounds them."""
        self._root = root
        self._machine = machine or _machine
        self._read_at: int | None = None
        self._share = 0.0

    def share(self, now: int) -> float:
        """The share in use at `now` (microseconds of any clock that does not go back)."""
        if self._read_at is None or now - self._read_at >= READ_EVERY_US:
            self._read_at = now
            self._share = self.read()
        return self._share

    def read(self) -> float:
        used, total = self._machine()
        shares = list(self._groups(total))
        return min(1.0, max(shares, default=used / total if total else 0.0))

    def _groups(self, total: int) -> Iterator[float]:
        """The share in use, of this process's group and of each above it that has a limit."""
        for version, path in self._own():
            mount = self._root / version.mount
            group = mount / path.lstrip("/")
            # Inside a container the path may be the host's, and the mount shows only our own group.
            here = group if group.is_dir() else mount
            for folder in (here, *here.parents):
                if not folder.is_relative_to(mount):
                    break
                share = _share(folder, version, total)
                if share is not None:
                    yield share

    def _own(self) -> Iterator[tuple[_Version, str]]:
        for line in _text(self._root / "proc/self/cgroup").splitlines():
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if "memory" in controllers.split(","):
                yield _V1, path
            elif number == "0" and not controllers:
                yield _V2, path


def _share(folder: Path, version: _Version, total: int) -> float | None:
    limit = _text(folder / version.limit)
    # A limit above the machine's memory bounds nothing (version 1 writes "none" that way).
    if not limit.isdecimal() or not 0 < int(limit) <= total:
        return None
    used = _text(folder / version.used)
    if not used.isdecimal():
        return None
    droppable = 0
    for line in _text(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == version.inactive and value.isdecimal():
            droppable = int(value)
    return max(0, int(used) - droppable) / int(limit)


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _machine() -> tuple[int, int]:
    memory = psutil.virtual_memory()
    return memory.total - memory.available, memory.total


log: logging.Logger = logging.getLogger(__name__)
LOG_EVERY_US: int = 10 * SECOND
PUBLISH_EVERY_US = 100_000
P99 = 0.99


class ClaimAsked(NamedTuple):
    size: int
    """What the worker would take at this moment: for people and metrics."""
    standing: int
    """What its row says (`WorkerRow.claim`): valid until it says otherwise."""
    urgent: bool
    """The leader must read it now and not with the next renewal."""


class Pressure:
    def __init__(self, settings: Settings, now: int, gauge: MemoryGauge | None = None) -> None:
        """`now`, here and below: the process's monotonic clock."""
        self._policy = ClaimPolicy(
            settings.claim_batch,
            settings.memory_high,
            settings.latency_threshold_us,
            settings.heartbeat_us,
        )
        self._total = settings.total_permits
        self._gauge = gauge or MemoryGauge()
        self._durations = MinuteQuantiles(now)
        self._read_at: int | None = None
        self._published = PressureSignals()
        self._published_at: int | None = None
        self._logged: frozenset[str] = frozenset()
        self._logged_at: int | None = None
        self.felt: PressureSignals = PressureSignals()
        self.size: int = 0
        self.standing: int = settings.claim_batch * BATCHES_OFFERED
        """What the row should say; all of it until it was asked for the first time."""
        self.share: int = 100
        self.pressed: dict[str, float] = {}
        """What makes the share less than all, and the threshold it is above (`WorkerRow.pressed`)."""
        self.full: tuple[str, ...] = ()
        """Executors that the row should name as nearly full."""
        self.memory: float = 0.0
        self.p99_us: int = 0
        """0: no task has ended within the last minute."""

    def finished(self, duration_us: int) -> None:
        """A body has ended after so long."""
        self._durations.add(duration_us)

    def claim(
        self, now: int, in_flight: Mapping[str, int], permits: Mapping[str, int]
    ) -> ClaimAsked:
        """What to ask for now. `permits` are those of the kinds that this worker's steps use."""
        if self._read_at is None or now - self._read_at >= READ_EVERY_US:
            self._read_at = now
            self.memory = self._gauge.share(now)
            self.p99_us = self._durations.quantile(P99, now) or 0
        load = Load(permits, in_flight, self._total, self.memory, self.p99_us or None)
        claim = claim_size(load, self._policy, self.felt, now)
        self.felt, self.size = claim.felt, claim.size
        urgent = self._urgent(now)
        if self.felt == self._published:
            self.standing, self.share = claim.standing, claim.share
            self.pressed = self._thresholds()
            self.full = tuple(sorted(claim.felt.nearly_full))
        self._log(now, claim.share)
        return ClaimAsked(claim.size, claim.standing, urgent)

    def _thresholds(self) -> dict[str, float]:
        found: dict[str, float] = {}
        if self.felt.memory:
            found["memory"] = self._policy.memory_high
        if self.felt.latency:
            found["latency"] = (self._policy.latency_threshold_us or 0) / SECOND
        return found

    def _log(self, now: int, share: int) -> None:
        pressed = self._thresholds()
        if pressed.keys() == self._logged:
            return
        if self._logged_at is not None and now - self._logged_at < LOG_EVERY_US:
            return  # what holds by then is logged
        self._logged, self._logged_at = frozenset(pressed), now
        if pressed:
            why = ", ".join(pressures(pressed, self.memory, self.p99_us))
            log.warning(
                "this worker is under pressure and uses %s %% of its permits: %s", share, why
            )
        else:
            log.info("this worker uses all its permits again: the pressure has ended")

    def _urgent(self, now: int) -> bool:
        # A claim is nothing only under pressure: the leader counts permits in use itself.
        if self.felt == self._published:
            return False
        eased = not _holds_back_more(self.felt, self._published)
        if (
            not eased
            and self._published_at is not None
            and now - self._published_at < PUBLISH_EVERY_US
        ):
            return False  # asked again later it is urgent still
        self._published, self._published_at = self.felt, now
        return True


def _holds_back_more(felt: PressureSignals, before: PressureSignals) -> bool:
    """The end of pressure is published without delay: until then the worker is idle."""
    return (
        bool(felt.nearly_full - before.nearly_full)
        or (felt.memory and not before.memory)
        or (felt.latency and not before.latency)
    )
