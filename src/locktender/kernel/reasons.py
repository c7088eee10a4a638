"""What `why` answers with: reasons with their numbers, holders, and what would let a waiter start."""

from __future__ import annotations

import msgspec

from locktender.base.durations import MAX_MICROSECONDS, clock_text, spoken
from locktender.kernel.queue_position import Precision

MAX_HOLDERS_SHOWN = 20


class Holder(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who has what is waited for."""

    run: str
    task: int = 0
    node: str = ""
    slots: int = 1
    since: int = 0
    worker: str = ""
    dead: bool = False
    """Its worker is gone; the slots are kept until the pool's own lease has passed."""
    stop_reason: str = ""
    """Why it was asked to stop, where it was and still runs: `timeout`, `cancel` …"""
    stop_asked_at: int = 0
    stalled: bool = False
    """The lease of its worker has passed, and the process lives: the slots stay taken."""


class Reason(msgspec.Struct, frozen=True, omit_defaults=True):
    """One gate that blocks, with its numbers."""

    gate: str
    text: str
    used: int = 0
    limit: int = -1
    need: int = 1
    ahead: int = 0
    """How many waiters go first at the same gate if nobody else comes."""
    ahead_is: Precision = "exact"
    """How `ahead` is meant: fair turns may not be known for certain, a long line not counted to its end."""
    holders: tuple[Holder, ...] = ()
    more_holders: int = 0
    estimate_us: int | None = None
    never: bool = False
    """As limits are now, this can never be passed."""


class Typical(msgspec.Struct, frozen=True):
    """How long things usually take, for estimates; empty where nothing has been seen yet."""

    step_us: dict[str, int] = {}
    run_us: int | None = None


def event_reason(name: str, since: int, until: int, now: int) -> Reason:
    """A wait for an event. It holds nothing, and nobody knows how long it lasts."""
    text = f"waits for event `{name}` since {spoken(max(0, now - since))}"
    if until - since < MAX_MICROSECONDS:
        text += f", times out {clock_text(until)} ({spoken(max(0, until - now))} left)"
    return Reason("event", text)
