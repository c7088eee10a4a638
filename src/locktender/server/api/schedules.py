"""Schedules, and what runs wait for: events, approvals, their answers."""

from __future__ import annotations

import msgspec

from locktender.base import names
from locktender.base.errors import NotFound
from locktender.client.mailing import EventWaitInfo
from locktender.client.parts import MAX_EXAMINED, waits_in_parts
from locktender.client.schedules import ScheduleChangeInfo, ScheduleInfo
from locktender.server.api.bodies import (
    AnswerBody,
    EventBody,
    LongQuery,
    PagedQuery,
    ScheduleBody,
    TopicBody,
)
from locktender.server.api.reading import cursor_numbers, cursor_of
from locktender.server.api.routing import ApiCall, ApiRoute, Reply
from locktender.server.api.runs import SubmittedRun, accepted
from locktender.server.api.settings import Removed


class SchedulePage(msgspec.Struct, frozen=True):
    """Schedules by name."""

    schedules: list[ScheduleInfo]


class ScheduleChanges(msgspec.Struct, frozen=True):
    """Who changed a schedule, the latest first."""

    changes: list[ScheduleChangeInfo]


class WaitPage(msgspec.Struct, frozen=True):
    """Who waits for which event; the first that times out first."""

    waits: list[EventWaitInfo]
    next: str | None = None
    """`cursor` of the next page, also where this one is not full; null: this is the last."""


class Sent(msgspec.Struct, frozen=True):
    """An event that was sent."""

    new: bool
    """False: it was there already."""


async def list_schedules(call: ApiCall) -> Reply:
    found = await call.client.schedules.list()
    return Reply(SchedulePage(call.shown(found, lambda each: each.tags)))


async def get_schedule(call: ApiCall) -> Reply:
    return Reply(await _schedule(call))


async def _schedule(call: ApiCall) -> ScheduleInfo:
    """The one that the path names. Another's is not there."""
    name = _name(call)
    found = await call.client.schedules.get(name)
    if not call.principal.sees(found.tags):
        raise NotFound(f"there is no schedule {name!r}.", field="schedule", got=name)
    return found


async def set_schedule(call: ApiCall) -> Reply:
    body: ScheduleBody = call.body
    options = {name: getattr(body, name) for name in body.__struct_fields__}
    flow, args = options.pop("flow"), options.pop("args")
    options["tags"] = call.only(body.tags)
    return Reply(await call.client.schedules.set(_name(call), flow, args, **options))


async def delete_schedule(call: ApiCall) -> Reply:
    name = (await _schedule(call)).name
    await call.client.schedules.delete(name)
    return Reply(Removed(name))


async def pause_schedule(call: ApiCall) -> Reply:
    await call.client.schedules.pause((await _schedule(call)).name)
    return await get_schedule(call)


async def resume_schedule(call: ApiCall) -> Reply:
    await call.client.schedules.resume((await _schedule(call)).name)
    return await get_schedule(call)


async def reset_schedule(call: ApiCall) -> Reply:
    name = (await _schedule(call)).name
    await call.client.schedules.reset(name)
    return Reply(Removed(name))


async def run_schedule(call: ApiCall) -> Reply:
    return accepted(await call.client.schedules.run_now((await _schedule(call)).name))


async def list_schedule_changes(call: ApiCall) -> Reply:
    query: LongQuery = call.query
    found = await call.client.schedules.history(_name(call), query.limit)
    shown = [each for each in found if _is_own(call, each)]
    if not shown and call.principal.tags:
        await _schedule(call)  # another's is not there
    return Reply(ScheduleChanges(shown))


def _is_own(call: ApiCall, change: ScheduleChangeInfo) -> bool:
    """A name may have been another's before."""
    specs = [each for each in (change.before, change.after) if each is not None]
    return all(call.principal.sees(each.get("tags", {})) for each in specs)


def _name(call: ApiCall) -> str:
    return names.name(call.path("schedule"), "schedule")


async def list_waits(call: ApiCall) -> Reply:
    query: PagedQuery = call.query
    after = cursor_numbers(query.cursor, 2)
    found, place = await waits_in_parts(
        call.core, call.principal.tags, query.limit, after, MAX_EXAMINED
    )
    return Reply(WaitPage([EventWaitInfo.of(row) for row in found], cursor_of(place)))


