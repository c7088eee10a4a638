"""Answers as JSON, and errors as answers: `{code, message, field, got, hint}` with a status."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from locktender.base.errors import (
    AdmissionRejected,
    DuplicateKey,
    InvalidInput,
    LimitChanged,
    LocktenderError,
    NotFound,
    RunFailed,
    StateConflict,
    StoreError,
    WaitOver,
)

log: logging.Logger = logging.getLogger(__name__)
HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
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


class Malformed(InvalidInput):
    """The request cannot be read: no JSON, or a header that says nothing."""

    code = "malformed"


class TooLarge(InvalidInput):
    """The body is larger than anything that would be stored."""

    code = "too_large"


class UnsupportedType(InvalidInput):
    """The body is not plain JSON."""

    code = "unsupported_media_type"


class Unauthorized(LocktenderError):
    """The request has no token that this server knows."""

    code = "unauthorized"


class Forbidden(LocktenderError):
    """This request is not allowed."""

    code = "forbidden"


class Overloaded(LocktenderError):
    """More at once than this server answers."""

    code = "overloaded"


STATUSES: dict[type[LocktenderError], int] = {
    Malformed: 400,
    Unauthorized: 401,
    Forbidden: 403,
    NotFound: 404,
    WrongMethod: 405,
    StateConflict: 409,
    DuplicateKey: 409,
    WaitOver: 409,
    RunFailed: 409,
    LimitChanged: 412,
    TooLarge: 413,
    UnsupportedType: 415,
    InvalidInput: 422,
    AdmissionRejected: 429,
    Broken: 500,
    Unanswered: 503,
    Overloaded: 503,
}
RETRY_SECONDS = 1
MAX_GOT = 200


class Fault(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An error: what, which and what next."""

    code: str
    """Stable: for programs."""
    message: str
    field: str | None
    got: Any
    """What was sent, as JSON; of a long value the beginning of its text."""
    hint: str | None
    state: str = ""
    """With 409: the present state of the run."""
    run: str = ""
    """With 409: the run that has the key."""
    retry_after: float | None = None
    """With 429, in seconds."""
    retried: list[str] = []
    refused: list[str] = []
    step: str = ""
    """Of a run that failed: the step that did, as the flow names it."""
    error_type: str = ""
    error_message: str = ""
    traceback: str = ""
    """As the worker wrote it."""


def answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return raw(msgspec.json.encode(value), "application/json", status, headers)


def raw(
    body: bytes, media_type: str, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(body, status, {**HEADERS, **(headers or {})}, media_type)


def status_of(error: LocktenderError) -> int:
    if isinstance(error, AdmissionRejected) and error.never:
        return 422  # the same request never fits: 429 would be tried again for ever
    known = (STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)
    return next(known, 422)


def refusal(
    error: LocktenderError, status: int | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    found = status_of(error) if status is None else status
    given = dict(headers or {})
    if isinstance(error, AdmissionRejected) and not error.never:
        given["retry-after"] = str(max(1, math.ceil(error.retry_after)))
    elif found == 401:
        given.setdefault("www-authenticate", 'Bearer realm="locktender"')
    elif found == 503:
        given.setdefault("retry-after", str(RETRY_SECONDS))
    return answer(fault_of(error), found, given)


def fault_of(error: LocktenderError) -> dict[str, Any]:
    """As JSON: what was sent is shown as it was sent."""
    return {**error.as_dict(), "got": _sent(error.got)}


def _sent(value: object) -> Any:
    try:
        text = msgspec.json.encode(value).decode()
    except (
        msgspec.MsgspecError,
        TypeError,
        ValueError,
    ):  # no JSON: half a character, a type of ours
        return repr(value)[:MAX_GOT]
    return value if len(text) <= MAX_GOT else f"{text[:MAX_GOT]}…"


def guarded(endpoint: Endpoint) -> Endpoint:
    """`endpoint`, whose every failure is an answer too."""

    @wraps(endpoint)
    async def call(request: Request) -> Response:
        try:
            return await endpoint(request)
        except TimeoutError:
            return refusal(Unanswered("the store does not answer.", hint="Try again; see /health."))
        except StoreError as error:
            # The message may name hosts and users: it goes to the log only.
            log.warning("failed to answer %s: %s", request.url.path, error)
            return refusal(
                Unanswered("the store cannot be read.", hint="The server's log says why.")
            )
        except LocktenderError as error:
            return refusal(error)
        except Exception:
            log.exception("failed to answer %s", request.url.path)
            return refusal(Broken("locktender itself failed.", hint="The server's log says why."))

    return call
