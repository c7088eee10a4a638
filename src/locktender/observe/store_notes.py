"""What `why` says of the store and its engine, beside the gates. It is read from rows, without the rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

import msgspec

from locktender.base.clock import SECOND
from locktender.base.durations import spoken
from locktender.base.events import NO_RUN, Event, unpack
from locktender.base.text import WORKER_GATE, counted
from locktender.kernel.reasons import Reason
from locktender.store.protocol import EventFilter, Store

EVENTS_READ = 200
STUCK_KEPT_US = 10 * SECOND
"""For how long after its next try a failed term is named: that try may last."""


async def troubles(store: Store) -> tuple[str, ...]:
    """What concerns the whole store: terms that fail, rules and workers that cannot be read."""
    now = await store.now()
    _, rules = await store.limits()
    found = [row.unreadable for row in rules if row.unreadable]
    workers = await store.workers()
    found += [f"worker {row.id} is left out: {row.unreadable}" for row in workers if row.unreadable]
    for row in reversed(await store.events(EventFilter(limit=EVENTS_READ, newest=True))):
        with suppress(msgspec.MsgspecError, UnicodeError, TypeError):
            if row.run == NO_RUN and b'"term"' in row.body:
                found += [text for event in unpack(row) if (text := _failed_term(event, now))]
            if row.cycle > 0:
                break  # the last thing that a leader wrote: no term has failed since
    return tuple(found)


def _failed_term(event: Event, now: int) -> str:
    again_at = event.data.get("again_at", 0)
    if event.subject != "term" or now >= again_at + STUCK_KEPT_US:
        return ""
    return f"{event.data.get('reason')}; the next try comes in {spoken(max(0, again_at - now))}"


async def provisioner_words(store: Store) -> str | None:
    """As the leader stored them last; None: there is no leader, or it starts no workers."""
    if await store.leader() is None:
        return None
    found = await store.provisioned()
    return None if found.status is None else found.status.words(found.now)


async def provisioner_note(store: Store, waiting: Iterable[Sequence[Reason]]) -> str:
    """Empty unless a waiting task lacks only a worker: for others no worker is started."""
    if not any(all(reason.gate == WORKER_GATE for reason in each) for each in waiting if each):
        return ""
    if await store.leader() is None:
        return "No process leads: start an engine on this store."
    words = await provisioner_words(store)
    if words is None:
        return "No provisioner: workers are started by hand."
    return f"Provisioner: {words}."


async def nobody_leads(store: Store) -> str:
    """Then nothing starts, whatever gates say."""
    if await store.leader() is not None:
        return ""
    return "No process leads, and nothing starts: start an engine on this store."


async def turn_note(store: Store) -> str:
    """No gate blocks it: it starts with the leader's next cycle, if there is a leader."""
    return await nobody_leads(store) or "It starts with the leader's next cycle."


async def engine_note(store: Store) -> str:
    """No gate blocks it and it has not started within two cycles: what of the engine is in the way."""
    leader, now = await store.leader(), await store.now()
    if leader is None:
        return "Its gates are open, but no process leads: start an engine on this store."
    held_up = await store.held_up()
    last = await store.events(EventFilter(limit=EVENTS_READ, newest=True))
    at = next((row.at for row in reversed(last) if row.cycle > 0), None)
    since = "" if at is None else f" for {spoken(max(0, now - at))}"
    text = f"Its gates are open. The engine is in the way: leader {leader} has written no decision{since}"
    if held_up.sessions:
        text += (
            f"; {counted(len(held_up.sessions), 'session')} of the database holds the history up"
        )
    return text + "."
