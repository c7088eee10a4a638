"""An answer that refuses, as the error that the same verb raises over a store."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from locktender.base.errors import (
    AccessRefused,
    AdmissionRejected,
    DuplicateKey,
    InvalidInput,
    LimitChanged,
    LocktenderError,
    NotFound,
    RunFailed,
    StateConflict,
    StoreBusy,
    StoreError,
    StoreUnreachable,
)

_BY_STATUS: dict[int, type[LocktenderError]] = {
    401: AccessRefused,
    403: AccessRefused,
    404: NotFound,
    412: LimitChanged,
    500: StoreError,
    502: StoreUnreachable,
    503: StoreUnreachable,
    504: StoreUnreachable,
}
_BY_CODE: dict[str, type[LocktenderError]] = {"overloaded": StoreBusy}
MAX_SHOWN = 200


def error_of(status: int, body: bytes, where: str) -> LocktenderError:
    """The error that an answer tells of. `where`: the server, for an answer that is not one of ours."""
    try:
        found = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError:
        found = {}
    if not isinstance(found.get("code"), str) or not isinstance(found.get("message"), str):
        return _foreign(status, body, where)
    return from_fault(found, status)


def from_fault(fault: Mapping[str, Any], status: int = 422) -> LocktenderError:
    """The error of `{code, message, field, got, hint}`."""
    code: str = fault["code"]
    kind = _kind(code, status)
    details: dict[str, Any] = {
        "field": fault.get("field"),
        "got": fault.get("got"),
        "hint": fault.get("hint"),
    }
    message: str = fault["message"]
    if issubclass(kind, AdmissionRejected):
        after: float | None = fault.get("retry_after")
        error: LocktenderError = kind(
            message, retry_after=math.inf if after is None else after, **details
        )
    else:
        error = kind(message, **details)
    if isinstance(error, AdmissionRejected | DuplicateKey):
        error.retried, error.refused = (
            tuple(fault.get("retried") or ()),
            tuple(fault.get("refused") or ()),
        )
    if isinstance(error, AccessRefused):
        error.status = status
    if isinstance(error, StateConflict):
        error.state, error.run = fault.get("state") or "", fault.get("run")
    if isinstance(error, RunFailed):
        _describe(error, fault)
    if error.code != code:
        error.code = code  # type: ignore[misc]
    return error


def _describe(error: RunFailed, fault: Mapping[str, Any]) -> None:
    error.run_id = fault.get("run") or ""
    error.step = fault.get("step") or None
    error.error_type = fault.get("error_type") or None
    error.error_message = fault.get("error_message") or ""
    error.traceback = fault.get("traceback") or None
    if error.traceback:
        error.add_note(f"In the worker:\n{error.traceback.rstrip()}")


def _kind(code: str, status: int) -> type[LocktenderError]:
    if status in (401, 403):
        return AccessRefused
    known = _BY_CODE.get(code) or next((each for each in _errors() if each.code == code), None)
    return known or _BY_STATUS.get(status, InvalidInput)


def _errors(kind: type[LocktenderError] = LocktenderError) -> Iterator[type[LocktenderError]]:
    """Every class of error that is loaded here, the plainest first."""
    for each in kind.__subclasses__():
        if "code" in vars(each):
            yield each
        yield from _errors(each)


def _foreign(status: int, body: bytes, where: str) -> LocktenderError:
    text = body[:MAX_SHOWN].decode(errors="replace").strip()
    if status in (401, 403, 502, 503, 504):
        return _BY_STATUS[status](
            f"{where} answered {status}.", got=text or None, hint="A proxy before it may say so."
        )
    return StoreUnreachable(
        f"{where} answered {status}, and not as a locktender server does.",
        field="url",
        got=text or None,
        hint="Is this the address of `locktender server`?",
    )
