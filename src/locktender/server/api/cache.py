"""Results of steps that are kept for calls with the same arguments. They belong to all."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from locktender.client.result_cache import CachedInfo
from locktender.server.api.bodies import CacheQuery, ClearCacheBody
from locktender.server.api.routing import ApiCall, ApiRoute, Reply


class CachePage(msgspec.Struct, frozen=True):
    """Cached results, the newest first, without their values."""

    results: list[CachedInfo]


class CacheCleared(msgspec.Struct, frozen=True):
    """How many there were."""

    cleared: int


async def list_cache(call: ApiCall) -> Reply:
    query: CacheQuery = call.query
    found = await call.client.cache.list(
        step=_given(query.step), flow=_given(query.flow), limit=query.limit
    )
    return Reply(CachePage(found))


async def get_cached(call: ApiCall) -> Reply:
    return Reply(await call.client.cache.get(call.path("key")))


async def clear_cache(call: ApiCall) -> Reply:
    body: ClearCacheBody = call.body
    return Reply(CacheCleared(await call.client.cache.clear(step=body.step, flow=body.flow)), 202)


def _given(value: str | UnsetType) -> Any:
    return None if value is UNSET else value


ROUTES = (
    ApiRoute(
        "GET", "/cache", "read", list_cache, "Cached results of steps", CachePage,
        query=CacheQuery, refuses=(404, 422),
    ),
    # Before the path that any key has: `Allow` is that of the first.
    ApiRoute(
        "POST", "/cache/clear", "operate", clear_cache, "Forget cached results", CacheCleared,
        202, ClearCacheBody, optional=True, refuses=(404, 413, 415, 422), example={"step": "fetch"},
    ),
    ApiRoute(
        "GET", "/cache/{key}", "read", get_cached, "A cached result with its value", CachedInfo, refuses=(404, 422)
    ),
)  # fmt: skip
