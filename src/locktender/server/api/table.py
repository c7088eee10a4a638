"""TABLE: every route of `/api/v1`, each with its scope. The OpenAPI document and the docs page are made of it."""

from __future__ import annotations

from locktender.server.api import (
    cache,
    flows,
    history,
    queue,
    runs,
    runs_detail,
    schedules,
    settings,
    tokens,
)
from locktender.server.api.routing import ApiRoute

PREFIX = "/api/v1"
TABLE: tuple[ApiRoute, ...] = (
    *runs.ROUTES,
    *queue.ROUTES,
    *runs_detail.ROUTES,
    *flows.ROUTES,
    *settings.ROUTES,
    *schedules.ROUTES,
    *history.ROUTES,
    *cache.ROUTES,
    *tokens.ROUTES,
)
