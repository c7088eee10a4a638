"""Durations as people write them: `"90s"`, `"1h30m"`, `1.5` (seconds); kept as integer microseconds."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from locktender.base.errors import InvalidInput

Duration = str | int | float | timedelta

_UNITS = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d|w)")
_HINT = 'Write it as "500ms", "90s", "1h30m" or a number of seconds.'
MAX_MICROSECONDS = 100 * 366 * _UNITS["d"]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(value: object, field: str = "duration", *, minimum: int = 1) -> int:
    """`value` in microseconds; `minimum` is 1 because a duration of nothing is a mistake nearly everywhere."""
    result = _parse(value, field)
    if result < minimum:
        least = "zero or more" if minimum == 0 else "more than zero"
        raise InvalidInput(f"{field} must be {least}.", field=field, got=value, hint=_HINT)
    if result > MAX_MICROSECONDS:
        raise InvalidInput(f"{field} must be under 100 years.", field=field, got=value, hint=_HINT)
    return result


def _parse(value: object, field: str) -> int:
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    if isinstance(value, bool):
        raise InvalidInput(f"{field} is not a duration.", field=field, got=value, hint=_HINT)
    if isinstance(value, int | float):
        # An int beyond every float cannot be asked whether it is finite.
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidInput(f"{field} is not a duration.", field=field, got=value, hint=_HINT)
        scaled = value * 1_000_000
        return round(scaled) if scaled <= MAX_MICROSECONDS else MAX_MICROSECONDS + 1
    text = value.strip() if isinstance(value, str) else ""
    if text.startswith("-") and _PART.fullmatch(text[1:]):
        raise InvalidInput(
            f"{field} is not a duration: it is negative.", field=field, got=value, hint=_HINT
        )
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text).strip():
        raise InvalidInput(f"{field} is not a duration.", field=field, got=value, hint=_HINT)
    total = sum(float(number) * _UNITS[unit] for number, unit in parts)
    return round(total) if math.isfinite(total) else MAX_MICROSECONDS + 1


def spoken(value: int) -> str:
    """`value` microseconds as a person would say it: `4h00m`, `2m05s`, `1.5s`, `40ms`."""
    if value < 0:
        return "-" + spoken(-value)
    if value < 999_500:
        return f"{value / 1000:.3g}ms"
    seconds = value / 1_000_000
    if seconds < 59.95:
        return f"{seconds:.3g}s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02d}h"


def instant_text(value: object, field: str) -> int:
    """A moment in ISO form, with its zone, in microseconds since the epoch."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        moment = None
    if moment is None or moment.utcoffset() is None:
        raise InvalidInput(
            f"{field} is not a moment with a time zone.",
            field=field,
            got=value,
            hint="A result that is slept until is a datetime, or a text such as 2031-05-01T09:00+02:00.",
        )
    return (moment - _EPOCH) // timedelta(microseconds=1)


def clock_text(at: int, tz: str = "UTC") -> str:
    """An instant as people read it: `Thursday 2031-05-01 09:00:00 UTC`, or `… (Europe/Berlin)`."""
    try:
        zone = UTC if tz == "UTC" else _zone(tz)
        shown = (_EPOCH + timedelta(microseconds=at)).astimezone(zone)
    except OverflowError:
        return "a moment that no calendar has"
    return f"{shown:%A %Y-%m-%d %H:%M:%S} " + ("UTC" if zone is UTC else f"({tz})")


def _zone(tz: str) -> tzinfo:
    try:
        return ZoneInfo(tz)
    except (ValueError, OSError, LookupError):  # this machine does not know it
        return UTC
