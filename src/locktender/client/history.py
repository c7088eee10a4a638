"""Following the history: every change, in order, once; resumed behind any of them.

A follower stands behind a change. The store's cursor stands behind a row, which has all changes of a
run in one commit; so a token of ours is that cursor, the number of changes of the next row that were
read already, and when the last one happened. A token goes to users as one opaque word.

A named reader's token is stored when the changes before it were taken: a reader that was killed gets
the last few again, and misses none. Where the database server was restarted or replaced, its cursors
mean nothing any more: the reader goes on by time, from a minute before its last change, and may see
changes of that minute twice.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from locktender.base import names
from locktender.base.clock import SECOND
from locktender.base.errors import HistoryReplaced, InvalidInput, LocktenderError
from locktender.base.events import HISTORY, Event, unpack
from locktender.base.states import TERMINAL_RUNS
from locktender.client.core import Core
from locktender.client.views import instant
from locktender.store.protocol import (
    BEGINNING,
    LATEST,
    Cursor,
    EventFilter,
    EventReader,
    Follow,
    Followed,
    RunFilter,
    RunLabel,
)

log: logging.Logger = logging.getLogger(__name__)
T = TypeVar("T")
PAGE = 500
"""Rows read at a time."""
OVERLAP_US = 60 * SECOND
MAX_READERS = 1_000
MAX_IDS = 10_000
"""Ids of runs that are remembered."""
START, NOW = "start", "now"
_NAMES = {
    ("run", "queued"): "RunQueued",
    ("run", "running"): "RunDequeued",
    ("task", "running"): "StepStarted",
}
_SUBJECTS = {"task": "Step", "wait": "StepSlot"}


class EventsPruned(LocktenderError):
    """Changes behind a cursor were removed before they were read."""

    code = "events_pruned"


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One change, as a follower of the history gets it."""

    cursor: str
    """`follow(after=…)` goes on behind this change."""
    name: str
    """RunQueued, RunDequeued, StepRequested, StepSlotClaimed, StepCompleted …"""
    seq: int
    at: datetime
    actor: str
    run_id: str | None
    run: int
    """The store's own number of the run; 0 or less: the change is of none."""
    subject: str
    task: int
    before: str
    after: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EventReaderInfo:
    """A named reader of the history."""

    name: str
    cursor: str
    at: datetime
    """When it came so far."""


def event_name(subject: str, after: str, data: Mapping[str, Any]) -> str:
    """What a change is called: its subject and what it became."""
    if (subject, after) == ("task", "scheduled") and data.get("pools"):
        return "StepSlotClaimed"
    known = _NAMES.get((subject, after))
    if known is not None:
        return known
    if subject == "wait":
        return "StepSlotWaiting"
    words = (
        after.replace(":", "_").replace(" ", "_").split("_") if subject != "leader" else ["Elected"]
    )
    return _SUBJECTS.get(subject, subject.capitalize()) + "".join(
        word[:1].upper() + word[1:] for word in words
    )


class EventToken(msgspec.Struct, frozen=True, array_like=True):
    cursor: str
    skip: int = 0
    """Changes of the next row that were read."""
    at: int = 0
    """When the last change that was read happened."""

    def text(self) -> str:
        raw = msgspec.json.encode(self)
        return base64.urlsafe_b64encode(raw).decode().rstrip("=")

    @classmethod
    def of(cls, text: str) -> EventToken:
        try:
            raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            return msgspec.json.decode(raw, type=cls)
        except (binascii.Error, ValueError, msgspec.MsgspecError) as error:
            raise _no_cursor(text) from error


def _no_cursor(text: str) -> InvalidInput:
    return InvalidInput(
        "this is not a cursor of the history.",
        field="after",
        got=text,
        hint='Give the "cursor" of an event, "start" or "now".',
    )


