"""Texts that failures, events and `why` share."""

from __future__ import annotations

from locktender.base.clock import SECOND
from locktender.base.durations import spoken


def counted(count: int, noun: str) -> str:
    """`1 worker`, `3 workers`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def told_to_stop(reason: str, since: int, now: int) -> str:
    """Of an attempt that was and still runs; in whole seconds, for its instant is not known better."""
    return f"told to stop {spoken(max(0, now - since) // SECOND * SECOND)} ago: {reason}"
