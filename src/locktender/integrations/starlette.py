"""A client in a Starlette or FastAPI application: opened with it, given to endpoints, its errors as answers.

    app = FastAPI(lifespan=client_lifespan(), exception_handlers=error_handlers())

    @app.post("/bills", status_code=202)
    async def bill(order: Order, client: Annotated[AsyncClient, Depends(client_of)]):
        ...

FastAPI is not imported here: its dependencies are functions, and its applications are Starlette's.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, cast

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from locktender.base.errors import InvalidInput, LocktenderError, StoreError
from locktender.client.client_async import AsyncClient
from locktender.client.guard import ClientClosed
from locktender.client.open import connect_async, embedded_async
from locktender.server.api.answers import Unanswered, refusal
from locktender.store.open import Url

log: logging.Logger = logging.getLogger(__name__)
NAME = "locktender"
"""Of the client in the state of a request."""
Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]
AnyLifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]]


def client_lifespan(
    url: Url | None = None,
    *,
    engine: bool = False,
    also: AnyLifespan | None = None,
    **settings: Any,
) -> Lifespan:
    """For `Starlette(lifespan=...)` and `FastAPI(...)`: opens a client, and closes it with the application.

    url       as of `connect_async`; default the setting `url`
    engine    True: the application's process also leads and works, as with `embedded_async`; default False
    also      a lifespan of the application itself, inside this one; its state is kept
    settings  with `engine`: those of `embedded_async`

        app = FastAPI(lifespan=client_lifespan("postgresql://app@db/flows"))
    """
    if settings and not engine:
        raise InvalidInput(
            "settings are those of an engine, and engine is False.",
            field=next(iter(settings)),
            hint="Add engine=True, or give them to the server and the workers.",
        )

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncGenerator[Mapping[str, Any]]:
        async with AsyncExitStack() as stack:
            opening = embedded_async(url, **settings) if engine else connect_async(url)
            client = await stack.enter_async_context(opening)
            state = None if also is None else await stack.enter_async_context(also(app))
            yield {**(state or {}), NAME: client}

    return lifespan


def client_of(request: HTTPConnection) -> AsyncClient:
    """The application's client: `client_of(request)` in Starlette, `Depends(client_of)` in FastAPI."""
    found = getattr(request.state, NAME, None)
    if not isinstance(found, AsyncClient):
        raise InvalidInput(
            "this application has opened no client.",
            field="lifespan",
            hint="Give the application lifespan=client_lifespan(). A test client has to be used in a with block.",
        )
    return found


Handler = Callable[[Request, Any], Coroutine[Any, Any, Response]]


def error_handlers() -> dict[Any, Handler]:
    """For `Starlette(exception_handlers=...)` and `FastAPI(...)`: errors of locktender as answers.

    The body is `{code, message, field, got, hint}`, the status as of the HTTP API. `AdmissionRejected` is 429 with
    `Retry-After`, `NotFound` 404, `DuplicateKey` 409, a wrong value 422. A store that does not answer is 503,
    and only the log says why.
    """
    return {LocktenderError: _answered}


async def _answered(request: Request, error: object) -> Response:
    if isinstance(error, StoreError | ClientClosed):
        # The message may name hosts and users.
        log.warning("failed to answer %s: %s", request.url.path, error)
        return refusal(
            Unanswered("the store cannot be used.", hint="The application's log says why.")
        )
    return refusal(cast("LocktenderError", error))
