"""`keep=`, `max_queued=`, `debounce=` and `throttle=`: what runs of one key do to each other."""

from __future__ import annotations

from typing import Final, cast, get_args

import msgspec

from locktender.base import names
from locktender.base.durations import Duration, microseconds, spoken
from locktender.base.errors import InvalidInput
from locktender.base.limits import parse_rate
from locktender.base.model import Keep, NewRun, ThrottleLine

_KEEP: Final[tuple[str, ...]] = get_args(Keep)
MAX_QUEUED: Final = 10_000


def bounded(run: NewRun, keep: object, max_queued: object) -> NewRun:
    """`run`, to wait for others of its key."""
    if keep is None:
        raise InvalidInput(
            "max_queued needs keep.",
            field="max_queued",
            got=max_queued,
            hint='Say which runs of the key stay: keep="newest" or keep="oldest".',
        )
    if keep not in _KEEP:
        raise InvalidInput(
            f"keep must be one of {', '.join(_KEEP)}.",
            field="keep",
            got=keep,
            hint=names.nearest(keep, _KEEP),
        )
    if run.key is None:
        raise InvalidInput(
            f"keep={keep!r} needs a key.",
            field="keep",
            got=keep,
            hint='It says which runs of a key stay: add key="…".',
        )
    if run.on_duplicate != "attach":
        raise InvalidInput(
            f"keep={keep!r} and on_duplicate={run.on_duplicate!r} contradict each other.",
            field="on_duplicate",
            got=run.on_duplicate,
            hint="Leave out one of them.",
        )
    most = 1 if max_queued is None else names.count(max_queued, "max_queued", maximum=MAX_QUEUED)
    return msgspec.structs.replace(run, keep=cast("Keep", keep), max_queued=most)


def timed(run: NewRun, debounce: Duration | None, throttle: object) -> NewRun:
    """`run`, to start when `debounce` or `throttle` says."""
    if debounce is not None and throttle is not None:
        raise InvalidInput(
            "debounce and throttle cannot be given together.",
            field="throttle",
            got=throttle,
            hint="debounce runs the last of many, throttle all of them, one after the other.",
        )
    return throttled(run, throttle) if debounce is None else debounced(run, debounce)


def debounced(run: NewRun, debounce: Duration) -> NewRun:
    """`run`, to wait for so long; a later one of its key takes its place, and waits anew."""
    if run.key is None:
        raise InvalidInput(
            "debounce needs a key.",
            field="debounce",
            got=debounce,
            hint='The last run of a key is the one that runs: add key="…".',
        )
    _alone(run, "debounce")
    wait = microseconds(debounce, "debounce")
    if run.deadline_us is not None and run.deadline_us <= wait:
        raise InvalidInput(
            f"the deadline ({spoken(run.deadline_us)}) would end the run before it starts"
            f" (in {spoken(wait)}).",
            field="deadline",
            got=run.deadline_us / 1_000_000,
            hint="A deadline counts from the submission: make it longer than debounce.",
        )
    return msgspec.structs.replace(run, delay_us=wait, keep="newest", max_queued=1)


MAX_THROTTLED: Final = 1_000


def throttled(run: NewRun, throttle: object) -> NewRun:
    """`run`, to start when its key, or else its flow, has not had too many starts lately."""
    _alone(run, "throttle")
    rate = parse_rate(throttle, field="throttle")
    if rate.count > MAX_THROTTLED:
        raise InvalidInput(
            f"throttle allows {rate.count:,} starts at a time; at most {MAX_THROTTLED:,} can be counted.",
            field="throttle",
            got=throttle,
            hint='Give a shorter time, e.g. "20/s" for "1200/min".',
        )
    name = f"flow {run.flow}" if run.key is None else f"key {run.key}"
    # By its rate, too: submissions with different ones are counted apart.
    name = f"{name}, {rate.count}/{spoken(rate.per_us)}"
    line = ThrottleLine(name, rate.count, rate.per_us)
    # Here a key only names what is throttled: its runs may execute side by side.
    return msgspec.structs.replace(run, key=None, throttle=line)


def _alone(run: NewRun, option: str) -> None:
    """Refuses what says when a run starts, or which one stays, beside another option that says it."""
    for field, given in (
        ("keep", run.keep),
        ("on_duplicate", None if run.on_duplicate == "attach" else run.on_duplicate),
        ("delay", run.delay_us),
        ("start_at", run.start_at),
    ):
        if given is not None:
            raise InvalidInput(
                f"{option} and {field} cannot be given together.",
                field=field,
                got=given,
                hint=f"{option} says when a run starts: leave out {field}.",
            )
