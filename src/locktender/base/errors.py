"""Errors with stable codes. Each says what, which and what next, as `{code, message, field, got, hint}`."""

from __future__ import annotations

import math
import re
from typing import Any, ClassVar, Final, cast

MAX_SHOWN: Final = 100
"""Characters of a wrong value that are worth showing in a line of text."""
_ENDS = (".", "!", "?", "…", ":")


class LocktenderError(Exception):
    """Base of every error a user can catch from `locktender`."""

    code: ClassVar[str] = "error"

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        got: object = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.got = got
        self.hint = hint

    def __str__(self) -> str:
        """In one line: a message of another library may end without a full stop."""
        if not self.hint:
            return self.message
        stop = "" if self.message.endswith(_ENDS) else "."
        return f"{self.message}{stop} {self.hint}"

    def shown_got(self) -> str:
        """What was given, where there is something and the message does not say it already; else ''."""
        if self.got is None:
            return ""
        try:
            shown, plain = repr(self.got), str(self.got)
        except Exception:  # noqa: BLE001 — a user's object may do anything when it is shown
            return ""
        several: dict[object, object] = {}
        if issubclass(type(self.got), dict):  # each of them may be named by itself
            several = cast("dict[object, object]", self.got)
        plainly = [str(each) for each in several.values()] or [plain]
        contained = [
            all(_stands_in(each, self.message) for each in forms) for forms in ([shown], plainly)
        ]
        return "" if any(contained) else shown

    def as_dict(self) -> dict[str, Any]:
        """The form the CLI (`--json`) and the API show."""
        return {
            "code": self.code,
            "message": self.message,
            "field": self.field,
            "got": None if self.got is None else repr(self.got)[:200],
            "hint": self.hint,
        }


def _stands_in(text: str, message: str) -> bool:
    """As a word of its own: the 1 in 100 is not the 1 that was given."""
    return bool(text) and re.search(rf"(?<!\w){re.escape(text)}(?!\w)", message) is not None


class InvalidInput(LocktenderError):
    """A value that can never be right; nothing was stored."""

    code = "invalid_input"

    def __str__(self) -> str:
        """With the value, if it is short: part of a secret in a long one would not be found and hidden."""
        got = self.shown_got()
        if not got or len(got) > MAX_SHOWN:
            return super().__str__()
        stop = "" if self.message.endswith(_ENDS) else "."
        text = f"{self.message}{stop} Got {got}."
        return f"{text} {self.hint}" if self.hint else text


class WaitOver(InvalidInput):
    """The wait that a token answers has ended; `state` is the state of its run."""

    code = "wait_over"
    state: str = ""

    def as_dict(self) -> dict[str, Any]:
        """With the state."""
        return {**super().as_dict(), "state": self.state}


class InvalidFlow(InvalidInput):
    """A flow whose graph cannot run: a cycle, an unknown dependency, a window of 0 …"""

    code = "invalid_flow"


class InvalidSettings(InvalidInput):
    """Settings that contradict each other, or an unknown key."""

    code = "invalid_settings"


class Unserialisable(InvalidInput):
    """An argument or a result that has no JSON form."""

    code = "unserialisable"


class InvalidResult(InvalidInput):
    """A step returned what its return annotation rules out."""

    code = "invalid_result"


class ArgumentMismatch(InvalidInput):
    """A stored argument does not fit the class that its annotation names, which may have changed."""

    code = "argument_mismatch"


class NotFound(LocktenderError):
    """No such run, task, pool, flow or worker."""

    code = "not_found"


class StateConflict(InvalidInput):
    """The present state does not allow it; `state` is that state."""

    code = "conflict"

    def __init__(
        self, message: str, *, state: str = "", run: str | None = None, **details: Any
    ) -> None:
        super().__init__(message, **details)
        self.state = state
        self.run = run

    def as_dict(self) -> dict[str, Any]:
        """With the state, and the run where another one is meant than the path names."""
        shown = {**super().as_dict(), "state": self.state}
        return shown if self.run is None else {**shown, "run": self.run}


class AccessRefused(LocktenderError):
    """A server refused the request: no token or an unknown one (401), or one that may not do this (403)."""

    code = "access_refused"
    status: int = 403