class Follower:
    """One reader: of all changes, or of one run's."""

    def __init__(self, core: Core, run: str | None, reader: str | None) -> None:
        self._core = core
        self._run_id = run
        self._reader = reader
        self._ids: OrderedDict[int, str | None] = OrderedDict()
        self._taken: EventToken | None = None
        self._kept: EventToken | None = None
        self._not_before = 0

    async def follow(
        self, after: str | None, *, wait: bool, skip_pruned: bool
    ) -> AsyncIterator[HistoryEvent]:
        core = self._core
        run = None if self._run_id is None else (await core.row(self._run_id)).seq
        token = await self._begin(after, run)
        if token.at and run is None and not skip_pruned:
            await self._check_pruned(token)
        mark = -1
        try:
            while True:
                page, token = await self._page(token, run)
                for event in page:
                    yield event
                    # Asked for the next one: this one was taken.
                    self._taken = EventToken.of(event.cursor)
                await self._keep()
                if page:
                    continue
                if not wait or await self._ended():
                    return
                mark = await core.store.wait(SECOND, mark)
        finally:
            await self._keep()

    async def page(self, after: str, *, skip_pruned: bool) -> tuple[list[HistoryEvent], str, bool]:
        """What follows `after` now, the cursor behind it, and whether no more can come: the run has ended."""
        run = None if self._run_id is None else (await self._core.row(self._run_id)).seq
        # First: what happened before the end is written before the end is.
        ended = await self._ended()
        token = await self._begin(after, run)
        if token.at and run is None and not skip_pruned:
            await self._check_pruned(token)
        events, token = await self._page(token, run)
        return events, token.text(), ended and not events

    async def _begin(self, after: str | None, run: int | None) -> EventToken:
        if after is None and self._reader is not None:
            known = {each.name: each.cursor for each in await self._core.store.event_readers()}
            check_room(self._reader, known)
            after = known.get(self._reader, START)
        if after is None:
            after = NOW if run is None else START
        if after == START:
            return EventToken(BEGINNING)
        if after == NOW:
            return EventToken((await self._core.store.follow(Follow(LATEST))).cursor)
        return EventToken.of(after)

    async def _page(
        self, token: EventToken, run: int | None
    ) -> tuple[list[HistoryEvent], EventToken]:
        try:
            found = await self._core.store.follow(Follow(Cursor(token.cursor), run, PAGE))
        except HistoryReplaced:
            if not token.at:
                raise
            log.warning(
                "the cursor is of another server or an earlier one: reading on from a minute before it,"
                " so some events come twice"
            )
            self._not_before = token.at - OVERLAP_US
            found = await self._core.store.follow(Follow(BEGINNING, run, PAGE))
            token = EventToken(BEGINNING, 0, token.at)
        await self._read_ids({row.run for row in found.events})
        events = [
            _event(change, self._ids.get(change.run), at)
            for change, at in _changes(found, token)
            if change.at >= self._not_before
        ]
        return events, _behind(found, token)

    async def _read_ids(self, runs: Collection[int]) -> None:
        missing: list[int] = sorted(each for each in runs if each > 0 and each not in self._ids)
        while missing:
            span = min(missing[-1] - missing[0] + 1, PAGE)
            rows = await self._core.store.runs(RunFilter(before=missing[-1] + 1, limit=span))
            self._ids.update({row.seq: row.id for row in rows})
            # Holds of slots, and runs that were pruned meanwhile.
            lowest = rows[-1].seq if len(rows) == span else 0
            self._ids.update(
                {each: None for each in missing if each >= lowest and each not in self._ids}
            )
            missing = [each for each in missing if each < lowest]
        _trim(self._ids, runs)

    async def _ended(self) -> bool:
        if self._run_id is None:
            return False
        return (await self._core.row(self._run_id)).state in TERMINAL_RUNS

    async def _keep(self) -> None:
        if self._reader is not None and self._taken is not None and self._taken != self._kept:
            await keep_reader(self._core, self._reader, self._taken.text())
            self._kept = self._taken

    async def _check_pruned(self, token: EventToken) -> None:
        """Refuses to go on where changes behind the cursor were removed by retention."""
        runs = until = 0
        after = 0
        while True:
            rows = await self._core.store.events(EventFilter(run=HISTORY, after=after, limit=PAGE))
            for change in (change for row in rows for change in unpack(row)):
                if change.after in {"pruned", "summed"} and change.data["until"] > token.at:
                    runs += change.data["runs"]
                    until = max(until, change.data["until"])
            if len(rows) < PAGE:
                break
            after = rows[-1].seq
        if until:
            raise EventsPruned(
                f"events after {instant(token.at):%Y-%m-%d %H:%M:%S} UTC were pruned before they were read:"
                f" of up to {runs:,} runs that ended until {instant(until):%Y-%m-%d %H:%M:%S} UTC.",
                field="after",
                got=token.text(),
                hint="skip_pruned=True goes on with what is left; a longer `retention` keeps more.",
            )


