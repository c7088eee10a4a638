"""What `why` answers with: reasons with their numbers, holders, and what would let a waiter start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from locktender.base.durations import MAX_MICROSECONDS, clock_text, spoken
from locktender.kernel.estimates import MAX_DRAWN, SharedPlays
from locktender.kernel.queue_position import Precision

MAX_HOLDERS_SHOWN = 20
MAX_NAMED = 5
"""Holders in a sentence."""


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
    until: int = 0
    """Of a dead one: when the slots come free."""
    stop_reason: str = ""
    """Why it was asked to stop, where it was and still runs: `timeout`, `cancel` …"""
    stop_asked_at: int = 0
    waiting: bool = False
    """A run that sleeps or waits for an event, and keeps its place (`counts_while_waiting`)."""
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
    """As often shorter as longer."""
    p90_us: int | None = None
    """Shorter in nine of ten cases."""
    basis: str = ""
    """What the estimate is from."""
    waiters: int = 0
    """How many wait for the same, it included."""
    never: bool = False
    """As limits are now, this can never be passed."""


class GateOpening(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one gate lacks to let a waiter start. Where several gates do, all of it has to happen."""

    gate: str
    text: str
    limit: int | None = None
    """The smallest limit that is enough; of a rate its burst. None: no limit helps, or none can be set."""
    tasks: tuple[int, ...] = ()
    """Holders (the first of them): it is enough that `ends` of them end, whichever they are."""
    ends: int = 0
    """0: their end alone is not enough. Fewer may do where they hold more than this."""
    slots: int = 0
    """How much of the gate has to come free."""
    resume: bool = False
    """It is paused: that has to end."""
    at: int | None = None
    """Time alone opens it at this instant."""
    permits: int = 0
    """Of workers: how many more are needed, on workers that fit."""
    runs: tuple[str, ...] = ()
    """Of queued runs: the runs that hold the places, as `tasks`."""
    about: bool = False
    """There are so many before it that this is only about enough."""


def ends_text(what: str, holders: Sequence[str], ends: int, more: int) -> str:
    """`any 2 of tasks 17, 23, 25 to end`; `more` holders are not named. `ends` 0: the end of all is not enough."""
    every, named = len(holders) + more, holders[:MAX_NAMED]
    several = f"{what}{'' if every == 1 else 's'} {', '.join(named)}"
    if every > len(named):
        several += f" and {every - len(named):,} more"
    if not ends:
        return f"{several} to end, and more of those before it"
    if ends == every:
        return f"{several} to end"
    return f"any {'' if ends == 1 else f'{ends:,} '}of {several} to end"


class Typical(msgspec.Struct, frozen=True):
    """How long things usually take, for estimates; empty where nothing has been seen yet."""

    step_us: Mapping[str, int] = {}
    run_us: int | None = None
    holds: Mapping[str, tuple[int, ...]] = {}
    """Step → the last durations, sorted."""
    run_holds: tuple[int, ...] = ()
    """Of runs of the flow that is asked about."""
    draws: int = MAX_DRAWN
    """How many durations may be drawn for the whole answer; 0: estimates are reckoned, never played."""
    plays: SharedPlays | None = None
    """Of several answers: lines that were played for one of them before."""

    def shared(self, parts: int) -> Typical:
        """For each of so many parts of one answer."""
        return self if parts < 2 else msgspec.structs.replace(self, draws=self.draws // parts)


def event_reason(name: str, since: int, until: int, now: int, tz: str = "UTC") -> Reason:
    """A wait for an event. It holds nothing, and nobody knows how long it lasts."""
    text = f"has waited for event `{name}` for {spoken(max(0, now - since))}"
    if until - since < MAX_MICROSECONDS:
        text += f", times out {clock_text(until, tz)} ({spoken(max(0, until - now))} left)"
    return Reason("event", text)
