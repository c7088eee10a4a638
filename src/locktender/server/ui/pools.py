"""Pools."""

from __future__ import annotations

from starlette.responses import Response

from locktender.server.ui.pages import UiRoute, View


async def show_pools(view: View) -> Response:
    return await view.page("pools.html")


ROUTES = (UiRoute("/pools", show_pools),)
