"""Overview."""

from __future__ import annotations

from starlette.responses import Response

from locktender.server.ui.pages import UiRoute, View


async def show_overview(view: View) -> Response:
    return await view.page("overview.html")


ROUTES = (UiRoute("/", show_overview),)
