"""Events that clients send: what both stores decide about them, and what the history says."""

from __future__ import annotations

from locktender.base.events import Change
from locktender.base.states import TERMINAL_RUNS
from locktender.store.decode import Row
from locktender.store.protocol import MAX_MAIL, EventSent, SendEvent


def judge_send(target: Row | None) -> EventSent:
    """A row of `mail_target`; None: there is no such run."""
    if target is None:
        return EventSent("unknown")
    _, state, waiting, repeated = target
    if repeated:
        return EventSent("repeated")
    if state in TERMINAL_RUNS:
        return EventSent("ended", state)
    return EventSent("full" if waiting >= MAX_MAIL else "sent")


def sent_event(event: SendEvent, n: int) -> Change:
    """What the leader, and the checker, learn of it."""
    return Change("mail", 0, "", "sent", 0, {"n": n, "name": event.name, "id": event.id})
