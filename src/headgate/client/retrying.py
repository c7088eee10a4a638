"""Queueing ended runs again, and what it means when that is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.base.errors import AdmissionRejected, DuplicateKey, HeadgateError, InvalidInput
from headgate.client.core import Core
from headgate.client.repeating import repeated
from headgate.client.submission import wait_at, way_in
from headgate.store.protocol import Submitted


async def retry_runs(core: Core, ids: Sequence[str]) -> None:
    """Raises the first refusal; the others of `ids` are queued all the same."""
    before = {each: (await core.row(each)).generation for each in ids}
    tried = False

    async def queue() -> dict[str, Submitted]:
        nonlocal tried
        left = await _untouched(core, before) if tried else list(before)
        tried = True
        answers = await core.store.retry(left) if left else []
        return dict(zip(left, answers, strict=True))

    answers = await repeated(core, queue, "a retry of runs")
    core.changed()
    for run_id, answer in answers.items():
        error = _refusal(run_id, answer)
        if error is not None:
            raise error


async def _untouched(core: Core, before: Mapping[str, int]) -> list[str]:
    """Those that no lost call has queued. One that was may have ended since: again would be once too often."""
    return [each for each, was in before.items() if (await core.row(each)).generation == was]


def _refusal(run_id: str, answer: Submitted) -> HeadgateError | None:
    match answer.outcome:
        case "finished":
            return InvalidInput(
                f"run {run_id} succeeded: there is nothing to try again.",
                field="run",
                got=run_id,
                hint="Submit the flow again for another run.",
            )
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
        case "created" | "attached":
            return None
