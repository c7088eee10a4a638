"""When something that waits ends by itself."""

from __future__ import annotations

import msgspec

from locktender.base.durations import spoken
from locktender.base.limits import DISPATCH_DEADLINE_US


class Until(msgspec.Struct, frozen=True):
    """When a waiter ends without having started, and as what."""

    kind: str
    """`queue_timeout`, `capacity` (the dispatch deadline, or as `default_capacity` the default one), or
    `deadline` of the whole run."""
    at: int

    def text(self, now: int) -> str:
        left = spoken(max(0, self.at - now))
        match self.kind:
            case "capacity":
                return f"fails with capacity in {left} unless a worker takes it"
            case "default_capacity":
                return (
                    f"fails with capacity in {left} unless a worker takes it, if the leader has the default"
                    f" dispatch_deadline ({spoken(DISPATCH_DEADLINE_US)}); a step, flow or"
                    " submission can have its own"
                )
            case "deadline":
                return f"ends timed_out in {left} unless it has ended by then"
            case _:
                return f"fails with {self.kind} in {left} unless it has started"
