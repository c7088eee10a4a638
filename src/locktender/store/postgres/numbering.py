"""Events stay in their order on another server.

Their numbers are made of transactions' ids. A dump brings the events along but
not the server's count of transactions: new ones would stand before the old
ones, where nobody looks any more. So whoever opens the store, or stands for
election, compares, and raises the offset that is added to the ids.
"""

from __future__ import annotations

import logging

from locktender.store.postgres.session import PostgresSession

log: logging.Logger = logging.getLogger(__name__)


async def keep_order(tx: PostgresSession) -> None:
    """Raises the offset where the next event would stand before the last one. Nearly always a plain read."""
    if not (await tx.row("numbers_taken"))[0]:
        return
    async with tx.transaction("begin_alone"):
        # Whoever numbers its events in a statement of its own is alone, too; all others wait here, and
        # read the offset when we are done.
        await tx.run("event_lock")
        if (await tx.row("numbers_taken"))[0]:
            [offset] = await tx.row("numbers_raise")
            log.warning(
                "the history of %s comes from another server: events are now numbered by the"
                " transaction's id + %s",
                tx.options.shown,
                offset,
            )
