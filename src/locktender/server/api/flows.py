"""Flows that workers have announced, and workers."""

from __future__ import annotations

import msgspec

from locktender.base.errors import NotFound
from locktender.client.pauses import FlowDetail, FlowInfo
from locktender.client.views import Requested, WorkerInfo
from locktender.server.api.answers import StateConflict
from locktender.server.api.bodies import ReasonBody
from locktender.server.api.routing import ApiCall, ApiRoute, Reply
from locktender.server.api.tenancy import public_health
from locktender.server.state import DemandAnswer, Health


class FlowPage(msgspec.Struct, frozen=True):
    """Flows by name."""

    flows: list[FlowInfo]


class WorkerPage(msgspec.Struct, frozen=True):
    """Workers as they last described themselves."""

    workers: list[WorkerInfo]


async def list_flows(call: ApiCall) -> Reply:
    return Reply(FlowPage(await call.client.flows.list()))


async def get_flow(call: ApiCall) -> Reply:
    return Reply(await call.client.flows.get(call.path("flow")))


async def pause_flow(call: ApiCall) -> Reply:
    body: ReasonBody = call.body
    name = call.path("flow")
    await call.client.flows.pause(name, body.reason)
    return Reply(await _detail(call, name, paused=True))


async def resume_flow(call: ApiCall) -> Reply:
    name = call.path("flow")
    if name not in {each.name for each in await call.client.flows.paused()}:
        found = await call.client.flows.get(name)
        raise StateConflict(
            f"flow {found.name!r} is not paused.", state="not paused", field="flow", got=found.name
        )
    await call.client.flows.resume(name)
    return Reply(await _detail(call, name, paused=False))


async def _detail(call: ApiCall, name: str, *, paused: bool) -> FlowDetail:
    """Of a flow that has runs and that no worker announced, only its name is known."""
    try:
        return await call.client.flows.get(name)
    except NotFound:
        return FlowDetail(name, "", {}, {}, {}, 0, None, paused)


async def list_workers(call: ApiCall) -> Reply:
    return Reply(WorkerPage(await call.client.workers.list()))


async def get_worker(call: ApiCall) -> Reply:
    return Reply(await _worker(call))


async def drain_worker(call: ApiCall) -> Reply:
    found = await _worker(call)
    return Reply(await call.client.workers.drain(found.id), 202)


async def undrain_worker(call: ApiCall) -> Reply:
    found = await _worker(call)
    if found.ending or not (found.alive or found.stalled):
        state = "ending" if found.ending else "left"
        raise StateConflict(
            f"worker {found.id!r} ends or has left.", state=state, field="worker", got=found.id
        )
    return Reply(await call.client.workers.undrain(found.id), 202)


async def _worker(call: ApiCall) -> WorkerInfo:
    """By its whole id."""
    wanted = call.path("worker")
    found = {each.id: each for each in await call.client.workers.list()}
    if wanted not in found:
        raise NotFound(f"there is no worker {wanted!r}.", field="worker", got=wanted)
    return found[wanted]


async def get_demand(call: ApiCall) -> Reply:
    return Reply(await call.api.demand.answer())


async def get_health(call: ApiCall) -> Reply:
    found, fit = await call.api.health.answer()
    return Reply(_seen(call, found), 200 if fit else 503)


def _seen(call: ApiCall, found: Health) -> Health:
    """Names are for those who may read everything."""
    return found if call.principal.may("read") and not call.principal.tags else public_health(found)


async def get_ready(call: ApiCall) -> Reply:
    found, fit = await call.api.health.answer()
    return Reply(_seen(call, found), 200 if fit and found.leader is not None else 503)


ROUTES = (
    ApiRoute("GET", "/flows", "read", list_flows, "Flows that workers have announced", FlowPage, tenant="same"),
    ApiRoute(
        "GET", "/flows/{flow}", "read", get_flow, "A flow with the JSON schema of its parameters and its result",
        FlowDetail, refuses=(404,),
        tenant="same",
    ),
    ApiRoute(
        "POST", "/flows/{flow}/pause", "operate", pause_flow, "Start nothing of a flow any more", FlowDetail,
        body=ReasonBody, optional=True, refuses=(404, 413, 415, 422), example={"reason": "maintenance"},
    ),
    ApiRoute(
        "POST", "/flows/{flow}/resume", "operate", resume_flow, "Let a paused flow go on", FlowDetail,
        refuses=(404, 409),
    ),
    ApiRoute("GET", "/workers", "read", list_workers, "Workers", WorkerPage),
    ApiRoute("GET", "/workers/{worker}", "read", get_worker, "One worker", WorkerInfo, refuses=(404,)),
    ApiRoute(
        "POST", "/workers/{worker}/drain", "operate", drain_worker, "Give a worker no more tasks", Requested,
        202, refuses=(404,),
    ),
    ApiRoute(
        "POST", "/workers/{worker}/undrain", "operate", undrain_worker, "Give it tasks again", Requested,
        202, refuses=(404, 409, 422),
    ),
    ApiRoute("GET", "/demand", "read", get_demand, "Tasks that lack only a worker", DemandAnswer),
    ApiRoute(
        "GET", "/health", "public", get_health, "The state of this server", Health, also={503: Health},
        tenant="same",
    ),
    ApiRoute(
        "GET", "/ready", "public", get_ready, "Whether the store answers and somebody leads", Health,
        also={503: Health},
        tenant="same",
    ),
)  # fmt: skip
