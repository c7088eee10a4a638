"""The history of all runs as it grows: what `/api/v1/events` follows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from locktender.base.errors import InvalidInput
from locktender.base.events import Event, unpack
from locktender.client.core import Core
from locktender.client.views import instant
from locktender.store.protocol import NOW, Cursor, Follow, RunLabel

PAGE = 500
MAX_LABELS = 20_000


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One change of state, of any run or of none."""

    seq: int
    at: datetime
    actor: str
    subject: str
    run: str | None
    """The id of the run; None where the change concerns none, or the run is removed."""
    flow: str | None
    task: int | None
    before: str
    after: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FollowedEvent:
    """An event, and the tags of its run: they say whose it is."""

    event: HistoryEvent
    tags: Mapping[str, str]


class HistoryReader:
    """Reads on from a cursor, a page at a time. A cursor is opaque, and lasts as long as the history."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._labels: OrderedDict[int, RunLabel] = OrderedDict()

    async def now(self) -> str:
        """The cursor behind all that is visible now."""
        return (await self._core.store.follow(Follow(NOW))).cursor

    async def read(self, after: str) -> tuple[str, list[FollowedEvent]]:
        """What became visible since `after`. Raises `HistoryReplaced`, or `InvalidInput` for no cursor."""
        if not after or after == NOW:
            raise _no_cursor(after)
        try:
            found = await self._core.store.follow(Follow(Cursor(after), limit=PAGE))
        except ValueError:
            raise _no_cursor(after) from None
        events = [event for row in found.events for event in unpack(row)]
        await self._learn({event.run for event in events if event.run > 0})
        return found.cursor, [self._shown(event) for event in events]

    async def _learn(self, runs: set[int]) -> None:
        unknown = [run for run in runs if run not in self._labels]
        if unknown:
            self._labels |= await self._core.store.run_labels(unknown)
        while len(self._labels) > max(MAX_LABELS, len(runs)):
            self._labels.popitem(last=False)

    def _shown(self, event: Event) -> FollowedEvent:
        label = self._labels.get(event.run)
        shown = HistoryEvent(
            seq=event.seq,
            at=instant(event.at),
            actor=event.actor,
            subject=event.subject,
            run=None if label is None else label.id,
            flow=None if label is None else label.flow,
            task=event.task or None,
            before=event.before,
            after=event.after,
            data=event.data,
        )
        return FollowedEvent(shown, {} if label is None else label.tags)


def _no_cursor(text: str) -> InvalidInput:
    return InvalidInput(
        "this is no place in the history.",
        field="last-event-id",
        got=text[:80],
        hint="Leave it out to follow from now on.",
    )
