"""Clocks. Instants are integer microseconds since the epoch; only this module may ask the machine.

Time is an argument everywhere else. What is compared across processes is the
store's time; a process's own clock serves only what stays in the process.
"""

from __future__ import annotations

import time
from typing import Protocol

SECOND = 1_000_000
MILLISECOND = 1_000


class Clock(Protocol):
    def now(self) -> int:
        """Microseconds since the epoch."""
        ...

    def monotonic(self) -> int:
        """Microseconds that never go back and go on while the machine sleeps."""
        ...


class SystemClock:
    """The machine's clocks. The boot-time clock is used for own leases: it counts suspended time."""

    def now(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> int:
        return time.clock_gettime_ns(_BOOTTIME) // 1000


# macOS has no CLOCK_BOOTTIME; its CLOCK_MONOTONIC already counts sleep.
_BOOTTIME: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def thread_cpu_us() -> int:
    """For how long the calling thread has computed, in microseconds: not what it waited."""
    return time.thread_time_ns() // 1000


class ManualClock:
    """A clock that moves only by `advance`."""

    def __init__(self, start: int = 1_000_000 * SECOND) -> None:
        self._now = start

    def now(self) -> int:
        """The time, in microseconds since the epoch."""
        return self._now

    def monotonic(self) -> int:
        """The same time: this clock never jumps back."""
        return self._now

    def advance(self, microseconds: int) -> None:
        """Moves the time on by so many microseconds."""
        if microseconds < 0:
            raise ValueError("a clock does not go back")
        self._now += microseconds

    def set(self, instant: int) -> None:
        """Moves the time on to `instant`, in microseconds since the epoch."""
        self.advance(instant - self._now)
