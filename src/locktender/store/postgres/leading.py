"""Who leads: the one row with its lease and its term."""

from __future__ import annotations

import logging

from locktender.base.errors import StoreBusy
from locktender.base.events import NOBODY, Change, pack
from locktender.store.postgres.compose import Parts
from locktender.store.postgres.numbering import keep_order
from locktender.store.postgres.session import Session
from locktender.store.postgres.stuck import clear_the_way
from locktender.store.protocol import Elect, Leadership

log: logging.Logger = logging.getLogger(__name__)
_TRIES = 20


async def renew(tx: Session, elect: Elect, backend: int) -> Leadership:
    """`backend`: the connection that commits go by, whichever this one is."""
    row = await tx.one("leader_renew", elect.term, elect.owner, elect.lease_us, backend)
    if row is not None:
        return Leadership(*row)
    _, owner, expires_at, _, _, now, _ = await tx.row("leader")
    return Leadership(0, owner, expires_at, now)


async def elect(tx: Session, elect: Elect) -> Leadership:
    term, owner, expires_at, _, _, now, _ = await tx.row("leader")
    # An owner that stands again has lost its memory: it needs a new term, because tokens are
    # counted within one. While another's lease lives this is a plain read.
    if owner != elect.owner and expires_at > now:
        return Leadership(0, owner, expires_at, now)
    await clear_the_way(tx)
    await keep_order(tx)
    if term and expires_at and not tx.options.pooled and owner != elect.owner:
        # It may hang in a transaction and hold the row: frozen, or cut off from the network.
        for [ended] in await tx.all("leader_end_backend", term):
            log.warning("ended the connection of %s, which led in term %s: %s", owner, term, ended)
    for _ in range(_TRIES):
        taken = await _take(tx, elect)
        if taken is not None:
            return taken
    raise StoreBusy("the leader's row is never free.", hint="Stand for election again.")


async def _take(tx: Session, elect: Elect) -> Leadership | None:
    """None: to be tried again."""
    async with tx.transaction():
        # Waits for the old leader's commit in flight; from here on its fence is shut.
        term, owner, expires_at, now = await tx.row("leader_lock")
        if owner != elect.owner and expires_at > now:
            return Leadership(0, owner, expires_at, now)
        # Our transaction's number was given before that wait: an event of the old term may have a
        # higher one, and would stand behind the end of its term.
        [late] = await tx.row("later_events", [], term)
        if late and term:
            return None
        until = now + elect.lease_us
        await tx.run("leader_take", term + 1, elect.owner, until, tx.options.pooled)
        change = Change("leader", 0, owner, elect.owner, 0, {"lease_us": elect.lease_us})
        parts = Parts()
        parts.add("now", alias="clock")
        parts.add("open_fence", alias="fence")
        parts.add("told_given", [NOBODY], [pack([change])], alias="told")
        parts.add("event_add", now, term + 1, 0, f"leader:{elect.owner}")
        parts.add("wake", *tx.hint("leader"))
        await tx.compose(parts)
    return Leadership(term + 1, elect.owner, until, now)
