"""When a schedule is due: a tick is a UTC instant, by a cron expression in a zone, an interval, or one instant.

Local times and daylight saving. A cron expression with fixed hours names local times: one that a zone skips is due
right after the gap, and one that a zone repeats is due the first time. With `*` in its hour field it names every
so many minutes of elapsed time: nothing is skipped and nothing is due twice.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import count
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from locktender.base.clock import SECOND
from locktender.base.errors import InvalidInput
from locktender.base.names import nearest

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_NAMED: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
MIN_EVERY_US: Final = SECOND


def instant(at: datetime) -> int:
    """An aware datetime as microseconds since the epoch."""
    return (at - EPOCH) // _MICROSECOND


def moment(at: int, tz: str = "UTC") -> datetime:
    """The same the other way, in a zone."""
    return (EPOCH + at * _MICROSECOND).astimezone(zone(tz))


@lru_cache(maxsize=1_000)
def zone(name: str) -> tzinfo:
    """Raises `InvalidInput` for a zone that does not exist."""
    if name == "UTC":
        return UTC  # also where the machine has no time zone database
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError) as error:
        known = available_timezones()
        if not known:
            raise InvalidInput(
                f"this machine has no time zone database to find {name!r} in.",
                field="tz",
                got=name,
                hint="Install the system's package tzdata, or: pip install tzdata",
            ) from error
        raise InvalidInput(
            f"there is no time zone {name!r}.",
            field="tz",
            got=name,
            hint=nearest(name, known) or 'e.g. tz="Europe/Berlin".',
        ) from error


class Timing(ABC):
    """The ticks of a schedule: each is a UTC instant in microseconds."""

    @abstractmethod
    def ticks(self, after: int) -> Iterator[int]:
        """The ticks later than `after`, in order, for ever or until there are none."""

    def next_after(self, after: int) -> int | None:
        """The first of them; None: there is none."""
        return next(self.ticks(after), None)


class AtInstant(Timing):
    def __init__(self, at: int) -> None:
        self._at = at

    def ticks(self, after: int) -> Iterator[int]:
        if self._at > after:
            yield self._at


class EveryInterval(Timing):
    def __init__(self, every_us: int, anchor: int) -> None:
        """The first is one interval behind `anchor`."""
        self._every_us = every_us
        self._anchor = anchor

    def ticks(self, after: int) -> Iterator[int]:
        passed = max(0, (after - self._anchor) // self._every_us)
        return count(self._anchor + (passed + 1) * self._every_us, self._every_us)


class CronExpression(Timing):
    def __init__(self, cron: str, tz: str) -> None:
        self._cron = _NAMED.get(cron.strip().lower(), cron)
        self._zone = zone(tz)
        try:
            CronSim(self._cron, datetime(2024, 1, 1))  # noqa: DTZ001 — read only to be checked
        except CronSimError as error:
            if _is_right_but_for_its_month(self._cron):
                raise InvalidInput(
                    "this cron expression never fires: the month has no such day.",
                    field="cron",
                    got=cron,
                    hint='The last day of a month is L: "0 3 L 2 *".',
                ) from error
            raise InvalidInput(
                f"the cron expression cannot be read: {error}.",
                field="cron",
                got=cron,
                hint='Five fields: minute hour day month weekday, e.g. "0 3 * * 1-5".',
            ) from error
        fields = self._cron.split()
        self._elapsed = fields[-4].startswith("*")

    def ticks(self, after: int) -> Iterator[int]:
        for tick in self._found(after):
            # Of local times in one gap the first: they are due at the same instant.
            if tick > after:
                yield tick
                after = tick

    def _found(self, after: int) -> Iterator[int]:
        local = (EPOCH + after * _MICROSECOND).astimezone(self._zone)
        try:
            if self._elapsed:
                for found in CronSim(self._cron, local):
                    yield instant(found)
            else:
                # By the clock on the wall, which has no zone: a local time is one tick, whatever the zone does.
                for found in CronSim(self._cron, local.replace(tzinfo=None)):
                    yield self._on_the_wall(found)
        except OverflowError:  # beyond the year 9999
            return

    def _on_the_wall(self, local: datetime) -> int:
        """The first instant at which clocks show this time; of a time they skip, the end of the gap."""
        early = local.replace(tzinfo=self._zone, fold=0)
        back = early.astimezone(UTC).astimezone(self._zone)
        if back.replace(tzinfo=None) == local:
            return instant(early.astimezone(UTC))
        # In a gap `fold=1` is read by the offset behind it, and so lies before the gap; fold=0 lies behind it.
        low = instant(local.replace(tzinfo=self._zone, fold=1).astimezone(UTC))
        high = instant(early.astimezone(UTC))
        before = (EPOCH + low * _MICROSECOND).astimezone(self._zone).utcoffset()
        while high - low > 1:
            middle = (low + high) // 2
            offset = (EPOCH + middle * _MICROSECOND).astimezone(self._zone).utcoffset()
            low, high = (middle, high) if offset == before else (low, middle)
        return high


def _is_right_but_for_its_month(cron: str) -> bool:
    fields = cron.split()
    try:
        CronSim(" ".join([*fields[:-2], "*", fields[-1]]), datetime(2024, 1, 1))  # noqa: DTZ001
    except (CronSimError, IndexError):
        return False
    return True


def jitter_of(name: str, tick: int, jitter_us: int) -> int:
    """How much later than its tick a run is made: the same for every leader, spread over schedules."""
    return zlib.crc32(f"{name}:{tick}".encode()) * jitter_us // 0xFFFFFFFF if jitter_us else 0
