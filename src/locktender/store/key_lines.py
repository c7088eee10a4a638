"""What submissions with one key do to each other: how many may wait, and how many may start in a time.

A throttle keeps the instants of its last starts. With `count` in `per_us`, a start comes no earlier than `per_us`
after the start `count` places before it: so in no span of that length there are more. A run whose start is to come
waits for it like any run with a start time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from locktender.base.model import NewRun, ThrottleLine

_read = msgspec.json.Decoder(list[int]).decode
_dump = msgspec.json.Encoder().encode


def bounded_keys(runs: Iterable[NewRun]) -> set[str]:
    """Keys whose waiting runs a submission bounds."""
    return {run.key for run in runs if run.keep is not None and run.key is not None}


def lines_of(
    keys: Iterable[str], rows: Iterable[Sequence[Any]]
) -> dict[str, list[tuple[int, str]]]:
    """Rows of `queued_by_key` for each of `keys`."""
    lines: dict[str, list[tuple[int, str]]] = {key: [] for key in keys}
    for key, seq, run_id in rows:
        lines[key].append((seq, run_id))
    return lines


def throttled_names(runs: Iterable[NewRun]) -> set[str]:
    return {run.throttle.name for run in runs if run.throttle is not None}


def starts_of(rows: Iterable[Sequence[Any]]) -> dict[str, list[int]]:
    """Rows of `throttles_by_name`: name → instants of starts. What cannot be read delays no run."""
    found: dict[str, list[int]] = {}
    for name, starts in rows:
        try:
            found[name] = sorted(_read(starts))
        except (msgspec.MsgspecError, UnicodeError, TypeError):
            found[name] = []
    return found


class Throttles:
    """The last starts of each throttle that concerns some submissions, those of this transaction included."""

    def __init__(self, stored: Mapping[str, Sequence[int]]) -> None:
        self._starts = {name: list(starts) for name, starts in stored.items()}
        self._changed: dict[str, int] = {}

    def next_start(self, throttle: ThrottleLine, now: int) -> int:
        """When the next run may start; 0: now."""
        starts = self._starts.get(throttle.name, [])
        if len(starts) < throttle.count:
            return 0
        at = starts[-throttle.count] + throttle.per_us
        return at if at > now else 0

    def record_start(self, throttle: ThrottleLine, at: int) -> None:
        starts = self._starts.setdefault(throttle.name, [])
        starts.append(at)
        del starts[: -throttle.count]
        self._changed[throttle.name] = at + throttle.per_us

    def rows(self) -> list[tuple[str, int, bytes]]:
        """(name, when it says nothing any more, its starts) of those that changed."""
        return [(name, until, _dump(self._starts[name])) for name, until in self._changed.items()]
