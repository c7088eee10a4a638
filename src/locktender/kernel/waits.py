"""When a wait is over, and what it passes on."""

from __future__ import annotations

import msgspec

from locktender.base import codec
from locktender.base.durations import MAX_MICROSECONDS, instant_text, microseconds
from locktender.base.errors import InvalidInput
from locktender.base.graph import Wait

_call = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class _Microseconds(msgspec.Struct):
    """A time that was known when the flow was traced."""

    us: int


_read_match = msgspec.json.Decoder(dict[str, str | int | float | bool | None] | None).decode
_read_time = msgspec.json.Decoder(_Microseconds | str | float | int | None).decode


def wake_instant(wait: Wait, call: bytes, now: int) -> int:
    """When a sleep that begins now is over. Its call is (value, how long or until when)."""
    name = {"sleep": "sleep", "event": "timeout"}.get(wait, "sleep_until")
    try:
        given = _read_time(_arguments(call)[1])
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{name} is not a time: {error}.", field=name) from error
    if wait == "event" and given is None:
        return now + MAX_MICROSECONDS
    if wait != "until":
        # A result of a step may be any duration.
        return now + (given.us if isinstance(given, _Microseconds) else microseconds(given, name))
    at = given.us if isinstance(given, _Microseconds) else instant_text(given, name)
    if not 0 <= at <= now + MAX_MICROSECONDS:
        raise InvalidInput(
            f"{name} must be within 100 years.",
            field=name,
            got=at if isinstance(given, _Microseconds) else given,
            hint='e.g. "2027-01-31T09:00:00+01:00".',
        )
    return at


def passed_value(call: bytes) -> bytes:
    """What a sleep passes on, and a wait for an event that did not come."""
    return _arguments(call)[0]


def matched_by(call: bytes) -> str:
    """What an event of a topic has to agree with, as JSON: an object of plain values."""
    try:
        given = _read_match(_arguments(call)[2])
    except msgspec.ValidationError as error:
        raise InvalidInput(
            f"match must be an object of plain values: {error}.", field="match"
        ) from error
    return msgspec.json.encode(given or {}, order="sorted").decode()


def _arguments(call: bytes) -> list[bytes]:
    return codec.split_list(bytes(_call(call)["args"]))