class AdmissionRejected(LocktenderError):
    """The admission ceiling is reached; nothing was stored. Try again after `retry_after` seconds.

    `retry_after` is `math.inf` where trying again never helps: more runs were
    submitted together, all or none, than the ceiling allows in all. As JSON it
    is null then.

    Where several runs were to be tried again, those that fit are queued all the
    same: `retried` and `refused` say which.
    """

    code = "admission_rejected"
    retried: tuple[str, ...] = ()
    """Ids of the runs that are queued again."""
    refused: tuple[str, ...] = ()
    """Ids of those that are not."""

    def __init__(self, message: str, *, retry_after: float, **details: Any) -> None:
        super().__init__(message, **details)
        self.retry_after = retry_after

    @property
    def never(self) -> bool:
        """Trying the same again cannot help, however late."""
        return math.isinf(self.retry_after)

    def as_dict(self) -> dict[str, Any]:
        """The form the CLI (`--json`) and the API show, with `retry_after`."""
        shown = {**super().as_dict(), "retry_after": None if self.never else self.retry_after}
        if self.refused:
            shown |= {"retried": list(self.retried), "refused": list(self.refused)}
        return shown


class DuplicateKey(LocktenderError):
    """An active run holds this key and the submission may not attach to it."""

    code = "duplicate_key"
    retried: tuple[str, ...] = ()
    """Where several runs were to be tried again: those that are queued again."""
    refused: tuple[str, ...] = ()
    """And those that are not."""

    def as_dict(self) -> dict[str, Any]:
        """The form the CLI (`--json`) and the API show, with what was tried again."""
        shown = super().as_dict()
        if self.refused:
            shown |= {"retried": list(self.retried), "refused": list(self.refused)}
        return shown


class RunFailed(LocktenderError):
    """`result()` of a run that ended failed."""

    code = "run_failed"
    run_id: str = ""
    step: str | None = None
    """The step that failed, as the flow names it; None where no step is to blame."""
    error_type: str | None = None
    """The class of the exception, or one of ours: `capacity`, `queue_timeout`, `worker_lost` …"""
    error_message: str = ""
    traceback: str | None = None
    """As text, from the worker."""


class RunCancelled(RunFailed):
    """`result()` of a run that was cancelled."""

    code = "run_cancelled"


class RunTimedOut(RunFailed):
    """`result()` of a run that passed its deadline."""

    code = "run_timed_out"


class WaitTimeout(LocktenderError):
    """The caller's timeout passed; the run goes on."""

    code = "wait_timeout"


class LeaseLost(LocktenderError):
    """Slots held by `slots()` are no longer ours: stop what they protect."""

    code = "lease_lost"


class NotLeader(LocktenderError):
    """A write of a leader whose term has ended; it changed nothing."""

    code = "not_leader"


class LimitChanged(LocktenderError):
    """The limit is not what the caller expected: another client changed it meanwhile."""

    code = "limit_changed"


class StoreError(LocktenderError):
    """The store cannot be opened or written: schema, permissions, corruption, a full disk."""

    code = "store"


class HistoryReplaced(StoreError):
    """The history is not the one that was followed: another server answers, or an older copy was restored."""

    code = "history_replaced"


class UnreadableRow(LocktenderError):
    """A stored row has a value that no release has written."""

    code = "unreadable"


class DataRefused(StoreError):
    """The store refused a value: too large, not text, against a constraint. The same write never succeeds."""

    code = "data_refused"


class OutOfOrder(StoreError):
    """A commit came before the one it follows was written."""

    code = "out_of_order"


class StoreUnreachable(StoreError):
    """Nothing answers where the store should be: it may be starting, or the network is down."""

    code = "store_unreachable"


class StoreBusy(StoreError):
    """Another process holds the file's write lock for too long."""

    code = "store_busy"


class RoleRefused(StoreError):
    """The database role of this process may not do that. Nothing was stored."""

    code = "role_refused"


class SchemaTooNew(StoreError):
    """The file was written by a newer locktender than this one."""

    code = "schema_too_new"