def check_room(reader: str, known: Collection[str]) -> None:
    """Refuses one reader more than can be."""
    if reader not in known and len(known) >= MAX_READERS:
        raise InvalidInput(
            f"there are {len(known):,} readers of the history; at most {MAX_READERS:,} can be.",
            field="reader",
            got=reader,
            hint="client.events.forget_reader(NAME) removes one.",
        )


async def keep_reader(core: Core, reader: str, cursor: str) -> None:
    """Stores that all before `cursor` was taken."""
    await core.store.keep_event_reader(EventReader(reader, cursor, await core.store.now()))


def _changes(found: Followed, token: EventToken) -> Iterator[tuple[Event, EventToken]]:
    """Each change that was read behind `token`, and the token behind it."""
    before, skip = token.cursor, token.skip
    for row, behind in zip(found.events, found.behind, strict=True):
        changes = unpack(row)
        for n, change in enumerate(changes, 1):
            if n <= skip:
                continue
            ends = n == len(changes)
            yield change, EventToken(behind if ends else before, 0 if ends else n, change.at)
        before, skip = behind, 0


def _behind(found: Followed, token: EventToken) -> EventToken:
    return EventToken(found.cursor, 0, found.events[-1].at if found.events else token.at)


def _event(change: Event, run_id: str | None, at: EventToken) -> HistoryEvent:
    return HistoryEvent(
        cursor=at.text(),
        name=event_name(change.subject, change.after, change.data),
        seq=change.seq,
        at=instant(change.at),
        actor=change.actor,
        run_id=run_id,
        run=change.run,
        subject=change.subject,
        task=change.task,
        before=change.before,
        after=change.after,
        data=change.data,
    )


@dataclass(frozen=True, slots=True)
class FollowedEvent:
    """An event, and the tags of its run: they say whose it is."""

    event: HistoryEvent
    tags: Mapping[str, str]


def _trim(known: OrderedDict[int, T], used: Collection[int]) -> None:
    """Removes what was not used for longest. What this page uses stays: its events would lack their run."""
    for run in used:
        if run in known:
            known.move_to_end(run)
    while len(known) > max(MAX_IDS, len(used)):
        known.popitem(last=False)


class HistoryPages:
    """Reads a page at a time behind any cursor, for many who follow together: `/api/v1/events`."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._labels: OrderedDict[int, RunLabel] = OrderedDict()

    async def now(self) -> str:
        """The cursor behind all that is visible now."""
        return EventToken((await self._core.store.follow(Follow(LATEST))).cursor).text()

    async def moved(self, after: str) -> tuple[str, bool]:
        """The cursor behind all that is visible now, and whether there is a change behind `after`.

        Two cursors may differ and have no change between them: PostgreSQL's are moved by every transaction.
        """
        try:
            cursor = Cursor(EventToken.of(after).cursor)
            found = await self._core.store.follow(Follow(cursor, limit=1))
        except HistoryReplaced:
            return await self.now(), True
        if found.events:
            return await self.now(), True
        return EventToken(found.cursor).text(), False

    async def read(self, after: str) -> tuple[str, list[FollowedEvent]]:
        """The next page, and the cursor behind it. Raises `HistoryReplaced`, or `InvalidInput` for no cursor."""
        token = EventToken.of(after)
        try:
            found = await self._core.store.follow(Follow(Cursor(token.cursor), limit=PAGE))
        except ValueError:
            raise _no_cursor(after) from None
        if token.cursor == LATEST:
            raise _no_cursor(after)
        await self._read_labels({row.run for row in found.events if row.run > 0})
        events = [self._followed(change, at) for change, at in _changes(found, token)]
        return _behind(found, token).text(), events

    async def _read_labels(self, runs: set[int]) -> None:
        unknown = [run for run in runs if run not in self._labels]
        if unknown:
            self._labels |= await self._core.store.run_labels(unknown)
        _trim(self._labels, runs)

    def _followed(self, change: Event, at: EventToken) -> FollowedEvent:
        label = self._labels.get(change.run)
        shown = _event(change, None if label is None else label.id, at)
        return FollowedEvent(shown, {} if label is None else label.tags)


def checked_reader(name: str | None) -> str | None:
    return None if name is None else names.name(name, "reader")
