"""A history that is held back: the leader looks again soon, then less and less often, and says so.

A commit in flight may be one that wakes nobody when it is through (a renewed
lease), so whoever found something held back looks again by itself. It is a
matter of a millisecond, unless a transaction of another program stays open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from locktender.base.clock import SECOND

log: logging.Logger = logging.getLogger(__name__)

FIRST_SECONDS, LONGEST_SECONDS = 0.002, 0.5
TOLD_OVER_US = 2 * SECOND
TELL_EVERY_SECONDS = 10.0


class Lag:
    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._again = FIRST_SECONDS
        self._told_at = -TELL_EVERY_SECONDS

    def found(self, held_back_us: int | None) -> None:
        """What a gathering found: since when events wait for a transaction in flight; None: none do."""
        if held_back_us is None:
            self._again = FIRST_SECONDS
            return
        loop = asyncio.get_running_loop()
        loop.call_later(self._again, self._look)
        self._again = min(self._again * 2, LONGEST_SECONDS)
        if held_back_us > TOLD_OVER_US and loop.time() - self._told_at >= TELL_EVERY_SECONDS:
            self._told_at = loop.time()
            log.warning(
                "a transaction in flight has held the history back for %.1f s: runs that arrive and"
                " tasks that end are seen late. Look for it in pg_stat_activity (backend_xid).",
                held_back_us / SECOND,
            )
