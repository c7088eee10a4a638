"""The routes of a server (`/health`, `/ready`, `/metrics`, the API) and of a worker (all but the API).

Every error is an answer too, as `{code, message, field, got, hint}`, as the command line shows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from locktender.base.errors import NotFound, StoreError
from locktender.client.core import Core
from locktender.engine import Engine
from locktender.observe.exposition import CONTENT_TYPE
from locktender.observe.prometheus import Exposition
from locktender.server.api import docs_page, openapi
from locktender.server.api.answers import (
    Endpoint,
    Overloaded,
    WrongMethod,
    answer,
    guarded,
    raw,
    refusal,
)
from locktender.server.api.login import login_routes
from locktender.server.api.principal import Access, LoopbackAccess, who_asks
from locktender.server.api.routing import Api, endpoint
from locktender.server.api.streams import Followers
from locktender.server.api.submitting import SubmitGroups
from locktender.server.api.table import PREFIX, TABLE
from locktender.server.api.tenancy import check_tenant, public_health
from locktender.server.api.timelines import Timelines
from locktender.server.api.token_access import Identified, TokenAccess
from locktender.server.options import Forwarded, HttpOptions
from locktender.server.state import STORE_SECONDS, DemandAnswers, Fresh, Health, HealthAnswers
from locktender.server.ui.live import LIVE
from locktender.server.ui.pages import login_form
from locktender.server.ui.reading import SharedReadings
from locktender.server.ui.table import missing, ui_endpoints
from locktender.store.protocol import Store

STREAMS = frozenset({f"{PREFIX}/events", LIVE})
"""Answers that last: they have bounds of their own."""
DEMAND = f"{PREFIX}/demand"
MAX_REQUESTS = 128
WAITS = f"{PREFIX}/runs/ended"
MAX_WAITING = 512
"""Requests that wait for ends of runs: they cost a connection, and nothing else."""
MAX_NAMED = 20


def refusing(
    paths: list[str], page: Callable[[Request], Response] | None = None
) -> Callable[[Request, Exception], Response]:
    """The answer to an unknown path; `paths` are the known ones, `page` is for a browser."""
    named = [path for path in paths if not any(part in path for part in ("{", "/-/", "/ui/"))]
    of_api = [path for path in named if path.startswith(f"{PREFIX}/")]

    def refuse(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        path, method = request.url.path[:200], request.method
        headers: dict[str, Any] = dict(error.headers or {})
        if error.status_code == 405:
            allowed = headers.get("Allow", "GET")
            wrong = WrongMethod(
                f"{path} does not answer {method}.",
                field="method",
                got=method,
                hint=f"It answers {allowed}.",
            )
            return refusal(wrong, 405, headers)
        if page is not None and _wants_page(request):
            return page(request)
        known = of_api if of_api and path.startswith(f"{PREFIX}/") else named
        near = get_close_matches(path, known, n=1, cutoff=0.8)
        said = f"Did you mean {near[0]}?" if near else _listed(known, len(paths))
        absent = NotFound(f"there is nothing at {path}.", field="path", got=path, hint=said)
        return refusal(absent, error.status_code, headers)

    return refuse


def _listed(known: list[str], count: int) -> str:
    plain = sorted(known, key=len)[:MAX_NAMED]
    more = f" and {count - len(plain)} more" * (count > len(plain))
    return f"There is: {', '.join(plain)}{more}."


def _wants_page(request: Request) -> bool:
    asked = request.headers.get("accept", "")
    return "text/html" in asked and not request.url.path.startswith("/api/")


class Bounded:
    """Refuses requests beyond `MAX_REQUESTS` at a time. Streams have a bound of their own, and so has waiting."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._busy = {False: 0, True: 0}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in STREAMS:
            await self._app(scope, receive, send)
            return
        waits = scope["path"] == WAITS
        most = MAX_WAITING if waits else MAX_REQUESTS
        if self._busy[waits] >= most:
            error = Overloaded(f"{most} requests are being answered.", hint="Try again.")
            await refusal(error)(scope, receive, send)
            return
        self._busy[waits] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._busy[waits] -= 1


METRICS_SECONDS = 0.5
"""How old the text of the metrics may be: it takes milliseconds to make."""
METRICS_TIMEOUT_SECONDS = 5.0
SESSIONS_SECONDS = 2.0
"""How old the list of sessions that delay the store may be."""


OPEN_RUNS_SECONDS = 2.0
"""How old the numbers of runs by state may be: counting a long queue takes milliseconds."""


