"""Runs that wait, in a simulation: what its leader does with the rows of waiting and queued runs."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import msgspec

from locktender.base.changes import KeptPlace, TaskRow
from locktender.base.commits import EventWait, RunEvents
from locktender.base.events import Change, Event
from locktender.base.ids import run_of
from locktender.base.model import Failure, Mail
from locktender.base.states import TERMINAL_RUNS, RunState
from locktender.kernel.scheduler import Scheduler
from locktender.kernel.waiting_runs import put_cached
from locktender.simulate.model import Model, SimMail

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
            if row.started_at:
                mails = mail_ready(model, {row.seq})
                scheduler.lifecycle.mail.put_ready([row.seq], mails)
            scheduler.put_head(row, rows_of(model, row.seq) if row.started_at else None)


def kept_places(model: Model) -> list[KeptPlace]:
    """Runs that have begun, have no place, and keep it at some limits."""
    return [
        KeptPlace(row.seq, row.id, row.tags, rules, row.started_at)
        for run, rules in model.unplaced.items()
        if rules and (row := model.runs[run]).state not in TERMINAL_RUNS and row.started_at
    ]


def rows_of(model: Model, run: int) -> list[TaskRow]:
    return [row for row in model.tasks.values() if run_of(row.id) == run]


def wake(scheduler: Scheduler, model: Model, now: int) -> set[int]:
    """Waiting runs whose time has come are queued, with their first age."""
    builder, cycle = scheduler.commit_builder, 0
    due = {run for run, at in model.waiting.items() if at <= now}
    due |= {mail.run for mail in mail_ready(model, model.waiting)}
    for run in sorted(due):
        cycle = cycle or builder.next_cycle()
        del model.waiting[run]
        row = model.runs[run] = msgspec.structs.replace(model.runs[run], state=RunState.QUEUED)
        data = {"priority": row.priority, "generation": row.generation}
        change = Change("run", 0, RunState.WAITING, RunState.QUEUED, 0, data)
        model.log(now, builder.actor, [RunEvents(run, [change])], model.term, cycle)
    return due


def send(
    model: Model, run: int, name: str, now: int, payload: object, task: int, match: dict[str, Any]
) -> None:
    """A client sends an event: to a run, to the wait of one `task` of it, or to a topic (0)."""
    raw = msgspec.json.encode(payload)
    mail = SimMail(len(model.mail) + 1, run, name, raw, match, now, task)
    model.mail.append(mail)
    change = Change("mail", task, "", "sent", 0, {"n": mail.n, "name": name})
    model.log(now, "client", [RunEvents(run, [change])])


def mail_ready(model: Model, runs: Container[int]) -> list[Mail]:
    """Of each task of these runs that waits for an event: the first that it can take, in their order."""
    found = [
        Mail(wait.run, wait.task, mail.n, mail.name, mail.payload)
        for wait in model.event_waits.values()
        if wait.run in runs and (mail := _first(model, wait)) is not None
    ]
    return sorted(found, key=lambda each: (each.n, each.task))


def _first(model: Model, wait: EventWait) -> SimMail | None:
    own = msgspec.json.decode(wait.match)
    for mail in model.mail:
        if mail.name != wait.name or (wait.run, mail.n) in model.mail_taken:
            continue
        of_topic = not mail.run and mail.at >= model.runs[wait.run].queued_at
        to_run = mail.run == wait.run and mail.task in (0, wait.task)
        if to_run or (of_topic and mail.match.items() <= own.items()):
            return mail
    return None


def deliver(scheduler: Scheduler, model: Model, fresh: Iterable[Event], now: int) -> None:
    """What was sent reaches the runs that a leader has in memory, and cached results the tasks that ask."""
    lifecycle = scheduler.lifecycle
    for event in fresh:
        if event.subject == "mail" and event.after == "sent":
            lifecycle.mail.wanted.update({event.run} if event.run else lifecycle.asleep)
    lifecycle.mail.wanted &= lifecycle.asleep.keys()
    if wanted := lifecycle.mail.take_wanted(len(lifecycle.mail.wanted)):
        scheduler.put_mail(mail_ready(model, wanted), now)
    for clear in model.clears:
        lifecycle.cache.clear(*clear)
    model.clears.clear()
    if asked := lifecycle.cache.asked():
        put_cached(lifecycle, asked, model.cached, {}, now)


def next_wake(model: Model, at: int | None) -> int | None:
    """The first of `at` and the times of waiting runs."""
    return min((each for each in (at, *model.waiting.values()) if each), default=None)
