"""Lanes: queued runs under the same limits, in one order, so that only the head of each lane is checked.

If the head of a lane is blocked, so is everything behind it. The store keeps
the lane and the rank on each queued run; the kernel holds a few heads per lane.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from locktender.base.limits import Limits

MAX_RANK = 2**62
SEPARATOR = "\x1f"
HOLD: str = f"{SEPARATOR}hold"
"""How the name of a lane of holds begins: no signature begins so."""
PAUSED: str = f"{SEPARATOR}paused"
"""The lane of all queued runs that are paused, or whose flow is: none of them starts."""


def signature(
    limits: Limits, tags: Mapping[str, str], key: str | None = None, keeps: Collection[str] = ()
) -> str:
    """The limits that concern a run with `tags`, as one text. `key`: it waits for the run it replaces.

    `keeps`: the limits at which it has kept its place. It does not wait for those.
    """
    if not limits.tags and limits.fair is None and key is None:
        return ""  # asked for every run that comes in, and mostly nothing concerns it
    # Each kind has its own prefix: a tag may be named like anything.
    parts = [
        f"t:{counter}"
        for rule in limits.tags
        if (counter := rule.counter(tags)) is not None and not (keeps and rule.keeps(keeps))
    ]
    if limits.fair is not None and (value := tags.get(limits.fair.key)) is not None:
        parts.append(f"f:{value}")
    if key is not None:
        parts.append(f"k:{key}")
    return SEPARATOR.join(sorted(parts))


def rules(limits: Limits) -> tuple[object, ...]:
    """The limits that lanes and ranks depend on, except pauses of single runs."""
    return (
        limits.tags,
        limits.fair,
        limits.age_boost_us,
        limits.paused_flows.keys(),
    )


def holds(signature: str) -> bool:
    """A lane of slots taken by code of one's own, which pass the queue at once."""
    return signature.startswith(HOLD)


def read(signature: str) -> tuple[frozenset[str], str]:
    """What `signature` wrote: the tags' counters that concern a lane, and its value of the fair key."""
    parts = signature.split(SEPARATOR)
    counters = frozenset(part[2:] for part in parts if part.startswith("t:"))
    return counters, next((part[2:] for part in parts if part.startswith("f:")), "")


def rank(limits: Limits, priority: int, queued_at: int) -> tuple[int, int]:
    """Where a run stands in its lane: priority, then age; with `age_boost`, one key in which age buys priority."""
    if limits.age_boost_us:
        # Bounded: a boost that was set before it was refused must not overflow 64 bits.
        return 0, max(-MAX_RANK, min(MAX_RANK, queued_at - priority * limits.age_boost_us))
    return -priority, queued_at
