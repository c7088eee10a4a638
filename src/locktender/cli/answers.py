"""Answers as JSON: every time in ISO 8601, UTC, six digits behind the second, `Z` at the end.

Values of the client have datetimes. Values of the store and the kernel have microseconds since
1970, as `at`, `since`, `queued_at` and so on; both become the same text. What users stored
(arguments, results) is unchanged, whatever its names are.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST, _LATEST = 10**15, 10**16
"""September 2001 and 2286: a number outside of it is not a time in microseconds."""
_NAMES = frozenset({"at", "now", "since", "until", "oldest", "newest", "not_before", "tick"})
_ENDINGS = ("_at", "_until", "_since")
_OF_USERS = frozenset({"args", "result", "payload", "match", "tags"})
_encode = msgspec.json.Encoder().encode


def as_json(value: object) -> bytes:
    """`value` as JSON, its times as text."""
    return _encode(_with_times(msgspec.to_builtins(value, builtin_types=(datetime, msgspec.Raw))))


def iso(at: datetime) -> str:
    """`2026-11-16T12:45:40.881868Z`: as many characters for each time, so that texts sort as times do."""
    return f"{at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def _with_times(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, dict):
        fields = cast("Mapping[Any, Any]", value)
        return {key: _field(key, each) for key, each in fields.items()}
    if isinstance(value, list | tuple):
        return [_with_times(each) for each in cast("list[Any]", value)]
    return value


def _field(name: Any, value: Any) -> Any:
    if name in _OF_USERS and not isinstance(value, datetime):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and _is_time(name):
        if value == 0:  # not yet
            return None
        if _EARLIEST <= value < _LATEST:
            return iso(_EPOCH + timedelta(microseconds=value))
    return _with_times(value)


def _is_time(name: Any) -> bool:
    return isinstance(name, str) and (name in _NAMES or name.endswith(_ENDINGS))
