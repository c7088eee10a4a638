"""The options of a schedule as users write them, checked: for `schedules.set` and `@flow(schedule=…)`.

The command line hands them over as text.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from locktender.base import codec, names
from locktender.base.durations import Duration, microseconds
from locktender.base.errors import InvalidInput
from locktender.base.schedules import CatchUp, Overlap, ScheduleSpec
from locktender.base.ticks import EPOCH, MIN_EVERY_US, instant, zone

MAX_ARGS_BYTES: Final = 64 * 1024
_ONE_OF: Final = 'e.g. cron="0 3 * * 1-5", every="15m", or at="2027-01-31T09:00".'


def make_spec(
    flow: str,
    args: Mapping[str, Any] | None = None,
    *,
    cron: str | None = None,
    every: Duration | None = None,
    at: datetime | str | None = None,
    tz: str = "UTC",
    jitter: Duration | None = None,
    overlap: Overlap = "skip",
    catch_up: CatchUp = "none",
    max_active: int | None = None,
    paused: bool = False,
    tags: Mapping[str, Any] | None = None,
) -> ScheduleSpec:
    """Raises `InvalidInput` naming the option; whether `at` is past is checked where the time is known."""
    if overlap == "replace" and max_active not in (None, 1):
        raise InvalidInput(
            'overlap="replace" keeps one run: it cannot have another max_active.',
            field="max_active",
            got=max_active,
            hint='Leave out max_active, or say overlap="queue" or "skip".',
        )
    given = {"cron": cron, "every": every, "at": at}
    if sum(each is not None for each in given.values()) != 1:
        text = "say when: one of cron, every and at."
        got = {key: each for key, each in given.items() if each is not None}
        raise InvalidInput(text, field="cron", got=got or None, hint=_ONE_OF)
    zone(tz)
    every_us = None if every is None else microseconds(every, "every")
    if every_us is not None and every_us < MIN_EVERY_US:
        raise InvalidInput("every must be 1 s or more.", field="every", got=every)
    spec = ScheduleSpec(
        flow=names.name(flow, "flow"),
        args=msgspec.Raw(_arguments(args or {})),
        cron=None if cron is None else names.text(cron, "cron"),
        every_us=every_us,
        at=None if at is None else _instant(at, tz),
        tz=tz,
        jitter_us=0 if jitter is None else microseconds(jitter, "jitter", minimum=0),
        overlap=_one_of(overlap, typing.get_args(Overlap), "overlap"),
        catch_up=_one_of(catch_up, typing.get_args(CatchUp), "catch_up"),
        max_active=None if max_active is None else names.count(max_active, "max_active"),
        paused=bool(paused),
        tags=names.tags(tags),
    )
    if cron is not None and spec.timing(0).next_after(0) is None:
        raise InvalidInput(
            "this cron expression never fires: no such day comes within 50 years.",
            field="cron",
            got=cron,
            hint=_ONE_OF,
        )
    return spec


def _arguments(args: Mapping[str, Any]) -> bytes:
    raw = codec.join_object(
        {str(key): codec.encode(value, str(key)) for key, value in args.items()}
    )
    if len(raw) > MAX_ARGS_BYTES:
        raise InvalidInput(
            f"the arguments are {len(raw):,} bytes as JSON; at most {MAX_ARGS_BYTES:,} are kept in a schedule.",
            field="args",
            got=len(raw),
        )
    return raw


def _instant(at: datetime | str, tz: str) -> int:
    try:
        read = datetime.fromisoformat(at) if isinstance(at, str) else at
    except ValueError as error:
        raise InvalidInput(
            "at is not a date and time.", field="at", got=at, hint=_ONE_OF
        ) from error
    if read.tzinfo is None:
        read = read.replace(tzinfo=zone(tz))
    if read < EPOCH:
        raise InvalidInput("at lies before 1970.", field="at", got=at)
    return instant(read)


def _one_of(value: Any, known: tuple[str, ...], field: str) -> Any:
    if value not in known:
        raise InvalidInput(
            f"{field} must be one of {', '.join(known)}.",
            field=field,
            got=value,
            hint=names.nearest(value, known),
        )
    return value
