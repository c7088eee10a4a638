"""One call of a flow with its options, as callers write it. Tracing it is `submit`'s, which loads more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, cast

from locktender.base.durations import Duration
from locktender.base.errors import InvalidInput
from locktender.base.model import Keep, OnDuplicate

TagValues = Mapping[str, str | int | bool]


@dataclass(frozen=True, slots=True)
class Submission:
    """One call of a flow with its own options, for `submit_many`.

    args, kwargs  the flow's arguments; the options are those of `submit`, None is the flow's own
    """

    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tags: TagValues | None = None
    priority: int | None = None
    key: str | None = None
    on_duplicate: OnDuplicate = "attach"
    deadline: Duration | None = None
    queue_timeout: Duration | None = None
    dispatch_deadline: Duration | None = None
    delay: Duration | None = None
    start_at: datetime | None = None
    keep: Keep | None = None
    max_queued: int | None = None
    debounce: Duration | None = None
    throttle: str | None = None

    @classmethod
    def of(cls, item: object) -> Submission:
        """Of `submit_many`: a tuple is the arguments, `((…), {…})` has keywords too; else one argument."""
        if isinstance(item, Submission):
            return item
        return cls(*call_of(item))


def call_of(item: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and the named arguments of an entry of `submit_many`."""
    if not isinstance(item, tuple):
        return (item,), {}
    several = cast("tuple[Any, ...]", item)
    if len(several) == 2 and isinstance(several[0], tuple) and isinstance(several[1], dict):
        return cast("tuple[Any, ...]", several[0]), cast("dict[str, Any]", several[1])
    return several, {}


def checked_calls(calls: object) -> list[Any]:
    """`calls` of `submit_many`. Of a text each character would be a run, of a dict each key."""
    if isinstance(calls, str | bytes | Mapping) or not isinstance(calls, Iterable):
        raise InvalidInput(
            f"calls must be a list with one entry per run, not {type(cast('object', calls)).__name__}.",
            field="calls",
            got=cast("object", calls),
            hint="e.g. submit_many(build, [1, 2]); for a single run: submit(build, 1).",
        )
    return list(cast("Iterable[Any]", calls))


def refuse_options(given: Mapping[str, object]) -> None:
    """Of `submit_many`, which has none but `partial`: each run has its own."""
    if not given:
        return
    from difflib import get_close_matches

    known = ["partial", *(each.name for each in fields(Submission)[2:])]
    for name, value in given.items():
        own = next(iter(get_close_matches(name, known, 1)), name)
        hint = "It takes flow, calls and partial."
        if own == "partial":
            hint = "Did you mean 'partial'?"
        elif own in known:
            hint = f"Each run has its own: Submission((…), {own}={value!r})."
        raise InvalidInput(
            f"submit_many takes no option {name!r}.", field=name, got=value, hint=hint
        )
