"""The queue with reasons: what `client.queue.explained` returns."""

from __future__ import annotations

import msgspec

from locktender.client.views import RunInfo
from locktender.observe.why import Why


class ExplainedRun(msgspec.Struct, frozen=True):
    """A queued run, its position, from 1, and what it waits for."""

    position: int
    run: RunInfo
    why: Why


class ExplainedQueue(msgspec.Struct, frozen=True):
    """The first queued runs in the order in which they start."""

    queue: list[ExplainedRun]
    more: bool
    """There are others behind them."""
    total: int | None
    """How many are queued in all; None: that was not counted."""
