"""Lists of what has certain tags, read in parts: no statement examines more than `PART` rows.

`most` bounds what one call examines. The place it returns is where the next call goes on; None: there is no more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

import msgspec

from locktender.base.events import EventRow
from locktender.base.model import RunRow
from locktender.client.core import Core
from locktender.client.outbox_rows import outbox_runs
from locktender.store.protocol import (
    EventWaiter,
    Examine,
    Examined,
    QueueEntry,
    QueuePlace,
    RunFilter,
    WaitPlace,
)

PART = 10_000
FIRST_PART = 1_000
"""Where many rows match, the first part is enough."""
MAX_EXAMINED = 100_000
"""For one request: a second of a busy store."""
T = TypeVar("T")
P = TypeVar("P")


async def _parts(
    verb: Callable[[P | None, int, int], Awaitable[Examined[T, P]]],
    place: P | None,
    limit: int,
    most: int | None,
) -> Examined[T, P]:
    found: list[T] = []
    examined, size = 0, FIRST_PART
    while most is None or examined < most:
        part = await verb(place, limit - len(found), size)
        found += part.rows
        place = part.place
        examined += size
        size = min(4 * size, PART)
        if place is None or len(found) >= limit:
            break
    return Examined(found, place)


async def runs_in_parts(
    core: Core, where: RunFilter, most: int | None = None
) -> Examined[RunRow, int]:
    """Runs that match, newest first, behind submissions that became no run."""
    apart = await outbox_runs(core.store, where)
    if not where.tags and where.flow is None:
        # Nearly every row matches.
        found = await core.store.runs(where)
        place = found[-1].seq if len(found) >= where.limit else None
    else:
        found, place = await _parts(
            lambda before, left, size: core.store.examine_runs(
                msgspec.structs.replace(where, before=before, limit=left), size
            ),
            where.before,
            where.limit,
            most,
        )
    rows = [*apart, *found]
    if len(rows) > where.limit:
        place = rows[where.limit - 1].seq
    return Examined(rows[: where.limit], place)


async def beginning_in_parts(
    core: Core, prefix: str, tags: Mapping[str, str], limit: int, most: int
) -> Examined[RunRow, str]:
    """Runs whose id begins so, by id."""
    return await _parts(
        lambda after, left, size: core.store.examine_ids(Examine(tags, left, size), prefix, after),
        None,
        limit,
        most,
    )


async def queue_in_parts(
    core: Core, tags: Mapping[str, str], limit: int, after: Iterable[int] | None, most: int
) -> Examined[QueueEntry, QueuePlace]:
    """Queued runs with these tags, in the order in which they start.

    With a fair key the order is known of the first `MAX_HEADS_READ` only.
    """
    from locktender.observe.rebuilt import MAX_HEADS_READ, queue_in_order

    store, place = core.store, None if after is None else QueuePlace(*after)
    limits, _ = await store.limits()
    if not tags or limits.fair is not None:
        read = limit if not tags else max(limit, MAX_HEADS_READ)
        entries = await queue_in_order(store, read, place)
        own = [each for each in entries if tags.items() <= each.run.tags.items()]
        if len(entries) < read and len(own) <= limit:
            return Examined(own, None)
        last = own[limit - 1] if len(own) >= limit else entries[-1]
        return Examined(own[:limit], QueuePlace(last.run.seq, last.position))
    return await _parts(
        lambda place, left, size: core.store.examine_queue(Examine(tags, left, size), place),
        place,
        limit,
        most,
    )


async def waits_in_parts(
    core: Core, tags: Mapping[str, str], limit: int, after: Iterable[int] | None, most: int
) -> Examined[EventWaiter, WaitPlace]:
    """Who waits for which event, of runs with these tags; the first that times out first."""
    return await _parts(
        lambda place, left, size: core.store.examine_waits(Examine(tags, left, size), place),
        None if after is None else WaitPlace(*after),
        limit,
        most,
    )


async def events_in_parts(
    core: Core, tags: Mapping[str, str], limit: int, before: int | None, most: int
) -> Examined[EventRow, int]:
    """The last rows of the history, the last first; with tags those of runs that have them."""
    return await _parts(
        lambda place, left, size: core.store.examine_events(Examine(tags, left, size), place),
        before,
        limit,
        most,
    )
