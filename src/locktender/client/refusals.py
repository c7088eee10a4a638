"""What a refused submission tells its caller: which ceiling or key, and what to do about it."""

from __future__ import annotations

import math
import shlex

from locktender.base.clock import SECOND
from locktender.base.durations import spoken
from locktender.base.errors import AdmissionRejected, DuplicateKey, WaitTimeout
from locktender.base.jsonable import BLOB_KEY
from locktender.base.model import NewRun
from locktender.store.admission import MAX_ACTIVE, MAX_WAITING
from locktender.store.protocol import Submitted


def refusal(submitted: Submitted, run: NewRun) -> AdmissionRejected | DuplicateKey | None:
    """The error of a submission that was refused; None where it was accepted."""
    if submitted.outcome == "duplicate":
        return _duplicate(submitted, run)
    if submitted.outcome != "rejected":
        return None
    if submitted.ceiling == "duplicate":
        return AdmissionRejected(
            f"run of {run.flow!r} was not submitted because another of the same call was refused.",
            retry_after=0.0,
            field="key",
            hint="All or none were to be taken: use partial=True to take what can be taken.",
        )
    return AdmissionRejected(
        f"{_reached(submitted)}; nothing was stored.",
        retry_after=wait_at(submitted),
        field=submitted.ceiling,
        got=submitted.active,
        hint=way_in(submitted),
    )


def _reached(submitted: Submitted) -> str:
    ceiling, wanted = submitted.ceiling, submitted.wanted
    whose = "" if ceiling in (MAX_ACTIVE, MAX_WAITING) else f" with {ceiling}"
    are = "waiting" if ceiling == MAX_WAITING else "active"
    active, limit = submitted.active, f"{submitted.limit:,}"
    if wanted == 1:
        return f"the ceiling {ceiling} is reached: {active:,} of {limit} runs{whose} are {are}"
    if wanted > submitted.limit:
        return (
            f"{wanted:,} runs{whose} submitted together can never pass the ceiling {ceiling},"
            f" which is {limit}"
        )
    return (
        f"{wanted:,} runs{whose} submitted together do not fit under the ceiling {ceiling} now:"
        f" {active:,} of {limit} are {are}"
    )


def wait_at(submitted: Submitted) -> float:
    """`retry_after` in seconds: infinite where waiting does not help."""
    never = submitted.wanted > submitted.limit
    return math.inf if never else submitted.retry_after_us / SECOND


def way_in(submitted: Submitted) -> str:
    """What to do about a ceiling."""
    rule = submitted.rule or submitted.ceiling
    command = (
        f"locktender limits set {rule} N"
        if rule in (MAX_ACTIVE, MAX_WAITING)
        else f"locktender limits set tag {shlex.quote(rule)} --max-active N"
    )
    if submitted.wanted > submitted.limit:
        return (
            f"Submit at most {submitted.limit:,} at a time, use partial=True to take what fits,"
            f" or raise the ceiling: {command}"
        )
    return f"Try again in {spoken(submitted.retry_after_us)}, or raise the ceiling: {command}"


def _duplicate(submitted: Submitted, run: NewRun) -> DuplicateKey:
    difference = submitted.difference
    if difference == BLOB_KEY:
        difference = "the arguments"  # both large: kept as blobs, of which only the hashes differ
    differs = f" and was submitted with another {difference}" if difference else ""
    return DuplicateKey(
        f"key {run.key!r} belongs to the active run {submitted.id}{differs}.",
        field="key",
        got=run.key,
        hint='Use another key, wait for that run, or on_duplicate="replace" to cancel it.',
    )


def goes_on(run_id: str, state: str, timeout_us: int | None) -> WaitTimeout:
    """The error of a caller whose time to wait ended before the run did."""
    return WaitTimeout(
        f"run {run_id} is still {state} after {spoken(timeout_us or 0)}; it goes on.",
        field="timeout",
        got=None if timeout_us is None else timeout_us / SECOND,
        hint=f"Wait longer, or ask: locktender why {run_id}.",
    )
