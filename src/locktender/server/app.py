"""The routes of a server (`/health`, `/metrics`, `/api/v1/demand`) and of a worker (the first two)."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from locktender.base.errors import StoreError
from locktender.engine import Engine
from locktender.observe import prometheus
from locktender.observe.prometheus import Exposition
from locktender.server.answers import Endpoint, answer, guarded, raw, refusing
from locktender.server.demand import DemandAnswers
from locktender.server.fresh import Fresh
from locktender.server.health import STORE_SECONDS, Doctor

METRICS_SECONDS = 0.5
"""How old the text of the metrics may be: it takes milliseconds to make."""
SESSIONS_SECONDS = 2.0
"""How old the list of sessions that delay the store may be."""
PATIENCE_SECONDS = 5.0


class App:
    """What one engine tells by HTTP."""

    def __init__(self, engine: Engine, since: int, *, demand: bool) -> None:
        """`since`: the start of the process, in the store's time; `demand`: whether it tells that too."""
        self._engine = engine
        self._held_up = Fresh(engine.store.held_up, SESSIONS_SECONDS)
        self._doctor = Doctor(engine, since, self._held_up)
        self._teller = DemandAnswers(engine)
        self._exposition = Exposition(engine.metrics, may_lead=engine.election is not None)
        self._metrics = Fresh(self._text, METRICS_SECONDS)
        endpoints: dict[str, Endpoint] = {"/health": self.health, "/metrics": self.metrics}
        if demand:
            endpoints["/api/v1/demand"] = self.demand
        self.asgi: Starlette = Starlette(
            routes=[
                Route(path, guarded(endpoint), methods=["GET"])
                for path, endpoint in endpoints.items()
            ],
            exception_handlers={HTTPException: refusing(list(endpoints))},
        )
        self.asgi.router.redirect_slashes = False

    async def close(self) -> None:
        for each in (self._doctor, self._teller, self._metrics, self._held_up):
            await each.close()

    async def health(self, _request: Request) -> Response:
        found, fit = await self._doctor.look()
        return answer(found, 200 if fit else 503)

    async def metrics(self, _request: Request) -> Response:
        return raw(await self._metrics.get(PATIENCE_SECONDS), prometheus.CONTENT_TYPE)

    async def demand(self, _request: Request) -> Response:
        return answer(await self._teller.tell())

    async def _text(self) -> bytes:
        store = self._engine.store
        self._exposition.stale_writes = await store.stale_writes()
        self._exposition.listener_replaced = getattr(store, "listener_replaced", 0)
        # A store that is away says nothing new; the other numbers are this process's own.
        with suppress(StoreError, TimeoutError):
            self._exposition.held_up = await self._held_up.get(STORE_SECONDS)
        self._exposition.look()
        return await asyncio.to_thread(self._exposition.text)
