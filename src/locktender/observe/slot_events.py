"""Events of slots, derived from the history of a run: waiting, claimed, renewed, released, expired (E6).

No waiter has a row of its own for its waits. A task that joins a blocked lane has the lane and its gate in its
event *requested*; when the lane waits at another gate, one event says so for all its waiters, of whatever run. So
each wait begins with an event of its own here, at the instant it began.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from locktender.base.events import NO_RUN, Event, unpack
from locktender.base.model import WorkerLife
from locktender.base.states import HOLDING, TaskState
from locktender.store.protocol import EventFilter, Store

SlotChange = Literal["waiting", "claimed", "renewed", "released", "expired"]
MAX_EACH: Final = 1_000
"""Waiters of one run that are named at one change of their lane."""
PAGE: Final = 10_000


async def lane_changes(store: Store, history: Sequence[Event]) -> list[Event]:
    """Events of no run that say at which gates the lanes of these tasks came to wait."""
    joined = [event for event in history if "lane" in event.data and event.subject == "task"]
    if not joined:
        return []
    lanes = {event.data["lane"] for event in joined}
    # The lane may have been blocked with the commit that requested the first of them.
    after, last = joined[0].seq, history[-1].seq
    found: list[Event] = []
    while rows := await store.events(EventFilter(run=NO_RUN, after=after, limit=PAGE)):
        for row in rows:
            found += [
                event
                for event in unpack(row)
                if event.subject == "wait" and event.data.get("lane") in lanes
            ]
        after = rows[-1].seq
        if len(rows) < PAGE or after > last:
            break
    return found


def slot_events(
    history: Sequence[Event], changes: Iterable[Event]
) -> Iterator[tuple[Event, SlotChange | None]]:
    """The history, with the waits of all its tasks, and what each event does with slots."""
    return _Derivation(history, changes).events()


class _Derivation:
    def __init__(self, history: Sequence[Event], changes: Iterable[Event]) -> None:
        self._all = sorted((*history, *changes), key=lambda event: event.seq)
        self._numbers: dict[tuple[str, int], dict[str, Any]] = {
            (event.data["lane"], event.at): event.data
            for event in self._all
            if event.subject == "wait" and "lane" in event.data
        }
        self._waiting: dict[str, dict[int, Event]] = {}
        """Lane → tasks of this run that stand in it, with the events that requested them."""
        self._lanes: dict[int, str] = {}
        self._told: dict[int, str] = {}
        self._pools: dict[int, dict[str, int]] = {}
        """Slots that are held, by token."""

    def events(self) -> Iterator[tuple[Event, SlotChange | None]]:
        for event in self._all:
            if event.subject == "wait":
                yield from self._lane_changed(event)
            elif event.subject == "task":
                yield from self._task(event)
            else:
                yield event, None

    def _lane_changed(self, event: Event) -> Iterator[tuple[Event, SlotChange | None]]:
        waiting = self._waiting.get(event.data.get("lane", ""), {})
        for task, asked in list(waiting.items())[:MAX_EACH]:
            if self._told.get(task) != event.after:
                self._told[task] = event.after
                yield msgspec.structs.replace(event, run=asked.run, task=task), "waiting"
        if event.run and self._told.get(event.task) != event.after:
            self._told[event.task] = event.after
            yield event, "waiting"

    def _task(self, event: Event) -> Iterator[tuple[Event, SlotChange | None]]:
        if event.after == TaskState.REQUESTED:
            yield from self._requested(event)
            return
        self._leave(event.task)
        if event.after == TaskState.SCHEDULED:
            pools = event.data.get("pools")
            if not pools:
                yield event, None
                return
            self._pools[event.token] = pools
            waited = sum(event.data.get("waits", {}).values())
            yield _with(event, {"waited_us": waited}), "claimed"
        elif event.after in HOLDING:
            yield event, None
        else:
            yield self._ended(event)

    def _requested(self, event: Event) -> Iterator[tuple[Event, SlotChange | None]]:
        lane, gate = event.data.get("lane"), event.data.get("gate")
        # An offer that was taken back: its slots are free.
        yield self._ended(event) if event.before in HOLDING else (event, None)
        if lane is None or gate is None:
            if event.before in HOLDING and (old := self._lanes.get(event.task)) is not None:
                self._waiting.setdefault(old, {})[event.task] = event
            return
        self._lanes[event.task] = lane
        self._waiting.setdefault(lane, {})[event.task] = event
        self._told[event.task] = gate
        data = self._numbers.get((lane, event.at)) or {"gate": gate, "lane": lane}
        wait = msgspec.structs.replace(event, subject="wait", before="", after=gate, data=data)
        yield wait, "waiting"

    def _ended(self, event: Event) -> tuple[Event, SlotChange | None]:
        pools = self._pools.pop(event.token, None)
        if pools is None:
            return event, None
        expired = event.after == TaskState.ABANDONED
        return _with(event, {"released": pools}), "expired" if expired else "released"

    def _leave(self, task: int) -> None:
        if (lane := self._lanes.get(task)) is not None:
            self._waiting.get(lane, {}).pop(task, None)
        self._told.pop(task, None)


def renewals(
    found: Iterable[tuple[Event, SlotChange | None]], lives: Iterable[WorkerLife]
) -> Iterator[tuple[Event, SlotChange]]:
    """Of slots that are held now: when the lease of their worker was renewed last, and until when it holds."""
    held: dict[int, Event] = {}
    workers: dict[int, str] = {}
    for event, change in found:
        if change == "claimed":
            workers[event.token] = event.data["worker"]
        elif event.subject == "task" and event.after == TaskState.RUNNING:
            held[event.token] = event
        elif change in ("released", "expired"):
            held.pop(event.token, None)
    by_worker: Mapping[str, WorkerLife] = {life.worker: life for life in lives}
    for token, event in held.items():
        life = by_worker.get(workers.get(token, ""))
        if life is not None and life.lease_until > event.at + life.lease_us:
            # No change of the task: who counts its attempts must not count this.
            renewed = msgspec.structs.replace(
                event,
                subject="slot",
                at=life.lease_until - life.lease_us,
                actor=f"worker:{life.worker}",
                before="",
                after="renewed",
                data={"worker": life.worker, "until_us": life.lease_until},
            )
            yield renewed, "renewed"


def _with(event: Event, more: dict[str, Any]) -> Event:
    return msgspec.structs.replace(event, data={**event.data, **more})