class App:
    def __init__(
        self,
        core: Core,
        engine: Engine,
        since: int,
        *,
        demand: bool,
        api: bool = False,
        options: HttpOptions | None = None,
    ) -> None:
        """`since`: the start of the process, in the store's time; `demand`, `api`: whether it has those routes."""
        self._engine = engine
        reached = options or HttpOptions()
        tokens = api and reached.auth == "tokens"
        self._access: Access = (
            TokenAccess(core, reached.allowed_hosts) if tokens else LoopbackAccess()
        )
        self._guarded = tokens
        self._held_up = Fresh(engine.store.held_up, SESSIONS_SECONDS)
        self._open_runs = Fresh(engine.store.open_runs, OPEN_RUNS_SECONDS)
        self._health = HealthAnswers(engine, since, self._held_up)
        self._demand = DemandAnswers(engine)
        self._exposition = Exposition(engine.metrics, may_lead=engine.election is not None)
        self._metrics = Fresh(self._text, METRICS_SECONDS)
        self._groups = SubmitGroups(core)
        self._followers = Followers(core)
        self._readings = SharedReadings(core)
        self._timelines = Timelines()
        page: Callable[[Request], Response] | None = None
        endpoints: dict[str, dict[str, Endpoint]] = {
            "/health": {"GET": guarded(self.health)},
            "/ready": {"GET": guarded(self.ready)},
            "/metrics": {"GET": guarded(self.metrics)},
        }
        if api:
            made = Api(
                core,
                self._access,
                self._groups,
                self._followers,
                self._health,
                self._demand,
                self._timelines,
            )
            for route in TABLE:
                found = endpoints.setdefault(f"{PREFIX}{route.path}", {})
                found[route.method] = endpoint(made, route)
            for path, methods in login_routes(self._access, login_form).items():
                endpoints[path] = {name: guarded(each) for name, each in methods.items()}
            for path, (body, kind, headers) in _documents().items():
                endpoints[path] = {"GET": guarded(_fixed(made, body, kind, headers))}
            endpoints |= ui_endpoints(made, self._readings)
            page = partial(missing, made)
        elif demand:
            endpoints[DEMAND] = {"GET": guarded(self.demand)}
        routing = Starlette(
            routes=[
                Route(path, _by_method(methods), methods=[*methods])
                for path, methods in endpoints.items()
            ],
            exception_handlers={HTTPException: refusing(list(endpoints), page)},
        )
        routing.router.redirect_slashes = False
        identified = Identified(routing, self._access) if tokens else routing
        self.asgi: ASGIApp = Bounded(Forwarded(identified, reached.proxies))

    async def stop_streams(self) -> None:
        """Ends the connections that follow events: they would last."""
        await self._followers.close()
        await self._readings.feed.close()

    async def close(self) -> None:
        await self._groups.close()
        await self._readings.close()
        await self._timelines.close()
        await self._access.close()
        for each in (self._health, self._demand, self._metrics, self._held_up, self._open_runs):
            await each.close()

    async def health(self, _request: Request) -> Response:
        found, fit = await self._health.answer()
        return answer(self._seen(found), 200 if fit else 503)

    def _seen(self, found: Health) -> Health:
        """With tokens `/api/v1/health` has the names, for those who may read."""
        return public_health(found) if self._guarded else found

    async def ready(self, _request: Request) -> Response:
        found, fit = await self._health.answer()
        return answer(self._seen(found), 200 if fit and found.leader is not None else 503)

    async def metrics(self, request: Request) -> Response:
        if self._guarded:
            # Tag values are labels there.
            check_tenant(who_asks(self._access, request, "read"), "none")
        return raw(await self._metrics.get(METRICS_TIMEOUT_SECONDS), CONTENT_TYPE)

    async def demand(self, _request: Request) -> Response:
        return answer(await self._demand.answer())

    async def _text(self) -> bytes:
        store = self._engine.store
        self._exposition.stale_writes = await store.stale_writes()
        self._exposition.listener_replaced = getattr(store, "listener_replaced", 0)
        # A store that is away says nothing new; the other numbers are this process's own.
        with suppress(StoreError, TimeoutError):
            self._exposition.held_up = await self._held_up.get(STORE_SECONDS)
            if self._engine.election is not None:
                await self._read_open_runs(store)
        self._exposition.rejections = store.rejections.by_rule
        self._exposition.refresh()
        return await asyncio.to_thread(self._exposition.text)

    async def _read_open_runs(self, store: Store) -> None:
        exposition = self._exposition
        exposition.open_runs = await self._open_runs.get(STORE_SECONDS)
        limits, _ = await store.limits()
        exposition.max_active, exposition.now = limits.max_active, await store.now()


def _documents() -> dict[str, tuple[Callable[[], bytes], str, Mapping[str, str]]]:
    """What describes the API, the same for everyone: made when it is first asked for."""
    return {
        f"{PREFIX}/openapi.json": (openapi.encoded, "application/json", {}),
        "/api/docs": (docs_page.page, "text/html; charset=utf-8", docs_page.HEADERS),
        "/api/docs.css": (lambda: docs_page.STYLE, "text/css; charset=utf-8", {}),
    }


def _fixed(api: Api, body: Callable[[], bytes], kind: str, headers: Mapping[str, str]) -> Endpoint:
    async def call(request: Request) -> Response:
        who_asks(api.access, request, "public")
        return raw(body(), kind, 200, headers)

    return call


def _by_method(methods: Mapping[str, Endpoint]) -> Endpoint:
    async def call(request: Request) -> Response:
        found = methods.get(request.method) or methods["GET"]  # HEAD is answered as GET
        return await found(request)

    return call
