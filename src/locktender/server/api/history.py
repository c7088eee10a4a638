"""The history: followed by server-sent events, read part by part, and how far named readers came."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from locktender.base import names
from locktender.base.events import SUBJECTS, Event, unpack
from locktender.client.history import (
    EventReaderInfo,
    EventToken,
    FollowedEvent,
    Follower,
    HistoryEvent,
    check_room,
    keep_reader,
)
from locktender.client.parts import MAX_EXAMINED, events_in_parts
from locktender.server.api.bodies import EventsQuery, HistoryQuery, PagedQuery, ReaderBody
from locktender.server.api.reading import cursor_numbers, words
from locktender.server.api.routing import ApiCall, ApiRoute, Reply
from locktender.server.api.streams import Changes, EventStream


class HistoryPart(msgspec.Struct, frozen=True):
    """Changes in their order."""

    events: list[HistoryEvent]
    cursor: str
    """`after` of the next part."""
    ended: bool
    """Of one run: it has ended, and there is no more."""


class LatestEvents(msgspec.Struct, frozen=True):
    """The last changes, as they are stored; times in microseconds."""

    events: list[Event]
    next: str | None = None
    """`cursor` of those before, also where there are fewer than asked for; null: there are none."""


class ReaderPage(msgspec.Struct, frozen=True):
    """Named readers of the history."""

    readers: list[EventReaderInfo]


class ReaderRemoved(msgspec.Struct, frozen=True):
    """Whether there was one."""

    removed: bool


async def follow_events(call: ApiCall) -> Any:
    query: EventsQuery = call.query
    run = None if query.run is UNSET else (await call.run_named(query.run))[0].id
    subjects = (
        None if query.subject is UNSET else frozenset(words(query.subject, "subject", SUBJECTS))
    )
    followers, principal = call.api.followers, call.principal
    place = await followers.begin(call.request.headers.get("last-event-id"))

    def wanted(each: FollowedEvent) -> bool:
        return (
            principal.sees(each.tags)
            and (run is None or each.event.run_id == run)
            and (subjects is None or each.event.subject in subjects)
        )

    everything = run is None and subjects is None and not principal.tags
    return EventStream(
        followers,
        place,
        None if everything else wanted,
        lambda: call.api.access.until_ended(call.request),
    )


async def read_history(call: ApiCall) -> Reply:
    query: HistoryQuery = call.query
    run = None if query.run is UNSET else (await call.run_named(query.run))[0].id
    follower = Follower(call.core, run, None)
    events, cursor, ended = await follower.page(query.after, skip_pruned=query.skip_pruned)
    if call.principal.tags and run is None:
        events = await _mine(call, events)
    return Reply(HistoryPart(events, cursor, ended))


async def list_latest_events(call: ApiCall) -> Reply:
    query: PagedQuery = call.query
    place = cursor_numbers(query.cursor, 1)
    rows, last = await events_in_parts(
        call.core,
        call.principal.tags,
        query.limit,
        None if place is None else place[0],
        MAX_EXAMINED,
    )
    # A row has at least one, and a page whole rows.
    shown: list[list[Event]] = []
    left = query.limit
    for row in rows:
        shown.append(unpack(row))
        left -= len(shown[-1])
        if left <= 0:
            last = row.seq
            break
    events = [event for each in reversed(shown) for event in each]
    return Reply(LatestEvents(events[-query.limit :], None if last is None else str(last)))


async def _mine(call: ApiCall, events: list[Any]) -> list[Any]:
    tags = await call.tags_of({each.run for each in events if each.run > 0})
    return [each for each in events if each.run in tags and call.principal.sees(tags[each.run])]


async def list_readers(call: ApiCall) -> Reply:
    return Reply(ReaderPage(await call.client.events.readers()))


async def keep_event_reader(call: ApiCall) -> Reply:
    body: ReaderBody = call.body
    name = _reader(call)
    EventToken.of(body.cursor)
    check_room(name, [each.name for each in await call.client.events.readers()])
    await keep_reader(call.core, name, body.cursor)
    return await list_readers(call)


async def forget_event_reader(call: ApiCall) -> Reply:
    return Reply(ReaderRemoved(await call.client.events.forget_reader(_reader(call))))


def _reader(call: ApiCall) -> str:
    return names.name(call.path("reader"), "reader")


ROUTES = (
    ApiRoute(
        "GET", "/events", "read", follow_events, "Follow every change of state, by server-sent events", Changes,
        query=EventsQuery, refuses=(404, 422), media="text/event-stream",
        headers={"Last-Event-ID": "The id of the last message: go on behind it."},
        tenant="own",
    ),
    ApiRoute(
        "GET", "/history", "read", read_history, "Changes of state behind a cursor, part by part", HistoryPart,
        query=HistoryQuery, refuses=(404, 422), tenant="own",
    ),
    ApiRoute(
        "GET", "/events/latest", "read", list_latest_events, "The last changes of state", LatestEvents,
        query=PagedQuery, refuses=(422,), tenant="own",
    ),
    ApiRoute("GET", "/event-readers", "read", list_readers, "Named readers of the history", ReaderPage),
    ApiRoute(
        "PUT", "/event-readers/{reader}", "operate", keep_event_reader, "Store how far a reader came", ReaderPage,
        body=ReaderBody, refuses=(404, 413, 415, 422), example={"cursor": "WyIwIiwwLDBd"},
    ),
    ApiRoute(
        "DELETE", "/event-readers/{reader}", "operate", forget_event_reader, "Forget a reader", ReaderRemoved,
        refuses=(404, 422),
    ),
)  # fmt: skip
