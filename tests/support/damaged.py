"""Histories with faults at random places, for tests of the checker."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec

from locktender.base.events import Event
from locktender.observe.checker import History


def damaged(history: History, chance: random.Random) -> History:
    """With a few events left out, doubled, moved or changed."""
    events: list[Event] = list(history.events)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(events))
        match chance.randrange(4):
            case 0:
                del events[at]
            case 1:
                late = min(len(events), at + chance.randrange(400))
                events.insert(late, events[at])
            case 2:
                event = events.pop(at)
                events.insert(min(len(events), at + chance.randrange(50)), event)
            case _:
                states = ["requested", "running", "completed", "failed", "queued", "succeeded"]
                events[at] = msgspec.structs.replace(events[at], after=chance.choice(states))
    return replace(history, events=events)
