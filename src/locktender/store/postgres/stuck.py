"""Connections of ours whose client freezes in the middle of a statement.

A process that is stopped, or cut off from the network, while it copies rows in
or is sent a long answer leaves its transaction open, with its locks. No setting
of the server ends it, because the statement has not ended. So the leader looks
once a second, and a process that takes over looks before it does.

A statement that only takes long is left alone: one is ended if its transaction
began long ago and it is found at the same place twice, waiting for its client,
with a while between. The place of a copy is how much of it has come in.
"""

from __future__ import annotations

import asyncio
import logging

from locktender.base.clock import SECOND
from locktender.store.postgres.session import PostgresSession

log: logging.Logger = logging.getLogger(__name__)
STUCK_AFTER_US = 5 * SECOND
"""Since its transaction began."""
BETWEEN_US = SECOND
"""From the look that found it at its place for the first time."""
_LOOKS, _PAUSE_SECONDS = 5, 1.1


async def end_stuck(tx: PostgresSession) -> bool:
    """Ends those that are stuck; whether any others may turn out to be."""
    before, tx.known.waiting = tx.known.waiting, {}
    doomed: dict[int, str] = {}
    for pid, place, age_us, said in await tx.all("stuck_list", f"{tx.options.quoted_schema}."):
        first = tx.known.waiting[pid, place] = before.get((pid, place), int(age_us))
        if age_us >= STUCK_AFTER_US and age_us - first >= BETWEEN_US:
            doomed[pid] = place
            log.warning(
                "ended connection %s, whose client was frozen for %.1f s in: %s",
                pid,
                age_us / SECOND,
                " ".join(said.split()),
            )
    if doomed:
        await tx.run("stuck_end", list(doomed), list(doomed.values()))
    return len(tx.known.waiting) > len(doomed)


async def clear_the_way(tx: PostgresSession) -> None:
    """For who must not wait behind one that is stuck: looks until none may be."""
    for _ in range(_LOOKS):
        if not await end_stuck(tx):
            return
        await asyncio.sleep(_PAUSE_SECONDS)
