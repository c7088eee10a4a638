"""Answers as JSON; every error as `{code, message, field, got, hint}`, as the command line shows it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from locktender.base.errors import InvalidInput, LocktenderError, NotFound, StoreError

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
            # What it says may name hosts and users: that is for the log.
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
