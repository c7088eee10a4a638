"""Runs that have not started: their order, what each waits for, and changes of many."""

from __future__ import annotations

import msgspec

from locktender.client.explained import ExplainedQueue
from locktender.client.parts import MAX_EXAMINED, queue_in_parts
from locktender.client.views import QueueInfo, Requested, RunInfo
from locktender.server.api.bodies import CancelQueuedBody, LongQuery, PagedQuery, PriorityRunsBody
from locktender.server.api.reading import cursor_numbers, cursor_of
from locktender.server.api.routing import ApiCall, ApiRoute, Reply
from locktender.server.api.runs import checked_reason, either, say_which


class QueuePage(msgspec.Struct, frozen=True):
    """Queued runs in the order in which they start."""

    queue: list[QueueInfo]
    next: str | None
    """`cursor` of the next page, also where this one is not full; null: this is the last."""


async def explain_queue(call: ApiCall) -> Reply:
    query: LongQuery = call.query
    return Reply(await call.client.queue.explained(query.limit))


async def list_queue(call: ApiCall) -> Reply:
    query: PagedQuery = call.query
    after = cursor_numbers(query.cursor, 2)
    # Positions are those among all runs; a tenant's own may stand far behind.
    found, place = await queue_in_parts(
        call.core, call.principal.tags, query.limit, after, MAX_EXAMINED
    )
    shown = [QueueInfo(entry.position, RunInfo.of(entry.run)) for entry in found]
    return Reply(QueuePage(shown, cursor_of(place)))


async def cancel_queued(call: ApiCall) -> Reply:
    body: CancelQueuedBody = call.body
    queue, reason = call.client.queue, checked_reason(body.reason)
    if body.ids is not None:
        if body.tags or body.flow is not None:
            raise either()
        return Reply(await queue.cancel(await call.check_runs(body.ids), reason=reason), 202)
    if not body.tags and body.flow is None:
        raise say_which()
    asked = await queue.cancel(tags=call.only(body.tags), flow=body.flow, reason=reason)
    return Reply(asked, 202)


async def set_priorities(call: ApiCall) -> Reply:
    body: PriorityRunsBody = call.body
    queue = call.client.queue
    if body.ids is not None:
        if body.tags or body.flow is not None:
            raise either()
        ids = await call.check_runs(body.ids)
        return Reply(await queue.reprioritise(ids, body.priority), 202)
    if not body.tags and body.flow is None:
        raise say_which()
    tags = call.only(body.tags)
    return Reply(await queue.reprioritise(None, body.priority, tags=tags, flow=body.flow), 202)


ROUTES = (
    ApiRoute(
        "GET", "/queue", "read", list_queue, "Queued runs in the order in which they start", QueuePage,
        query=PagedQuery, refuses=(422,), tenant="own",
    ),
    ApiRoute(
        "GET", "/queue/why", "read", explain_queue, "Queued runs, each with what it waits for", ExplainedQueue,
        query=LongQuery, refuses=(422,),
    ),
    ApiRoute(
        "POST", "/queue/priority", "operate", set_priorities, "Give many queued runs another priority", Requested,
        202, PriorityRunsBody, refuses=(404, 413, 415, 422), example={"flow": "build", "priority": 9},
        tenant="own",
    ),
    ApiRoute(
        "POST", "/queue/cancel", "operate", cancel_queued, "Cancel runs that have not started", Requested,
        202, CancelQueuedBody, refuses=(404, 413, 415, 422), example={"flow": "build"},
        tenant="own",
    ),
)  # fmt: skip
