"""Running one body from its call to its outcome, in a thread or in a child process."""

from __future__ import annotations

import asyncio
from types import CoroutineType
from typing import Any

from locktender.base.clock import SystemClock
from locktender.base.errors import InvalidResult
from locktender.base.secrets import MARK, reveal
from locktender.observe import tracing
from locktender.worker.executors import failures
from locktender.worker.executors.protocol import CURRENT, Attempt, Outcome

_clock = SystemClock()


def perform(attempt: Attempt, max_result: int | None) -> Outcome:
    """Decode, call, encode. Never raises: even SystemExit is only a way for a body to fail."""
    enter(attempt)
    step = attempt.step
    try:
        args, kwargs = step.decode_call(opened(attempt))
    except BaseException as error:  # noqa: BLE001 — validators of the user's own types run here
        return Outcome("failed", failure=failures.bad_call(error))
    try:
        value = step.fn(*args, **kwargs)
        if isinstance(value, CoroutineType):
            value = asyncio.run(_awaited(value))  # pyright: ignore[reportUnknownArgumentType]
    except BaseException as error:  # noqa: BLE001 — a body must not end the worker
        if is_late(attempt):
            return too_late(attempt)
        return Outcome("failed", failure=failures.of_exception(error, step.retry_on))
    return too_late(attempt) if is_late(attempt) else encoded(attempt, value, max_result)


def enter(attempt: Attempt) -> None:
    """From here on this context is the body's."""
    CURRENT.set(attempt)
    if attempt.span is not None:
        tracing.enter(attempt.span)


def opened(attempt: Attempt) -> bytes:
    """The call with the values of its secrets, which the attempt itself never holds."""
    if MARK not in attempt.call or not getattr(attempt.step, "opens_secrets", True):
        return attempt.call
    call, attempt.redact = reveal(attempt.call)
    return call


def is_late(attempt: Attempt) -> bool:
    """Whether its body ended after its timeout. The timer on the loop may be late, or even come after the
    end, while something holds the loop: asked where the body has ended, at that moment."""
    return attempt.deadline_us is not None and _clock.monotonic() >= attempt.deadline_us


def too_late(attempt: Attempt) -> Outcome:
    failure = failures.timed_out(attempt.timeout_us, attempt.step.retry_on)
    return Outcome("timed_out", failure=failure, reason="timeout")


def encoded(attempt: Attempt, value: object, max_result: int | None) -> Outcome:
    """A result as it is stored, or why it cannot be."""
    try:
        raw = attempt.step.encode_result(value)
    except InvalidResult as error:
        return Outcome("failed", failure=failures.invalid_result(error))
    except BaseException as error:  # noqa: BLE001 — encoders of the user's own types run here
        return Outcome("failed", failure=failures.unserialisable(error))
    if max_result is not None and len(raw) > max_result:
        return Outcome("failed", failure=failures.too_large(len(raw), max_result))
    if attempt.redact is not None and attempt.redact.finds(raw):
        return Outcome("failed", failure=failures.secret_in_result(attempt.redact.references))
    return Outcome("completed", raw)


async def _awaited(value: CoroutineType[Any, Any, Any]) -> Any:
    return await value