async def list_run_waits(call: ApiCall) -> Reply:
    run, _ = await call.run()
    return Reply(WaitPage(await run.waits()))


async def send_event(call: ApiCall) -> Reply:
    body: EventBody = call.body
    run, info = await call.run()
    call.refuse_ended(info, "sent an event")
    return Reply(Sent(await run.send(body.event, body.payload, id=body.id)), 202)


async def send_to_topic(call: ApiCall) -> Reply:
    body: TopicBody = call.body
    sent = await call.client.events.send(
        call.path("topic"), body.payload, match=body.match, id=body.id
    )
    return Reply(Sent(sent), 202)


async def answer_wait(call: ApiCall) -> Reply:
    body: AnswerBody = call.body
    return Reply(Sent(await call.client.events.answer(body.token, body.payload)), 202)


ROUTES = (
    ApiRoute("GET", "/schedules", "read", list_schedules, "Schedules", SchedulePage, tenant="own"),
    ApiRoute(
        "GET", "/schedules/{schedule}", "read", get_schedule, "A schedule with its next and last ticks",
        ScheduleInfo, refuses=(404, 422),
        tenant="own",
    ),
    ApiRoute(
        "PUT", "/schedules/{schedule}", "operate", set_schedule, "Set a schedule", ScheduleInfo,
        body=ScheduleBody, refuses=(404, 413, 415, 422),
        example={"flow": "build", "args": {"names": ["a"]}, "cron": "0 3 * * 1-5", "tz": "Europe/Berlin"},
        tenant="own",
    ),
    ApiRoute(
        "DELETE", "/schedules/{schedule}", "operate", delete_schedule, "Remove a schedule", Removed,
        refuses=(404, 422),
        tenant="own",
    ),
    ApiRoute(
        "POST", "/schedules/{schedule}/pause", "operate", pause_schedule, "Make no runs of it", ScheduleInfo,
        refuses=(404, 422),
        tenant="own",
    ),
    ApiRoute(
        "POST", "/schedules/{schedule}/resume", "operate", resume_schedule, "Make runs of it again", ScheduleInfo,
        refuses=(404, 422),
        tenant="own",
    ),
    ApiRoute(
        "POST", "/schedules/{schedule}/reset", "operate", reset_schedule, "Go back to what code declares", Removed,
        refuses=(404, 422),
        tenant="own",
    ),
    ApiRoute(
        "POST", "/schedules/{schedule}/run", "submit", run_schedule, "Submit a run of it now", SubmittedRun,
        202, refuses=(404, 422, 429),
        tenant="own",
    ),
    ApiRoute(
        "GET", "/schedules/{schedule}/changes", "read", list_schedule_changes, "Who changed a schedule",
        ScheduleChanges, query=LongQuery, refuses=(404, 422),
        tenant="own",
    ),
    ApiRoute(
        "GET", "/waits", "read", list_waits, "The inbox: who waits for which event", WaitPage,
        query=PagedQuery, refuses=(422,),
        tenant="own",
    ),
    ApiRoute(
        "GET", "/runs/{run}/waits", "operate", list_run_waits, "What a run waits for, with tokens to answer by",
        WaitPage, refuses=(404,),
        tenant="own",
    ),
    ApiRoute(
        "POST", "/runs/{run}/events", "submit", send_event, "Send an event to a run", Sent,
        202, EventBody, refuses=(404, 409, 413, 415, 422, 429),
        example={"event": "approved", "payload": {"by": "ann"}},
        tenant="own",
    ),
    ApiRoute(
        "POST", "/topics/{topic}", "submit", send_to_topic, "Send an event to all runs that wait for a topic",
        Sent, 202, TopicBody, refuses=(413, 415, 422), example={"payload": {"price": 3}, "match": {"item": "a"}},
    ),
    ApiRoute(
        "POST", "/waits/answer", "public", answer_wait, "Answer one wait by its token", Sent,
        202, AnswerBody, refuses=(404, 409, 413, 415, 422, 429), example={"token": "…", "payload": True},
        tenant="same",
    ),
)  # fmt: skip
