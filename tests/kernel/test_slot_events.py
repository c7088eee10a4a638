"""Events of slots (E6): claimed, renewed, released, expired, derived from the history of a run."""

from __future__ import annotations

from typing import Any

import pytest

from locktender.base.events import Event
from locktender.base.model import WorkerLife
from locktender.observe.slot_events import renewals, slot_events

TASK, TOKEN = 1 << 20, 7


def told(*changes: tuple[str, str, dict[str, Any]]) -> list[Event]:
    return [
        Event(seq, seq * 10, 1, 1, "leader:a", 1, "task", TASK, before, after, TOKEN, data)
        for seq, (before, after, data) in enumerate(changes, 1)
    ]


CLAIMED = ("requested", "scheduled", {"worker": "w", "pools": {"db": 2}, "waits": {"pool:db": 300}})
RUNNING = ("scheduled", "running", {"worker": "w"})


def test_a_claim_says_how_long_it_waited():
    [(event, change)] = slot_events(told(CLAIMED), ())
    assert (change, event.data["waited_us"]) == ("claimed", 300)


@pytest.mark.parametrize(
    ("end", "change"), [("completed", "released"), ("failed", "released"), ("abandoned", "expired")]
)
def test_an_end_gives_back_the_slots(end: str, change: str):
    *_, (event, found) = slot_events(told(CLAIMED, RUNNING, ("running", end, {})), ())
    assert (found, event.after, event.data["released"]) == (change, end, {"db": 2})


def test_the_last_renewal_of_slots_ends_no_attempt():
    found = list(slot_events(told(CLAIMED, RUNNING), ()))
    [(event, change)] = renewals(found, [WorkerLife("w", 1_000, 100, "held")])
    assert (change, event.subject, event.before, event.after) == ("renewed", "slot", "", "renewed")
    assert (event.at, event.data) == (900, {"worker": "w", "until_us": 1_000})
    # Not before the first beat, nor when it holds nothing any more.
    assert list(renewals(found, [WorkerLife("w", 110, 100, "held")])) == []
    over = list(slot_events(told(CLAIMED, RUNNING, ("running", "completed", {})), ()))
    assert list(renewals(over, [WorkerLife("w", 1_000, 100, "held")])) == []
