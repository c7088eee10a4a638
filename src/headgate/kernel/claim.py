"""How much a worker asks for: its free permits, less under pressure, without flapping."""

from __future__ import annotations

from dataclasses import dataclass

LARGE_WORKER = 100
"""From this many permits up, a nearly full worker stops asking; a small one must be able to fill its last."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """Which signals hold the worker back now. Each lets go only well below where it set in."""

    nearly_full: bool = False
    memory: bool = False
    latency: bool = False


@dataclass(frozen=True, slots=True)
class Load:
    permits: int
    """−1: unlimited."""
    in_flight: int
    memory: float = 0.0
    """Share of memory in use, 0 to 1."""
    p99_us: int | None = None


@dataclass(frozen=True, slots=True)
class ClaimPolicy:
    batch: int = 50
    memory_high: float = 0.8
    latency_threshold_us: int | None = None


RELEASE = 0.9
"""A signal ends at 90 % of its threshold (for permits: at 20 % free instead of 10 %)."""


def claim_size(load: Load, policy: ClaimPolicy, before: Pressure) -> tuple[int, Pressure]:
    """How many tasks to take now, and the pressure felt (give it back at the next call)."""
    free = policy.batch if load.permits < 0 else max(0, load.permits - load.in_flight)
    share = 1.0 if load.permits <= 0 else free / load.permits
    nearly_full = load.permits >= LARGE_WORKER and share < (0.2 if before.nearly_full else 0.1)
    memory = load.memory > policy.memory_high * (RELEASE if before.memory else 1.0)
    latency = (
        policy.latency_threshold_us is not None
        and load.p99_us is not None
        and load.p99_us > policy.latency_threshold_us * (RELEASE if before.latency else 1.0)
    )
    felt = Pressure(nearly_full, memory, latency)
    if nearly_full:
        return 0, felt
    factor = (0.5 if memory else 1.0) * (0.7 if latency else 1.0)
    size = int(min(free, policy.batch) * factor)
    # Under pressure a free worker still takes one: otherwise two slow tasks could stop it for good.
    return (max(size, 1) if free else 0), felt
