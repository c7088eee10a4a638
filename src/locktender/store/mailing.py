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
    _, state, waiting, repeated, stands = target
    if repeated:
        return EventSent("repeated")
    if state in TERMINAL_RUNS:
        return EventSent("ended", state)
    if not stands:
        return EventSent("over", state)
    return EventSent("full" if waiting >= MAX_MAIL else "sent")


def sent_event(event: SendEvent, n: int) -> Change:
    """What the leader, and the checker, learn of it."""
    data = {"n": n, "name": event.name, "id": event.id}
    return Change("mail", event.task, "", "sent", 0, data)
