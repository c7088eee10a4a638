"""The routes of a server (`/health`, `/metrics`, `/api/v1/demand`) and of a worker (the first two).

Every error is an answer too, as `{code, message, field, got, hint}`, as the command line shows it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import wraps
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from locktender.base.errors import InvalidInput, LocktenderError, NotFound, StoreError
from locktender.engine import Engine
from locktender.observe import prometheus
from locktender.observe.prometheus import Exposition
from locktender.server.state import STORE_SECONDS, DemandAnswers, Fresh, HealthAnswers
from locktender.store.protocol import Store

log: logging.Logger = logging.getLogger(__name__)
_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
Endpoint = Callable[[Request], Awaitable[Response]]


class WrongMethod(InvalidInput):
    """The path is right, what was to be done with it is not."""

    code = "method_not_allowed"


class Unanswered(LocktenderError):
    """The store did not answer in time."""

    code = "unavailable"


class Broken(LocktenderError):
    """A fault of our own."""

    code = "internal"


def answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    body = msgspec.json.encode(value)
    return raw(body, "application/json", status, headers)


def raw(
    body: bytes, media_type: str, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(body, status, {**_HEADERS, **(headers or {})}, media_type)


def refusal(
    error: LocktenderError, status: int, headers: Mapping[str, str] | None = None
) -> Response:
    return answer(error.as_dict(), status, headers)


def guarded(endpoint: Endpoint) -> Endpoint:
    """`endpoint`, whose every failure is an answer too."""

    @wraps(endpoint)
    async def call(request: Request) -> Response:
        try:
            return await endpoint(request)
        except TimeoutError:
            error = Unanswered("the store does not answer.", hint="Try again; see /health.")
            return refusal(error, 503, {"retry-after": "1"})
        except StoreError as error:
            # The message may name hosts and users: it goes to the log only.
            log.warning("failed to answer %s: %s", request.url.path, error)
            short = Unanswered("the store cannot be read.", hint="The server's log says why.")
            return refusal(short, 503, {"retry-after": "1"})
        except LocktenderError as error:
            return refusal(error, 400)
        except Exception:
            log.exception("failed to answer %s", request.url.path)
            return refusal(
                Broken("locktender itself failed.", hint="The server's log says why."), 500
            )

    return call


def refusing(paths: list[str]) -> Callable[[Request, Exception], Response]:
    """The answer to an unknown path; `paths` are the known ones."""
    hint = f"There is: {', '.join(paths)}."

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
        missing = NotFound(f"there is nothing at {path}.", field="path", got=path, hint=hint)
        return refusal(missing, error.status_code, headers)

    return refuse


METRICS_SECONDS = 0.5
"""How old the text of the metrics may be: it takes milliseconds to make."""
METRICS_TIMEOUT_SECONDS = 5.0
SESSIONS_SECONDS = 2.0
"""How old the list of sessions that delay the store may be."""


OPEN_RUNS_SECONDS = 2.0
"""How old the numbers of runs by state may be: counting a long queue takes milliseconds."""


class App:
    def __init__(self, engine: Engine, since: int, *, demand: bool) -> None:
        """`since`: the start of the process, in the store's time; `demand`: whether it has that route."""
        self._engine = engine
        self._held_up = Fresh(engine.store.held_up, SESSIONS_SECONDS)
        self._open_runs = Fresh(engine.store.open_runs, OPEN_RUNS_SECONDS)
        self._health = HealthAnswers(engine, since, self._held_up)
        self._demand = DemandAnswers(engine)
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
        for each in (self._health, self._demand, self._metrics, self._held_up, self._open_runs):
            await each.close()

    async def health(self, _request: Request) -> Response:
        found, fit = await self._health.answer()
        return answer(found, 200 if fit else 503)

    async def metrics(self, _request: Request) -> Response:
        return raw(await self._metrics.get(METRICS_TIMEOUT_SECONDS), prometheus.CONTENT_TYPE)

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
