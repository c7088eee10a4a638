"""Counts, ordinals, offers and stops in words: texts that failures, events and `why` share."""

from __future__ import annotations

from locktender.base.clock import SECOND
from locktender.base.durations import spoken

WORKER_GATE = "worker"
"""The gate of free permits."""


def counted(count: int, noun: str) -> str:
    """`1 worker`, `3 workers`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def nth(count: int) -> str:
    """`1st`, `2nd`, `11th`."""
    ends = {1: "st", 2: "nd", 3: "rd"}
    end = "th" if count % 100 in (11, 12, 13) else ends.get(count % 10, "th")
    return f"{count:,}{end}"


def offered_to(worker: str, at: int, offers: int, now: int) -> str:
    """Of a task whose worker has not accepted it yet."""
    return f"offered to {worker} {spoken(max(0, now - at))} ago ({nth(offers)} offer)"


def stop_text(reason: str, since: int, now: int) -> str:
    """Of an attempt that was asked to stop and still runs; in whole seconds, as exact as its instant is known."""
    return f"asked to stop {spoken(max(0, now - since) // SECOND * SECOND)} ago: {reason}"


def gate_word(gate: str) -> str:
    """How answers call a gate of the history: a run that is paused, or whose flow is, waits for no other name."""
    return "paused" if gate == "paused:pause" else gate
