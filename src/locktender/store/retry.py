"""Verbs that are repeated while the store is out of reach.

An answer that is lost on its way leaves open whether the verb was carried out.
Nobody but us can tell: the ids it is idempotent on are made here, and a caller
who submits again makes another run. So we repeat it, with the same ids, for as
long as a database takes to restart or to fail over; then the caller is told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from locktender.base.clock import SECOND, Clock
from locktender.base.errors import SchemaTooNew, StoreError

log: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")

AWAY_SECONDS = 15.0
"""From the first failure on; one try of its own may take longer, and is repeated all the same."""
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0


async def repeated(
    verb: Callable[[], Awaitable[T]],
    what: str,
    clock: Clock,
    check: Callable[[], None],
    away_seconds: float = AWAY_SECONDS,
) -> T:
    """The verb's answer. `verb` means the same each time it is called; `what` is its name in the log.

    `check` raises when the caller may no longer use the store. After `away_seconds` of failures the last
    one is raised.
    """
    pause = FIRST_PAUSE_SECONDS
    give_up_at: float | None = None
    while True:
        try:
            return await verb()
        except SchemaTooNew:
            raise
        except StoreError as error:
            check()
            now = clock.monotonic()
            if give_up_at is None:
                give_up_at = now + away_seconds * SECOND
            if now >= give_up_at:
                raise
            log.warning("%s is repeated: %s", what, error)
        await asyncio.sleep(pause)
        check()
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
