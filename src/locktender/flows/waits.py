"""`sleep` and `sleep_until`: nodes of a flow that wait for a time and hold nothing meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

from locktender.base.durations import MAX_MICROSECONDS, Duration, microseconds
from locktender.base.errors import InvalidFlow, InvalidInput
from locktender.base.graph import Wait
from locktender.base.tracebacks import public
from locktender.flows.handles import Handle
from locktender.flows.tracer import current

T = TypeVar("T")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@public
def sleep(
    duration: Duration, value: T = None, *, after: Any = None, when: Any = None, name: str | None = None
) -> T:  # fmt: skip
    """Waits in a flow: what is given its result starts when the time has passed. It holds nothing meanwhile.

    duration  "3d", "90s", seconds or a timedelta; or the result of a step, which is such a duration
    value     what it returns: the result of a step, or any value; default None
    after     results of steps that must have ended before the wait begins; default none
    when      a condition: if it does not hold, the wait and what needs it are skipped; default none
    name      what it is called in `why` and in lists; default "sleep"

    A run of which nothing is left but waits gives back its place and is *waiting*.

        report = build(day)
        publish(sleep("3d", report))
    """
    given = duration if isinstance(duration, Handle) else {"us": microseconds(duration, "sleep")}
    return cast("T", _wait("sleep", "sleep", value, given, after, when, name))


@public
def sleep_until(
    moment: datetime, value: T = None, *, after: Any = None, when: Any = None, name: str | None = None
) -> T:  # fmt: skip
    """As `sleep`, until a moment: a datetime with a time zone. One that has passed is not waited for.

    moment    a datetime with a time zone, or the result of a step, which is one
    value     what it returns: the result of a step, or any value; default None
    after     results of steps that must have ended before the wait begins; default none
    when      a condition: if it does not hold, the wait and what needs it are skipped; default none
    name      what it is called in `why` and in lists; default "sleep_until"
    """
    given = moment if isinstance(moment, Handle) else {"us": _instant(moment)}
    return cast("T", _wait("until", "sleep_until", value, given, after, when, name))


def _instant(moment: object) -> int:
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise InvalidInput(
            "sleep_until needs a datetime with a time zone.",
            field="moment",
            got=moment,
            hint="e.g. datetime.now(timezone.utc) + timedelta(days=3)",
        )
    at = (moment - _EPOCH) // timedelta(microseconds=1)
    if not 0 <= at <= 2 * MAX_MICROSECONDS:
        raise InvalidInput(
            "sleep_until must be within 100 years.", field="moment", got=moment.isoformat()
        )
    return at


def _wait(
    kind: Wait, label: str, value: object, given: object, after: object, when: object, name: str | None
) -> Handle[Any]:  # fmt: skip
    tracer = current()
    if tracer is None:
        raise InvalidFlow(
            f"{label} was called outside a flow.",
            field=label,
            hint="It belongs into the body of a function decorated with @flow."
            " In a step, use asyncio.sleep or time.sleep.",
        )
    return tracer.wait(kind, name or label, value, given, after, when, named=name is not None)
