"""Pools and limits. Each has a version as its ETag: with `If-Match` a change is stored only on that version."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from locktender.base.errors import InvalidInput, NotFound
from locktender.base.limits import pool_name
from locktender.base.names import did_you_mean
from locktender.client import views
from locktender.client.client_async import AsyncClient
from locktender.client.pool_holders import PoolHolders
from locktender.client.views import LimitChangeInfo, LimitInfo, PoolInfo
from locktender.observe.holders import LimitCost
from locktender.server.api.answers import Malformed
from locktender.server.api.bodies import CostQuery, LimitBody, LongQuery, PoolBody, TagLimitBody
from locktender.server.api.principal import Principal
from locktender.server.api.routing import ApiCall, ApiRoute, Reply
from locktender.server.api.tenancy import shown_limit, shown_pool

T = TypeVar("T")
IF_MATCH = {
    "If-Match": "The ETag of the last answer: the change is refused with 412 if it is older."
}


class PoolPage(msgspec.Struct, frozen=True):
    """Pools by name."""

    pools: list[PoolInfo]


class LimitPage(msgspec.Struct, frozen=True):
    """Every limit in force but pools."""

    limits: list[LimitInfo]


class LimitChanges(msgspec.Struct, frozen=True):
    """Changes of limits and pools, newest first."""

    changes: list[LimitChangeInfo]


class LimitCosts(msgspec.Struct, frozen=True):
    """What each limit cost in waiting, the most expensive first."""

    costs: list[LimitCost]


class Removed(msgspec.Struct, frozen=True):
    """What is gone."""

    removed: str


_ETAG = re.compile(r'(?:W/)?"?([^",\s]+)"?')


async def _if_match(call: ApiCall) -> AsyncClient:
    """A client whose changes are stored only if the setting has the version that the request names."""
    given = call.request.headers.get("if-match")
    if given is None:
        return call.client
    found = _ETAG.fullmatch(given.strip())
    if found is None:
        raise Malformed(
            "If-Match must be one ETag, or *.", field="if-match", got=given, hint='If-Match: "…"'
        )
    version = found[1]
    if version == "*":  # whatever it is, if it is there
        with suppress(NotFound):
            version = (await _current(call)).version
    return AsyncClient(call.core.acting(call.core.who, version))


async def _current(call: ApiCall) -> PoolInfo | LimitInfo:
    if "pool" in call.request.path_params:
        return await call.client.pools.get(_pool(call))
    named = call.request.path_params
    return await _limit(call, named.get("rule") or named["limit"])


def _tagged(value: PoolInfo | LimitInfo) -> Reply:
    return Reply(value, 200, {"etag": f'"{value.version}"'})


async def list_pools(call: ApiCall) -> Reply:
    return Reply(PoolPage(_theirs(call, shown_pool, await call.client.pools.list())))


async def get_pool(call: ApiCall) -> Reply:
    name = _pool(call)
    found = _theirs(call, shown_pool, [await call.client.pools.get(name)])
    if not found:
        raise NotFound(f"there is no pool {name!r}.", field="pool", got=name)
    return _tagged(found[0])


def _theirs(call: ApiCall, shown: Callable[[Principal, T], T | None], every: list[T]) -> list[T]:
    """What the principal may know of these."""
    if not call.principal.tags:
        return every
    found = (shown(call.principal, each) for each in every)
    return [each for each in found if each is not None]


async def get_pool_holders(call: ApiCall) -> Reply:
    await get_pool(call)
    found = await call.client.pools.holders(_pool(call))
    if call.principal.tags:
        mine = [each for each in found.holders if await call.is_own(each.run)]
        found = PoolHolders(mine, found.now)
    return Reply(found)


async def set_pool(call: ApiCall) -> Reply:
    body: PoolBody = call.body
    given: dict[str, Any] = {
        name: views.UNSET if (value := getattr(body, name)) is UNSET else value
        for name in body.__struct_fields__
    }
    await (await _if_match(call)).pools.set(_pool(call), **given)
    return await get_pool(call)


async def pause_pool(call: ApiCall) -> Reply:
    await (await _if_match(call)).pools.pause(_pool(call))
    return await get_pool(call)


async def resume_pool(call: ApiCall) -> Reply:
    await (await _if_match(call)).pools.resume(_pool(call))
    return await get_pool(call)


async def reset_pool(call: ApiCall) -> Reply:
    name = _pool(call)
    await (await _if_match(call)).pools.reset(name)
    return Reply(Removed(name))


async def delete_pool(call: ApiCall) -> Reply:
    name = _pool(call)
    await (await _if_match(call)).pools.delete(name)
    return Reply(Removed(name))


def _pool(call: ApiCall) -> str:
    return pool_name(call.path("pool"))


async def list_limits(call: ApiCall) -> Reply:
    return Reply(LimitPage(_theirs(call, shown_limit, await call.client.limits.list())))


async def get_limit(call: ApiCall) -> Reply:
    return _tagged(await _limit(call, call.path("limit")))


async def set_limit(call: ApiCall) -> Reply:
    body: LimitBody = call.body
    name, limits = call.path("limit"), (await _if_match(call)).limits
    if name == "fair":
        weights = None if body.weights is UNSET else body.weights
        await limits.set_fair(_text(body.value), weights)
        return _tagged(await _limit(call, f"fair {body.value}"))
    if body.weights is not UNSET:
        raise InvalidInput("only fair has weights.", field="weights", got=body.weights)
    await limits.set(name, body.value, expected=body.expected)
    return _tagged(await _limit(call, name))


async def set_tag_limit(call: ApiCall) -> Reply:
    body: TagLimitBody = call.body
    name = call.path("rule")
    key, equals, value = name.partition("=")
    each = value == "*"
    await (await _if_match(call)).limits.set_tag(
        key,
        None if each or not equals else value,
        body.limit,
        per_value=each,
        max_active=body.max_active,
        counts_while_waiting=body.counts_while_waiting,
        expected=body.expected,
    )
    return _tagged(await _limit(call, name))


async def get_tag_limit(call: ApiCall) -> Reply:
    return _tagged(await _limit(call, call.path("rule")))


async def list_limit_costs(call: ApiCall) -> Reply:
    query: CostQuery = call.query
    return Reply(LimitCosts(await call.client.limits.cost(query.last)))


async def pause_limit(call: ApiCall) -> Reply:
    name = call.path("limit")
    await (await _if_match(call)).limits.pause(name)
    return _tagged(await _limit(call, name))


async def resume_limit(call: ApiCall) -> Reply:
    name = call.path("limit")
    await (await _if_match(call)).limits.resume(name)
    return _tagged(await _limit(call, name))


async def reset_limit(call: ApiCall) -> Reply:
    name = call.path("limit")
    await (await _if_match(call)).limits.reset(name)
    return Reply(Removed(name))


async def list_limit_changes(call: ApiCall) -> Reply:
    query: LongQuery = call.query
    return Reply(LimitChanges(await call.client.limits.history(query.limit)))


async def _limit(call: ApiCall, name: str) -> LimitInfo:
    every = _theirs(call, shown_limit, await call.client.limits.list())
    found = {each.name: each for each in every}
    if name not in found:
        raise NotFound(
            f"there is no limit {name!r}.", field="limit", got=name, hint=did_you_mean(name, found)
        )
    return found[name]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidInput("fair needs the key of a tag.", field="value", got=value)
    return value


_CHANGES = (404, 412, 413, 415, 422)
_MOVES = (404, 412, 422)
ROUTES = (
    ApiRoute("GET", "/pools", "read", list_pools, "Pools and their use", PoolPage, tenant="numbers"),
    ApiRoute(
        "GET", "/pools/{pool}/holders", "read", get_pool_holders, "Who holds slots of a pool", PoolHolders,
        refuses=(404, 422), tenant="own",
    ),
    ApiRoute("GET", "/pools/{pool}", "read", get_pool, "One pool", PoolInfo, refuses=(404, 422), tenant="numbers"),
    ApiRoute(
        "PUT", "/pools/{pool}", "operate", set_pool, "Set what is given of a pool", PoolInfo,
        body=PoolBody, refuses=_CHANGES, headers=IF_MATCH, example={"limit": 4, "rate": "60/min"},
    ),
    ApiRoute(
        "DELETE", "/pools/{pool}", "operate", delete_pool, "Remove a pool", Removed,
        refuses=_MOVES, headers=IF_MATCH,
    ),
    ApiRoute(
        "POST", "/pools/{pool}/pause", "operate", pause_pool, "Start nothing more that needs a pool", PoolInfo,
        refuses=_MOVES, headers=IF_MATCH,
    ),
    ApiRoute(
        "POST", "/pools/{pool}/resume", "operate", resume_pool, "End the pause of a pool", PoolInfo,
        refuses=_MOVES, headers=IF_MATCH,
    ),
    ApiRoute(
        "POST", "/pools/{pool}/reset", "operate", reset_pool, "Go back to what code declares", Removed,
        refuses=_MOVES, headers=IF_MATCH,
    ),
    ApiRoute("GET", "/limits", "read", list_limits, "Every limit but pools", LimitPage, tenant="numbers"),
    ApiRoute(
        "GET", "/limit-changes", "read", list_limit_changes, "Who changed which limit", LimitChanges,
        query=LongQuery, refuses=(422,),
    ),
    ApiRoute(
        "GET", "/limit-costs", "read", list_limit_costs, "What each limit cost in waiting", LimitCosts,
        query=CostQuery, refuses=(422,),
    ),
    ApiRoute(
        "GET", "/limits/tags/{rule}", "read", get_tag_limit, "The rule of a tag", LimitInfo, refuses=(404,),
        tenant="numbers",
    ),
    ApiRoute(
        "PUT", "/limits/tags/{rule}", "operate", set_tag_limit,
        "Bound runs with a tag: `tenant`, `tenant=acme` or, for each value, `tenant=*`", LimitInfo,
        body=TagLimitBody, refuses=_CHANGES, headers=IF_MATCH, example={"limit": 2, "max_active": 100},
    ),
    ApiRoute(
        "GET", "/limits/{limit}", "read", get_limit, "One limit", LimitInfo, refuses=(404,), tenant="numbers",
    ),
    ApiRoute(
        "PUT", "/limits/{limit}", "operate", set_limit, "Set a limit by its name", LimitInfo,
        body=LimitBody, refuses=_CHANGES, headers=IF_MATCH, example={"value": 20},
    ),
    ApiRoute(
        "POST", "/limits/{limit}/pause", "operate", pause_limit, "Start no more runs, or none with a tag",
        LimitInfo, refuses=_MOVES, headers=IF_MATCH,
    ),
    ApiRoute(
        "POST", "/limits/{limit}/resume", "operate", resume_limit, "End that pause", LimitInfo,
        refuses=_MOVES, headers=IF_MATCH,
    ),
    ApiRoute(
        "POST", "/limits/{limit}/reset", "operate", reset_limit, "Go back to what code declares, or the default",
        Removed, refuses=_MOVES, headers=IF_MATCH,
    ),
)  # fmt: skip
