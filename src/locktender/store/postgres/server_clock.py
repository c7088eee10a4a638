"""The server's time, reckoned between its answers by a clock of this process that never jumps.

An answer takes a moment to arrive, so what is reckoned from it is never ahead of the server's time, unless that
clock was set meanwhile. It is asked for again after a second; where a statement checks what was reckoned
(`quick_submit.py`), an older answer will do. Runs start by age, so time must not go back between two submissions:
each tells its instant here, and of two answers that overtook each other the later instant counts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from locktender.base.clock import SECOND, Clock, SystemClock

SYNC_EVERY_US = SECOND
"""How long the time is reckoned from the last answer before it is asked for again."""
OVERTAKEN_US = SECOND
"""An answer that is behind an earlier one by less was overtaken on its way; by more, the clock was set back."""


class ServerClock:
    def __init__(self, clock: Clock | None) -> None:
        """`clock` is for tests: it takes the place of the server's."""
        self._clock = clock
        self._boot = SystemClock()
        self._told: int | None = None
        self._told_at = 0

    def sync(self, now: int) -> int:
        """The server has answered that it is `now`. What is reckoned from here on."""
        at = self._boot.monotonic()
        if self._told is None or not 0 < self._told - now < OVERTAKEN_US:
            self._told, self._told_at = now, at
        return self._told + at - self._told_at

    def reckoned(self) -> int | None:
        """The time without asking, however old the last answer is; None: there was none yet."""
        if self._clock is not None:
            return self._clock.now()
        return None if self._told is None else self._told + self._boot.monotonic() - self._told_at

    async def now(self, ask: Callable[[], Awaitable[int]]) -> int:
        if self._clock is not None:
            return self._clock.now()
        since = self._boot.monotonic() - self._told_at
        if self._told is None or since >= SYNC_EVERY_US:
            return self.sync(await ask())
        return self._told + since

    def steady(self) -> int:
        return (self._clock or self._boot).monotonic()
