"""Runs."""

from __future__ import annotations

from starlette.responses import Response

from locktender.server.ui.pages import UiRoute, View


async def show_runs(view: View) -> Response:
    return await view.page("runs.html")


ROUTES = (UiRoute("/runs", show_runs),)
