"""Runs that wait, in a simulation: what its leader does with the rows of waiting and queued runs."""

from __future__ import annotations

import msgspec

from locktender.base.changes import RunEvents, TaskRow
from locktender.base.events import Change
from locktender.base.ids import run_of
from locktender.base.model import Failure
from locktender.base.states import RunState
from locktender.kernel.scheduler import Scheduler
from locktender.simulate.model import Model

MAX_HEADS = 500


def cancel_asked(scheduler: Scheduler, model: Model, now: int) -> None:
    """Carries out what clients asked for."""
    for run in model.cancels:
        row = model.runs[run]
        waits = row.state in (RunState.QUEUED, RunState.WAITING)
        if not waits or run in scheduler.ledger.runs:
            scheduler.cancel_run(run, now)
        elif row.started_at:
            scheduler.take_up(row, rows_of(model, run), now)
            scheduler.cancel_run(run, now)
        else:
            failure = Failure("cancelled", "cancelled on request")
            scheduler.end_queued(row, RunState.CANCELLED, failure, now)
    model.cancels.clear()


def put_heads(scheduler: Scheduler, model: Model, fed: set[int]) -> None:
    """Queued runs that the scheduler does not know yet, with their rows if they have begun."""
    for row in model.queued()[:MAX_HEADS]:
        if row.seq not in fed:
            fed.add(row.seq)
            scheduler.put_head(row, rows_of(model, row.seq) if row.started_at else None)


def rows_of(model: Model, run: int) -> list[TaskRow]:
    return [row for row in model.tasks.values() if run_of(row.id) == run]


def wake(scheduler: Scheduler, model: Model, now: int) -> set[int]:
    """Waiting runs whose time has come are queued, with their first age."""
    builder, cycle = scheduler.commit_builder, 0
    due = {run for run, at in model.waiting.items() if at <= now}
    for run in sorted(due):
        cycle = cycle or builder.next_cycle()
        del model.waiting[run]
        row = model.runs[run] = msgspec.structs.replace(model.runs[run], state=RunState.QUEUED)
        data = {"priority": row.priority, "generation": row.generation}
        change = Change("run", 0, RunState.WAITING, RunState.QUEUED, 0, data)
        model.log(now, builder.actor, [RunEvents(run, [change])], model.term, cycle)
    return due


def next_wake(model: Model, at: int | None) -> int | None:
    """The first of `at` and the times of waiting runs."""
    return min((each for each in (at, *model.waiting.values()) if each), default=None)
