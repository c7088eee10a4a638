"""`sleep`, `sleep_until` and `wait_event`: nodes of a flow that wait for a time or an event, and hold nothing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast, overload

from locktender.base import names
from locktender.base.durations import MAX_MICROSECONDS, Duration, microseconds
from locktender.base.errors import InvalidFlow, InvalidInput
from locktender.base.graph import AwaitedEvent, Wait
from locktender.base.tracebacks import public
from locktender.flows.annotations import schema_of
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


class _Missing:
    def __repr__(self) -> str:
        return "none"


_NONE = cast("Any", _Missing())


@overload
def wait_event(
    event: str, *, schema: type[T], timeout: Duration | None = None, match: Mapping[str, Any] | None = None,
    after: Any = None, when: Any = None, name: str | None = None,
) -> T: ...  # fmt: skip
@overload
def wait_event(
    event: str, *, schema: Any = None, timeout: Duration | None = None, default: Any = ...,
    match: Mapping[str, Any] | None = None, after: Any = None, when: Any = None, name: str | None = None,
) -> Any: ...  # fmt: skip
@public
def wait_event(
    event: str, *, schema: Any = None, timeout: Duration | None = None, default: Any = _NONE,
    match: Mapping[str, Any] | None = None, after: Any = None, when: Any = None, name: str | None = None,
) -> Any:  # fmt: skip
    """Waits in a flow for an event: `run.send(event, payload)`, or `client.events.send(event, payload)`.

    event     its name; events of one name are taken in the order in which they were sent
    timeout   how long it waits: "2d", seconds, a timedelta, or the result of a step; default 100 years
    schema    the type of the payload; what does not fit is refused; default any
    default   what it returns if no event comes in time, so that `when=` can tell; without it, it fails
    match     for topics: `client.events.send(..., match={...})` reaches it if each value agrees; may
              have results of steps in it; default none
    after     results of steps that must have ended before the wait begins; default none
    when      a condition: if it does not hold, the wait and what needs it are skipped; default none
    name      what it is called in `why` and in lists; default the event's name

    Its result is the payload. A run of which nothing is left but waits gives back its place and is
    *waiting*. An event may be sent before the wait begins: it stays in the run's mailbox.

        answer = wait_event("approved", timeout="2d", default=None, after=report)
        publish.with_options(when=answer)(report)
    """
    label = names.name(event, "event")
    given: object = timeout
    if timeout is not None and not isinstance(timeout, Handle):
        given = {"us": microseconds(timeout, "timeout")}
    awaited = AwaitedEvent(label, {} if schema is None else schema_of(schema), default is not _NONE)
    value = None if default is _NONE else default
    return _wait(
        "event", "wait_event", value, given, after, when, name,
        event=awaited, match=match, returns=Any if schema is None else schema,
    )  # fmt: skip


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
    kind: Wait, label: str, value: object, given: object, after: object, when: object, name: str | None,
    event: AwaitedEvent | None = None, match: object = None, returns: Any = None,
) -> Handle[Any]:  # fmt: skip
    tracer = current()
    if tracer is None:
        raise InvalidFlow(
            f"{label} was called outside a flow.",
            field=label,
            hint="It belongs into the body of a function decorated with @flow."
            + (" In a step, use asyncio.sleep or time.sleep." if event is None else ""),
        )
    called = name or (label if event is None else event.name)
    return tracer.wait(
        kind, called, value, given, after, when,
        named=name is not None, event=event, match=match, returns=returns,
    )  # fmt: skip
