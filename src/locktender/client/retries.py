"""Ended runs are queued again: one, several, or all that match a filter, a page in one transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from locktender.base.errors import AdmissionRejected, DuplicateKey, InvalidInput, LocktenderError
from locktender.base.model import RunRow
from locktender.base.states import RunState
from locktender.client.core import Core
from locktender.client.pauses import resume_runs
from locktender.client.refusals import wait_at, way_in
from locktender.store.protocol import Submitted
from locktender.store.retry import repeated

PAGE = 500
"""Runs that are queued in one transaction."""
MAX_SHOWN = 5


async def retry_runs(core: Core, rows: Sequence[RunRow], again: Sequence[int] = ()) -> None:
    """Queues all that may be; raises the first refusal, which names all of them.

    A run that succeeded is refused before any of the others is queued, unless nodes of it run `again`.
    """
    for row in rows:
        if row.state == RunState.SUCCEEDED and not again:
            raise _finished(row.id)
    refused: dict[str, LocktenderError] = {}
    for start in range(0, len(rows), PAGE):
        refused |= await _retry_rows(core, rows[start : start + PAGE], again)
    if refused:
        raise _first_refusal([row.id for row in rows], refused)


async def retry_slices(core: Core, slices: AsyncIterator[list[RunRow]]) -> list[str]:
    """Queues all of each slice before the next is read; their ids. Raises as `retry_runs` does."""
    several: list[str] = []
    refused: dict[str, LocktenderError] = {}
    async for rows in slices:
        several += [row.id for row in rows]
        refused |= await _retry_rows(core, rows, ())
    if refused:
        raise _first_refusal(several, refused)
    return several


async def _retry_rows(
    core: Core, rows: Sequence[RunRow], again: Sequence[int]
) -> dict[str, LocktenderError]:
    await resume_runs(core, rows)  # the pause of an ended run stands for a few seconds
    refused = await _retry_page(core, {row.id: row.generation for row in rows}, again)
    core.changed()
    return refused


async def _retry_page(
    core: Core, before: Mapping[str, int], again: Sequence[int]
) -> dict[str, LocktenderError]:
    """Those of one transaction that were refused, and why."""
    tried = False

    async def queue() -> dict[str, Submitted]:
        nonlocal tried
        left = await _untouched(core, before) if tried else list(before)
        tried = True
        answers = await core.store.retry(left, again, core.who) if left else []
        return dict(zip(left, answers, strict=True))

    answers = await repeated(queue, "a retry of runs", core.clock, core.guard.check)
    errors = {run_id: _refusal(run_id, answer) for run_id, answer in answers.items()}
    return {run_id: error for run_id, error in errors.items() if error is not None}


async def _untouched(core: Core, before: Mapping[str, int]) -> list[str]:
    """Those that no lost call has queued. One that was may have ended since: again would be once too often."""
    return [each for each, was in before.items() if (await core.row(each)).generation == was]


def _first_refusal(
    several: Sequence[str], refused: Mapping[str, LocktenderError]
) -> LocktenderError:
    """The first refusal; of several runs, with how many were queued and which were not."""
    error = next(iter(refused.values()))
    if len(several) == 1:
        return error
    retried = tuple(each for each in several if each not in refused)
    shown = ", ".join(list(refused)[:MAX_SHOWN]) + (", …" if len(refused) > MAX_SHOWN else "")
    queued = "1 run is" if len(retried) == 1 else f"{len(retried):,} runs are"
    error.message = f"{queued} queued again, {len(refused):,} not ({shown}): {error.message}"
    error.args = (error.message,)
    if isinstance(error, AdmissionRejected | DuplicateKey):
        error.retried, error.refused = retried, tuple(refused)
    return error


def _finished(run_id: str) -> InvalidInput:
    return InvalidInput(
        f"run {run_id} succeeded: there is nothing to try again.",
        field="run",
        got=run_id,
        hint="Begin at one of its steps (from_step=…, --from), or submit the flow again.",
    )


def _refusal(run_id: str, answer: Submitted) -> LocktenderError | None:
    match answer.outcome:
        case "finished":
            return _finished(run_id)
        case "duplicate":
            return DuplicateKey(
                f"run {run_id} cannot be tried again: its key belongs to the active run {answer.id}.",
                field="run",
                got=run_id,
                hint="Wait for that run, or cancel it.",
            )
        case "rejected":
            return AdmissionRejected(
                f"run {run_id} cannot be tried again now: the ceiling {answer.ceiling} is reached"
                f" ({answer.active:,} of {answer.limit:,} runs are active).",
                retry_after=wait_at(answer),
                field=answer.ceiling,
                got=answer.active,
                hint=way_in(answer),
            )
        case "in_flight":
            return InvalidInput(
                f"run {run_id} is held, and {answer.active:,} attempts of it have not ended.",
                field="run",
                got=run_id,
                hint="Try again when they have ended, or cancel the run.",
            )
        case "created" | "attached":
            return None
