"""`delay=` and `start_at=` of a submission: checked, and as the store is told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from locktender.base.durations import MAX_MICROSECONDS, Duration, microseconds, spoken
from locktender.base.errors import InvalidInput
from locktender.base.model import NewRun

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EXAMPLE = (
    "e.g. datetime.now(timezone.utc) + timedelta(hours=2), or --start-at 2027-01-31T09:00+01:00"
)


def delayed(run: NewRun, delay: Duration | None, start_at: datetime | None, now: int) -> NewRun:
    """`run`, to be queued later. `now`: by this process's clock, to refuse what it knows to be over."""
    if delay is not None and start_at is not None:
        raise InvalidInput(
            "delay and start_at cannot be given together.",
            field="start_at",
            got=start_at,
            hint="Give the one or the other.",
        )
    if delay is not None:
        run = msgspec.structs.replace(run, delay_us=microseconds(delay, "delay"))
        wait = run.delay_us or 0
    else:
        at = instant_of(start_at, "start_at", now)
        run = msgspec.structs.replace(run, start_at=at)
        wait = at - now
    if run.deadline_us is not None and run.deadline_us <= wait:
        raise InvalidInput(
            f"the deadline ({spoken(run.deadline_us)}) would end the run before it starts"
            f" (in {spoken(wait)}).",
            field="deadline",
            got=run.deadline_us / 1_000_000,
            hint="A deadline counts from the submission: make it longer than the delay.",
        )
    return run


def instant_of(value: object, field: str, now: int) -> int:
    """A moment to come, in microseconds since the epoch."""
    if not isinstance(value, datetime):
        raise InvalidInput(f"{field} must be a datetime.", field=field, got=value, hint=_EXAMPLE)
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidInput(
            f"{field} has no time zone, so it is not known which moment it is.",
            field=field,
            got=value.isoformat(),
            hint=_EXAMPLE,
        )
    at = (value - _EPOCH) // timedelta(microseconds=1)
    if at <= now:
        raise InvalidInput(
            f"{field} lies {spoken(now - at)} in the past.",
            field=field,
            got=value.isoformat(),
            hint=f"Leave it out to start now; {_EXAMPLE}",
        )
    if at - now > MAX_MICROSECONDS:
        raise InvalidInput(
            f"{field} must be within 100 years.", field=field, got=value.isoformat(), hint=_EXAMPLE
        )
    return at
