"""The order of events, and where a follower of them stands.

An event's number is its transaction's id and its place in the transaction. Ids
follow cause and effect, but transactions do not commit in their order: a
transaction that began early may become visible late. So a follower does not
remember a number but a *snapshot* of the server: which transactions it saw. It
reads the events of those that were in progress then, or began later, and are
visible now, and the snapshot it reads them in is where it stands next. Nothing
is missed, nothing is read twice, and no transaction in flight, of whichever
program, delays the others.

A page that was cut off keeps both snapshots, and how far it came: what becomes
visible meanwhile belongs to the next page.

A snapshot means something on one server only, and for one table. A cursor
therefore names both (`history_position`). Where another server answers (it
took over, maybe without the last transactions) or an older copy of the history
was put in its place, the cursor is refused, and the follower reads everything
again.

A dump brings events along, but not the server's count of transactions: new
events would have smaller numbers than the old ones. So the process that opens
the store, or stands for election, compares the two and raises the offset that
is added to the ids.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from locktender.base.errors import HistoryReplaced
from locktender.base.events import EventRow
from locktender.base.limits import Limits
from locktender.store.postgres.session import PostgresSession
from locktender.store.protocol import LATEST, Cursor, Follow, Followed

log: logging.Logger = logging.getLogger(__name__)

PLACE_BITS = 20
"""Of an event's number, for its place in its transaction."""
NO_END = 2**63 - 1
_SEPARATOR = "|"


def _numbers(snapshot: str, offset: int) -> tuple[int, list[int]]:
    """The number from which on a snapshot sees no event, and the first numbers of what it does not see below."""
    if not snapshot:
        return 0, []
    _, end, in_progress = snapshot.split(":")
    open_ids = in_progress.split(",") if in_progress else []
    return (int(end) + offset) << PLACE_BITS, [
        (int(xid) + offset) << PLACE_BITS for xid in open_ids
    ]


class Position(msgspec.Struct, frozen=True):
    """A cursor, as this store reads it."""

    server: str = ""
    """Which server and which table; '': from the beginning of whichever history there is."""
    seen: str = ""
    """The snapshot up to which everything was read."""
    until: str = ""
    """The snapshot of a page that was cut off."""
    after: int = 0
    """The last event of that page."""

    @classmethod
    def of(cls, cursor: Cursor) -> Position:
        if not cursor:
            return cls()
        server, seen, until, after = cursor.split(_SEPARATOR)
        return cls(server, seen, until, int(after))

    def params(self) -> tuple[list[int], int, int, int, list[int]]:
        """What the statement `events_after` asks for."""
        offset = int(self.server.rpartition(" ")[2] or 0)
        first, in_progress = _numbers(self.seen, offset)
        end, hidden = _numbers(self.until, offset) if self.until else (NO_END, [])
        return in_progress, first, self.after, end, hidden

    def next(self, server: str, snapshot: str, events: list[EventRow], limit: int) -> Cursor:
        """The cursor behind `events`, which were read in `snapshot`."""
        until = self.until or snapshot
        seen, rest = until, ("", 0)
        if len(events) == limit:
            seen, rest = self.seen, (until, events[-1].seq)
        return Cursor(_SEPARATOR.join([server, seen, rest[0], str(rest[1])]))

    def check(self, tx: PostgresSession, server: str, snapshot: str) -> None:
        """Refuses to go on where the history is another one, or has gone back."""
        if not self.server:
            return
        ahead = _numbers(self.until or self.seen, 0)[0] > _numbers(snapshot, 0)[0]
        if self.server == server and not ahead:
            return
        # What was remembered of the other history means nothing here.
        tx.known.limits = -1, Limits()
        raise HistoryReplaced(
            f"the history of {tx.options.shown} is not the one that was followed: the server was"
            " restarted or replaced, or a copy was restored.",
            hint="Read everything again.",
        )


def params_of(position: Position, actor: str, run: int | None, limit: int) -> tuple[Any, ...]:
    return (*position.params(), actor, run, limit)


async def follow_on(tx: PostgresSession, follow: Follow) -> Followed:
    """No events: there are no more at this moment."""
    if follow.after == LATEST:
        server, snapshot = await tx.row("history_position")
        return Followed(Position().next(server, snapshot, [], 1), [], [])
    position = Position.of(follow.after)
    rows, [[server, snapshot]] = await tx.several(
        ("events_found", ()),
        ("history_position", ()),
        shared=("events_after", params_of(position, "", follow.run, follow.limit)),
    )
    position.check(tx, server, snapshot)
    events = [EventRow._make(row) for row in rows]
    found = Followed(
        position.next(server, snapshot, events, follow.limit),
        events,
        # As if the page had been cut off there.
        [position.next(server, snapshot, [each], 1) for each in events],
    )
    if not events and position.until:
        # The page that was cut off had ended: what became visible since comes now.
        return await follow_on(tx, msgspec.structs.replace(follow, after=found.cursor))
    return found


async def keep_order(tx: PostgresSession) -> None:
    """Raises the offset if the next event would have a smaller number than the last. Nearly always only a read."""
    if not (await tx.row("numbers_taken"))[0]:
        return
    async with tx.transaction("begin_alone"):
        # A process that numbers its events in a statement of its own is alone too; all others wait here,
        # and read the offset afterwards.
        await tx.run("event_lock")
        if (await tx.row("numbers_taken"))[0]:
            [offset] = await tx.row("numbers_raise")
            log.warning(
                "the history of %s comes from another server: events are now numbered by the"
                " transaction's id + %s",
                tx.options.shown,
                offset,
            )
