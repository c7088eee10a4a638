"""Retries that differ from the first try: from one of the steps on, or with other arguments.

From a step on, it is the same run: results of the steps before it are kept. With other arguments no result can be
kept, so that is a new run, and the history of the first one stays true.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from locktender.base.errors import InvalidInput
from locktender.base.model import RunRow
from locktender.base.names import did_you_mean
from locktender.base.states import TERMINAL_RUNS, RunState
from locktender.client.by_name import is_elsewhere, prepare_named
from locktender.client.core import Core
from locktender.client.refusals import refusal
from locktender.client.submission import Submission
from locktender.client.submit import Prepared, prepare, store_runs
from locktender.kernel.rebuild import nodes_from
from locktender.store import blob_values
from locktender.store.graphs import required_graph


async def steps_from(core: Core, run_id: str, step: str) -> Sequence[int]:
    """The node of `step` and all that follow it."""
    row = await core.row(run_id)
    if row.state not in TERMINAL_RUNS and row.state != RunState.HELD:
        raise _active(row)
    graph = await required_graph(core.store, row)
    names = [node.name for node in graph.nodes]
    if step not in names:
        raise InvalidInput(
            f"run {row.id} has no step {step!r}.",
            field="from_step",
            got=step,
            hint=did_you_mean(step, names),
        )
    return sorted(nodes_from(graph, names.index(step)))


def _active(row: RunRow) -> InvalidInput:
    return InvalidInput(
        f"run {row.id} is {row.state}: only a run that has ended can be tried again.",
        field="run",
        got=row.id,
        hint="Wait for it, or cancel it first.",
    )


async def with_args(
    core: Core, run_id: str, args: Mapping[str, Any], from_step: str | None
) -> Prepared:
    """A new run of the same flow: the arguments of the run, with `args` in their place where they are given."""
    if from_step is not None:
        raise InvalidInput(
            "other arguments start from the first step: results of other arguments cannot be kept.",
            field="from_step",
            got=from_step,
            hint="Leave out one of the two.",
        )
    row = await core.row(run_id)
    if row.key is not None and row.state not in TERMINAL_RUNS:
        raise _active(row)
    row = await blob_values.open_values(core.store, row)
    known: dict[str, Any] = msgspec.json.decode(row.params)
    submission = Submission(
        kwargs={**known, **args}, tags=row.tags, priority=row.priority, key=row.key
    )
    if is_elsewhere(row.flow):
        [named] = await prepare_named(core, row.flow, [submission])
        return named
    return prepare(row.flow, submission, core.settings, core.clock)


async def stored(core: Core, prepared: Prepared) -> str:
    """The id of the run, if it is admitted."""
    [answer] = await store_runs(core, [prepared], partial=False)
    if error := refusal(answer, prepared.run):
        raise error
    return answer.id
