"""When a worker has lived long enough: idle for too long, too old, or enough tasks run.

It only decides. The command that runs the worker drains it then, lets what is in
flight finish however long that takes, and ends its process with success.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from locktender.base.clock import SECOND, Clock
from locktender.base.config import Settings
from locktender.base.durations import spoken

NO_END = 2**31
CHECK_EVERY_SECONDS = 0.1
"""How often the time is checked; that enough tasks were begun is noticed at once."""


class Bounds(NamedTuple):
    """None: no such bound."""

    idle_us: int | None = None
    age_us: int | None = None
    tasks: int | None = None


class Life(NamedTuple):
    """A worker's life so far, on the process's monotonic clock."""

    since: int
    busy_at: int
    """When it was last offered something, or something of it ended; its start if never."""
    in_flight: int = 0
    tasks: int = 0
    """How many it has begun."""


def ending(life: Life, bounds: Bounds, now: int) -> str | None:
    """Why the worker should end now, as a person would say it; None: it should not."""
    if bounds.tasks is not None and life.tasks >= bounds.tasks:
        return f"ran {life.tasks:,} tasks"
    if bounds.age_us is not None and now - life.since >= bounds.age_us:
        return f"lived {spoken(now - life.since)}"
    if bounds.idle_us is None or life.in_flight:
        return None
    idle = now - life.busy_at
    return f"idle for {spoken(idle)}" if idle >= bounds.idle_us else None


def next_look(life: Life, bounds: Bounds, now: int) -> int | None:
    """The next instant at which time alone may end the worker; None: it never will.

    While something is in flight that is how long a worker takes to become idle at the least: a
    look at this instant is early then, and never late.
    """
    ends: list[int] = []
    if bounds.age_us is not None:
        ends.append(life.since + bounds.age_us)
    if bounds.idle_us is not None:
        ends.append((now if life.in_flight else life.busy_at) + bounds.idle_us)
    return max(now, min(ends)) if ends else None


class Lifetime:
    """A worker's own count of its life. Used on its loop."""

    def __init__(self, settings: Settings, clock: Clock, *, awaited: bool = False) -> None:
        """`awaited`: a caller waits for its end (`passed`), and then ends it."""
        self._clock = clock
        self._bounds = Bounds(settings.idle_exit_us, settings.max_lifetime_us, settings.max_tasks)
        now = clock.monotonic()
        self._life = Life(now, now)
        self._busy_at = now
        self._tasks = 0
        self._expected = 0
        self._enough = asyncio.Event()
        self._awaited = awaited

    @property
    def bounded(self) -> bool:
        """Whether it has an end by itself."""
        return self._bounds != Bounds()

    @property
    def room(self) -> int:
        """How many more tasks it may begin."""
        most = self._bounds.tasks
        # A worker that is embedded in a program is not ended: it would decline work for ever.
        if most is None or not self._awaited:
            return NO_END
        return max(0, most - self._tasks)

    @property
    def offerable(self) -> int:
        """How many more it may be offered: what is being accepted counts as begun.

        Read from any thread. The larger of two numbers, because a sum would count a task twice, or not at
        all, in the moment in which it begins.
        """
        room, most = self.room, self._bounds.tasks
        if most is None or room == NO_END:
            return NO_END
        return max(0, most - max(self._tasks, self._expected))

    def accepting(self, count: int) -> None:
        """So many are about to be begun; 0: all have begun."""
        self._expected = self._tasks + count

    def began(self, now: int) -> None:
        """A task was begun."""
        self._tasks += 1
        self._busy_at = now
        if self._bounds.tasks is not None and self._tasks >= self._bounds.tasks:
            self._enough.set()

    def ended(self, now: int) -> None:
        """A task has ended."""
        self._busy_at = now

    def over(self, now: int, in_flight: int) -> str | None:
        """Why the worker should drain and end now; None: it should not."""
        return ending(self._so_far(in_flight), self._bounds, now)

    def next_look(self, now: int, in_flight: int) -> int | None:
        """When to ask again at the latest (and after every end, where `max_tasks` is set)."""
        return next_look(self._so_far(in_flight), self._bounds, now)

    async def passed(self, in_flight: Callable[[], int]) -> str:
        """Returns why, when it is over; never where nothing bounds it. The caller ends the worker then."""
        self._awaited = True
        while True:
            now, flying = self._clock.monotonic(), in_flight()
            if (why := self.over(now, flying)) is not None:
                return why
            look = self.next_look(now, flying)
            seconds = (
                CHECK_EVERY_SECONDS
                if look is None
                else min(CHECK_EVERY_SECONDS, (look - now) / SECOND)
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.01, seconds)):
                    await self._enough.wait()

    def _so_far(self, in_flight: int) -> Life:
        return self._life._replace(busy_at=self._busy_at, in_flight=in_flight, tasks=self._tasks)
