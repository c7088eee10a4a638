"""The leader's lease and term, which are one row, and the workers a provisioner was asked for."""

from __future__ import annotations

import logging

from locktender.base.errors import StoreBusy
from locktender.base.events import NO_RUN, Change, pack
from locktender.base.ids import MAX_TERM
from locktender.store.decode import asked_workers, encode, read_provision_status
from locktender.store.postgres.commits import not_leader
from locktender.store.postgres.composed_sql import Parts, columns
from locktender.store.postgres.event_order import keep_order
from locktender.store.postgres.session import PostgresSession
from locktender.store.postgres.stuck import clear_the_way
from locktender.store.protocol import Elect, Leadership, Provision, ProvisionState

log: logging.Logger = logging.getLogger(__name__)
_TRIES = 20
TERMS_SKIPPED = 100
"""By an election where the history is another one than that of the last: it may be an older copy, and terms
that neither it nor this process knows of may have given out tokens."""


async def renew(tx: PostgresSession, elect: Elect, backend: int) -> Leadership:
    """`backend`: the connection that writes the leader's commits."""
    row = await tx.one("leader_renew", elect.term, elect.owner, elect.lease_us, backend)
    if row is not None:
        return Leadership(*row)
    _, owner, expires_at, _, _, now, *_ = await tx.row("leader")
    return Leadership(0, owner, expires_at, now)


async def elect(tx: PostgresSession, elect: Elect) -> Leadership:
    term, owner, expires_at, _, _, now, *_ = await tx.row("leader")
    tx.known.highest_term = max(tx.known.highest_term, await _readable_term(tx, term))
    # An owner that stands again has lost its memory: it needs a new term, because tokens are
    # counted within one. While another's lease lives this is a plain read.
    if owner != elect.owner and expires_at > now and expires_at != elect.passed:
        return Leadership(0, owner, expires_at, now)
    await clear_the_way(tx)
    await keep_order(tx)
    if term and expires_at and not tx.options.pooled and owner != elect.owner:
        # The old leader may be frozen or cut off in a transaction that locks the row.
        for [ended] in await tx.all("leader_end_backend", term):
            log.warning(
                "terminated the connection of %s, the leader of term %s: %s", owner, term, ended
            )
    for _ in range(_TRIES):
        taken = await _acquire(tx, elect)
        if taken is not None:
            return taken
    raise StoreBusy("the leader row stayed locked.", hint="Stand for election again.")


async def _acquire(tx: PostgresSession, elect: Elect) -> Leadership | None:
    """None: try again."""
    async with tx.transaction():
        # Waits for the old leader's commit in flight; its later commits are refused.
        term, owner, expires_at, now, moved = await tx.row("leader_lock")
        if owner != elect.owner and expires_at > now and expires_at != elect.passed:
            return Leadership(0, owner, expires_at, now)
        # This transaction got its id before that wait: an event of the old term may have a higher
        # number and would appear after the end of its term.
        [late] = await tx.row("later_events", [], term)
        if late and term:
            return None
        until = now + elect.lease_us
        skipped = TERMS_SKIPPED if moved and term else 0
        if skipped:
            log.warning("the server was restarted or replaced: %s terms are skipped", skipped)
        term = await _readable_term(tx, term)
        term = tx.known.highest_term = max(term, tx.known.highest_term) + 1 + skipped
        # Versions that other processes remember may be of the lost part of the history, too.
        await tx.run("leader_take", term, elect.owner, until, tx.options.pooled, skipped > 0)
        change = Change("leader", 0, owner, elect.owner, 0, {"lease_us": elect.lease_us})
        parts = Parts()
        parts.add("now", alias="clock")
        parts.add("open_fence", alias="fence")
        parts.add("events_given", [NO_RUN], [pack([change])], alias="told")
        parts.add("event_add", now, term, 0, f"leader:{elect.owner}")
        parts.add("wake", *tx.hint("leader"))
        await tx.compose(parts)
    return Leadership(term, elect.owner, until, now)


async def _readable_term(tx: PostgresSession, term: int) -> int:
    """The last term; where the row says none that there can be, the history says which it was."""
    if 0 <= term < MAX_TERM:
        return term
    log.error("failed to read the last term: %r; using the last term of the history", term)
    [found] = await tx.row("last_term", MAX_TERM)
    return found


async def provision(tx: PostgresSession, provision: Provision) -> None:
    parts = Parts()
    parts.add("now", alias="clock")
    parts.add("term_fence", provision.term, alias="fence")
    if provision.asked:
        rows = columns(sorted(provision.asked.items()), 2)
        parts.add("asked_add", *rows, provision.start_timeout_us)
    if provision.gone:
        parts.add("asked_remove", sorted(provision.gone))
    if provision.status is not None:
        parts.add("provisioner_set_status", provision.term, encode(provision.status))
    parts.add("fence_answer")
    if not (await tx.compose(parts))[0][0]:
        raise not_leader(provision.term, await tx.row("leader"))


async def forget(tx: PostgresSession, names: list[str]) -> None:
    parts = Parts()
    parts.add("open_fence", alias="fence")
    parts.add("asked_remove", sorted(names))
    parts.add("fence_answer")
    await tx.compose(parts)


async def provisioned(tx: PostgresSession) -> ProvisionState:
    asked, said, [[now]] = await tx.several(
        ("asked_list", ()), ("provisioner_status", ()), ("now", ())
    )
    return ProvisionState(
        now, asked_workers(asked), read_provision_status(said[0][0]) if said else None
    )
