"""How an attempt ended badly, in words a user can act on."""

from __future__ import annotations

import os
import signal
import traceback
from pathlib import Path
from types import TracebackType

from locktender.base.durations import spoken
from locktender.base.errors import ArgumentMismatch
from locktender.base.limits import MAX_VALUE_BYTES
from locktender.base.model import Failure
from locktender.base.secrets import MissingSecret
from locktender.flows.steps import Fatal, Retry
from locktender.worker.executors.protocol import CURRENT

MAX_TRACEBACK = 16_000
MAX_MESSAGE = 4_000
MAX_NAME = 200

_OURS = str(Path(__file__).parent) + os.sep


def of_exception(error: BaseException, retry_on: tuple[type[BaseException], ...] | None) -> Failure:
    """An error of the body. `retry_on` None: any may be retried. `Retry` and `Fatal` come first."""
    if isinstance(error, Retry):
        retryable = True
    elif isinstance(error, Fatal):
        retryable = False
    else:
        retryable = retry_on is None or isinstance(error, retry_on)
    return Failure(
        type=name_of(error),
        message=message_of(error),
        traceback=traceback_of(error),
        retryable=retryable,
        retry_after_us=error.after_us if isinstance(error, Retry) else None,
    )


def timed_out(timeout_us: int | None, retry_on: tuple[type[BaseException], ...] | None) -> Failure:
    limit = "its timeout" if timeout_us is None else f"its timeout of {spoken(timeout_us)}"
    return Failure(
        type="timeout",
        message=f"the step ran longer than {limit}",
        retryable=retry_on is None or any(issubclass(TimeoutError, each) for each in retry_on),
    )


def bad_call(error: BaseException) -> Failure:
    if isinstance(error, MissingSecret | ArgumentMismatch):
        return Failure(type=error.code, message=message_of(error), retryable=False)
    return Failure(
        type="invalid_arguments",
        message=message_of(error),
        traceback=traceback_of(error),
        retryable=False,
    )


def not_importable(error: BaseException) -> Failure:
    return Failure(type="step_not_importable", message=message_of(error), retryable=False)


def unserialisable(error: BaseException) -> Failure:
    return Failure(
        type="unserialisable_result",
        message=message_of(error),
        retryable=False,
    )


def invalid_result(error: BaseException) -> Failure:
    return Failure(type="invalid_result", message=message_of(error), retryable=False)


def too_large(size: int, limit: int) -> Failure:
    return Failure(
        type="result_too_large",
        message=f"the result has {size:,} bytes of JSON; at most {limit:,} are kept (max_value"
        f"{', a default' if limit == MAX_VALUE_BYTES else ''}). Write it to a file or an object store"
        " and return its address, or raise the worker's setting max_value.",
        retryable=False,
    )


def secret_in_result(references: tuple[str, ...]) -> Failure:
    return Failure(
        type="secret_in_result",
        message=f"the result contains the value of a secret ({', '.join(references)}), and results are"
        " stored. Return what was made with it, not the secret itself.",
        retryable=False,
    )


def crashed(returncode: int, fault: str = "") -> Failure:
    """The child process ended before its task did. Another attempt may fare better. `fault`: why the
    worker itself has killed it."""
    if fault:
        how = f"was ended by its worker: {fault}"
    elif returncode < 0:
        try:
            name = signal.Signals(-returncode).name
        except ValueError:
            name = f"signal {-returncode}"
        how = f"was killed by {name}"
        if returncode == -signal.SIGKILL:
            how += " (out of memory?)"
    else:
        how = f"ended by itself with exit code {returncode}"
    return Failure(type="worker_crashed", message=f"the process that ran the step {how}")


def internal(error: BaseException) -> Failure:
    """An error of our own code: never the user's fault."""
    return Failure(
        type="internal",
        message=_clean(f"internal: {name_of(error)}: {message_of(error)}"),
        traceback=_formatted(error, error.__traceback__),
    )


def name_of(error: BaseException) -> str:
    """A class may be made at run time, named after anything."""
    try:
        return _clean(type(error).__name__, MAX_NAME)
    except BaseException:  # noqa: BLE001 — a metaclass may do anything
        return "Exception"


def message_of(error: BaseException) -> str:
    try:
        return _clean(str(error) or name_of(error))
    except BaseException as broken:  # noqa: BLE001 — a user's __str__ may do anything, even exit
        return f"(its message cannot be shown: {name_of(broken)})"


def traceback_of(error: BaseException) -> str:
    """The user's own frames: what called the body is ours and says nothing to them."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    return _formatted(error, trace)


def _formatted(error: BaseException, trace: TracebackType | None) -> str:
    try:
        text = "".join(traceback.format_exception(type(error), error, trace))
    except BaseException:  # noqa: BLE001 — a user's exception may break the formatting of itself
        text = "".join(traceback.format_tb(trace)) + name_of(error)
    return _clean(text, MAX_TRACEBACK)


def _clean(text: str, most: int = MAX_MESSAGE) -> str:
    """At most `most` bytes, no secret, no half characters, which no encoder takes. The middle is cut out."""
    attempt = CURRENT.get(None)
    if attempt is not None and attempt.redact is not None:
        text = attempt.redact(text)  # before it is cut: half a secret would not be found
    raw = text.encode("utf-8", "backslashreplace")
    if len(raw) > most:
        note = f"\n… {len(raw) - most:,} bytes left out …\n".encode()
        head, tail = most // 4, most - most // 4 - len(note)
        raw = raw[:head] + note + raw[-tail:]
    return raw.decode("utf-8", "ignore")
