"""Queue."""

from __future__ import annotations

from starlette.responses import Response

from locktender.server.ui.pages import UiRoute, View


async def show_queue(view: View) -> Response:
    return await view.page("queue.html")


ROUTES = (UiRoute("/queue", show_queue),)
