"""How long a waiter is waited for: when it fails if nothing lets it go."""

from __future__ import annotations

import msgspec

from locktender.base.durations import spoken
from locktender.kernel.entries import TaskEntry
from locktender.kernel.lives import Lives

UNKNOWN_US = 0
"""The dispatch deadline of a step that has none of its own: whoever leads has that setting."""


class Until(msgspec.Struct, frozen=True):
    """When a waiter ends without having started, and as what."""

    kind: str
    """`queue_timeout`, `capacity` (the dispatch deadline), or `deadline` of the whole run."""
    at: int

    def text(self, now: int) -> str:
        left = spoken(max(0, self.at - now))
        match self.kind:
            case "capacity":
                return f"fails with capacity in {left} unless a worker takes it"
            case "deadline":
                return f"ends timed_out in {left} unless it has ended by then"
            case _:
                return f"fails with {self.kind} in {left} unless it has started"


def patience(lives: Lives, entry: TaskEntry) -> list[Until]:
    """What ends the wait of a requested task. The clock for a worker runs once all other gates were passed."""
    found: list[Until] = []
    timeout, deadline = lives.queue_timeout_of(entry), lives.dispatch_deadline_of(entry)
    if timeout is not None:
        found.append(Until("queue_timeout", entry.requested_at + timeout))
    if entry.eligible_at and deadline != UNKNOWN_US:
        found.append(Until("capacity", entry.eligible_at + deadline))
    return found
