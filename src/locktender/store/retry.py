"""Retrying a verb while the store is away.

A lost answer leaves open whether the verb was carried out. Verbs may be repeated
with the same ids, so the caller that made those ids repeats the verb: a user who
submits again would make another run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from locktender.base.clock import SECOND, Clock
from locktender.base.errors import DataRefused, SchemaTooNew, StoreError

log: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")

AWAY_SECONDS = 15.0
"""How long a client retries, from the first failure on: a database restarts or fails over in that time."""
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0
SAID_EVERY = 30
"""How many tries with the same error are one line of the log."""


async def retry_while_away(
    verb: Callable[[], Awaitable[T]],
    what: str,
    may_retry: Callable[[StoreError], bool],
    check: Callable[[], None] | None = None,
    *,
    first_pause_seconds: float = FIRST_PAUSE_SECONDS,
    longest_pause_seconds: float = LONGEST_PAUSE_SECONDS,
) -> T:
    """The verb's answer. Retries after a `StoreError` while `may_retry` allows it, with doubling pauses.

    `verb` means the same each time it is called; `what` names it in the log.
    `may_retry` is asked before each pause and `check` is called after it; both may raise errors of their own.
    """
    pause = first_pause_seconds
    said, tries = "", 0
    while True:
        try:
            return await verb()
        except SchemaTooNew:
            raise
        except StoreError as error:
            if not may_retry(error):
                raise
            tries += 1
            if str(error) != said or tries % SAID_EVERY == 0:
                said = str(error)
                log.warning("%s failed, retrying: %s", what, error)
        await asyncio.sleep(pause)
        pause = min(2 * pause, longest_pause_seconds)
        if check is not None:
            check()


def repeated(
    verb: Callable[[], Awaitable[T]],
    what: str,
    clock: Clock,
    check: Callable[[], None],
    away_seconds: float | None = None,
) -> Coroutine[Any, Any, T]:
    """`retry_while_away` for a client: gives up after `away_seconds` (`AWAY_SECONDS`).

    `check` raises when the client is closed.
    """
    # A plain function: a coroutine here would cost time in every submission and every result.
    seconds = AWAY_SECONDS if away_seconds is None else away_seconds
    return retry_while_away(verb, what, _Patience(clock, check, seconds), check)


class _Patience:
    """Allows retries for some time after the first failure."""

    __slots__ = ("_check", "_clock", "_give_up_at", "_seconds")

    def __init__(self, clock: Clock, check: Callable[[], None], seconds: float) -> None:
        self._clock = clock
        self._check = check
        self._seconds = seconds
        self._give_up_at: float | None = None

    def __call__(self, error: StoreError) -> bool:
        self._check()
        if isinstance(error, DataRefused):
            return False
        now = self._clock.monotonic()
        if self._give_up_at is None:
            # Not rounded: the leader's commit is repeated for ever, with an infinite time.
            self._give_up_at = now + self._seconds * SECOND
        return now < self._give_up_at
