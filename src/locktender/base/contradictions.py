"""Settings that are right one by one and cannot work together; each message names both.

A combination is refused only where something that was promised would not hold,
or what was asked for could never happen. What is merely slow or wasteful is not:
a cool-down shorter than the interval between two requests, say, or workers that
leave within the seconds of a take-over and have to come again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from locktender.base.durations import spoken
from locktender.base.labels import undeclared

if TYPE_CHECKING:
    from locktender.base.config import Settings


class Contradiction(NamedTuple):
    message: str
    hint: str
    got: dict[str, str]
    """The values that do not go together, by their keys, as a person would write them."""


class Order(NamedTuple):
    """`name` must be at least `times` × `other`; where `above`, more than that."""

    name: str
    other: str
    why: str = ""
    times: int = 1
    above: bool = True


BEATS: tuple[Order, ...] = (
    # Two beats must fit: one may be lost, and the next must still arrive before the lease ends.
    Order("worker_lease", "heartbeat", times=2),
    Order("leader_lease", "leader_renew", times=2),
)
ELASTIC: tuple[Order, ...] = (
    Order(
        "start_timeout",
        "poll",
        "a worker that has joined is seen one poll later at worst",
        above=False,
    ),
    Order(
        "start_timeout",
        "leader_lease",
        "a leader that takes over would not know of workers that are on their way",
    ),
    Order(
        "provisioned_idle_exit",
        "poll",
        "a new worker could leave before its first task is offered",
        above=False,
    ),
    Order("max_lifetime", "poll", "a new worker could end before its first task is offered"),
    Order(
        "dispatch_deadline",
        "provision_interval",
        "tasks would fail before a worker could be asked for",
    ),
)
"""Where workers are started on overflow."""
_TIMES = {1: "", 2: "twice "}


def contradictions(settings: Settings) -> list[Contradiction]:
    """What is wrong between values that are right by themselves."""
    orders = (*BEATS, *ELASTIC) if settings.max_workers else BEATS
    found = [each for order in orders if (each := _out_of_order(settings, order)) is not None]
    if settings.blob_over_bytes > settings.max_value_bytes:
        over, most = settings.blob_over_bytes, settings.max_value_bytes
        found.append(
            Contradiction(
                f"blob_over ({over:,} bytes) must not be above max_value ({most:,} bytes).",
                "Lower blob_over, or raise max_value.",
                {"blob_over": f"{over:,} bytes", "max_value": f"{most:,} bytes"},
            )
        )
    return found + _unknown_labels(settings)


def _out_of_order(settings: Settings, order: Order) -> Contradiction | None:
    us: int | None = getattr(settings, f"{order.name}_us")
    bound: int = order.times * getattr(settings, f"{order.other}_us")
    if us is None or us > bound or (us == bound and not order.above):
        return None
    got = {order.name: spoken(us), order.other: spoken(bound // order.times)}
    must = "be more than" if order.above else "not be below"
    why = f": {order.why}" if order.why else ""
    reach = "above" if order.above else "to"
    return Contradiction(
        f"{order.name} ({got[order.name]}) must {must} {_TIMES[order.times]}"
        f"{order.other} ({got[order.other]}){why}.",
        f"Raise {order.name} {reach} {spoken(bound)} or lower {order.other}.",
        got,
    )


def _unknown_labels(settings: Settings) -> list[Contradiction]:
    found: list[Contradiction] = []
    for label, value in settings.worker_labels.items() if settings.labels is not None else ():
        unknown = undeclared(label, value, settings.labels or {})
        if unknown is not None:
            message = (
                f"worker_labels has {label}={value}, and [labels] does not know {unknown.what}."
            )
            found.append(Contradiction(message, unknown.hint, {f"worker_labels.{label}": value}))
    return found
