"""PAGES: every route of the UI, and the entries of its navigation."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from locktender.base.errors import NotFound
from locktender.server.api.answers import Endpoint, guarded
from locktender.server.api.routing import Api
from locktender.server.ui import (
    inbox,
    limits,
    overview,
    pools,
    queue,
    run,
    run_actions,
    runs,
    schedules,
    workers,
)
from locktender.server.ui.assets import PREFIX, serve_asset
from locktender.server.ui.live import LIVE, LiveStream
from locktender.server.ui.pages import UiRoute, error_page, ui_endpoint
from locktender.server.ui.reading import SharedReadings

PAGES: tuple[UiRoute, ...] = (
    *overview.ROUTES,
    *runs.ROUTES,
    *queue.ROUTES,
    *pools.ROUTES,
    *limits.ROUTES,
    *run.ROUTES,
    *run_actions.ROUTES,
    *workers.ROUTES,
    *schedules.ROUTES,
    *inbox.ROUTES,
)


def ui_endpoints(api: Api, readings: SharedReadings) -> Mapping[str, dict[str, Endpoint]]:
    """Path → method → what answers."""
    found: dict[str, dict[str, Endpoint]] = {}
    for route in PAGES:
        found.setdefault(route.path, {})[route.method] = ui_endpoint(api, route, readings)

    async def live(request: Request) -> Response:
        # It says only that something has changed: a token bound to tags may know.
        api.access.identify(request).check("read")
        return LiveStream(readings.feed)

    found[LIVE] = {"GET": guarded(live)}
    found[f"{PREFIX}/{{mark}}/{{name:path}}"] = {"GET": guarded(serve_asset)}
    return found


def missing(api: Api, request: Request) -> Response:
    """The page for a path that is none."""
    path = request.url.path[:200]
    error = NotFound(f"there is nothing at {path}.", field="path", got=path)
    return error_page(api, request, error)
